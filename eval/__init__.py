"""A SentEval-style evaluator: linear probes over frozen embeddings, similarity, retrieval, and what encoders cost.

Called by ``ctx-embed eval``; installed as ``ctx_embed.eval``.
A new task goes into ``tasks/tasks.json``; a new score, into ``scoring/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.eval.encoders import as_encoder as as_encoder, load_encoder as load_encoder
    from ctx_embed.eval.evaluation import (
        Evaluation as Evaluation,
        EvaluationOptions as EvaluationOptions,
        compare as compare,
        evaluate as evaluate,
    )
    from ctx_embed.eval.evaluator import ProbeEvaluator as ProbeEvaluator
    from ctx_embed.eval.tasks import DataReader as DataReader, find_tasks as find_tasks
    from ctx_embed.eval.writing import write_report as write_report

_HOMES = {
    "ctx_embed.eval.encoders": "as_encoder load_encoder",
    "ctx_embed.eval.evaluation": "Evaluation EvaluationOptions compare evaluate",
    "ctx_embed.eval.evaluator": "ProbeEvaluator",
    "ctx_embed.eval.tasks": "DataReader find_tasks",
    "ctx_embed.eval.writing": "write_report",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
