"""Training a Contextualizer: from labels, by distillation, and the vocabulary before either.

Called by ``ctx-embed train``, ``distill`` and ``vocab``.
Each option is declared once, in ``options.py``; the command line is made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.training.distillation.job import distill as distill
    from ctx_embed.training.options import (
        DistillationOptions as DistillationOptions,
        Source as Source,
        SupervisedOptions as SupervisedOptions,
    )
    from ctx_embed.training.supervised.classifier import TextClassifier as TextClassifier
    from ctx_embed.training.supervised.job import train as train
    from ctx_embed.training.vocabulary import learn_vocabulary as learn_vocabulary

_HOMES = {
    "ctx_embed.training.distillation.job": "distill",
    "ctx_embed.training.options": "DistillationOptions Source SupervisedOptions",
    "ctx_embed.training.supervised.classifier": "TextClassifier",
    "ctx_embed.training.supervised.job": "train",
    "ctx_embed.training.vocabulary": "learn_vocabulary",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
