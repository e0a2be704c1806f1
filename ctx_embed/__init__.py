"""Fast sentence embeddings with the Contextualizer: linear-time second-order attention."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.deduplication import dedupe as dedupe
    from ctx_embed.errors import (
        BusyError as BusyError,
        DamagedError as DamagedError,
        InputError as InputError,
        LateError as LateError,
    )
    from ctx_embed.explanations import attention_weights as attention_weights, explain as explain
    from ctx_embed.index import Hit as Hit, Hits as Hits, SearchIndex as SearchIndex
    from ctx_embed.loading import load as load, path as path
    from ctx_embed.modules import Contextualizer as Contextualizer, ContextualizerPooling as ContextualizerPooling
    from ctx_embed.training.supervised.classifier import TextClassifier as TextClassifier

__version__ = "0.3.0"
# Public names by the module that defines them, imported at first use: `import ctx_embed` loads no torch.
_HOMES = {
    "ctx_embed.deduplication": "dedupe",
    "ctx_embed.errors": "BusyError DamagedError InputError LateError",
    "ctx_embed.explanations": "attention_weights explain",
    "ctx_embed.index": "Hit Hits SearchIndex",
    "ctx_embed.loading": "load path",
    "ctx_embed.modules": "Contextualizer ContextualizerPooling",
    "ctx_embed.training.supervised.classifier": "TextClassifier",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)


def _use_one_thread() -> None:
    """Let a forked child compute: it would wait for ever for pools of threads, which do not survive a fork."""
    # Without this variable, tokenizers see to it themselves.
    if "tokenizers" in sys.modules and "TOKENIZERS_PARALLELISM" in os.environ:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if "ctx_embed.modules" in sys.modules and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    if (faiss := sys.modules.get("faiss")) is not None:
        faiss.omp_set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread)
