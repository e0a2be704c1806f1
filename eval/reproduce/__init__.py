"""The papers' tables and figures as experiments that can be interrupted, run in part, and resumed."""

from ctx_embed.eval.reproduce.catalogue import EXPERIMENTS, find_experiment
from ctx_embed.eval.reproduce.experiment import Cell, Experiment
from ctx_embed.eval.reproduce.inputs import Workplace
from ctx_embed.eval.reproduce.report import write_report, write_tables
from ctx_embed.eval.reproduce.runner import Results, RunOptions, reproduce
from ctx_embed.eval.reproduce.whole import reproduce_all

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Experiment",
    "Results",
    "RunOptions",
    "Workplace",
    "find_experiment",
    "reproduce",
    "reproduce_all",
    "write_report",
    "write_tables",
]
