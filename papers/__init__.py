"""The papers' tables and figures as experiments that can be interrupted, run in part, and resumed."""

from papers.catalogue import EXPERIMENTS, find_experiment
from papers.experiment import Cell, Experiment
from papers.inputs import Workplace
from papers.report import write_report
from papers.runner import Results, RunOptions, reproduce

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Experiment",
    "Results",
    "RunOptions",
    "Workplace",
    "find_experiment",
    "reproduce",
    "write_report",
]
