"""Explanations: how much each token contributes to an embedding, as numbers, in the terminal and as a page."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctx_embed.explanations.writing import write

if TYPE_CHECKING:
    from ctx_embed.explanations.explanation import ContextPath, Contributions, Explanation, contributions, explain

__all__ = ["ContextPath", "Contributions", "Explanation", "contributions", "explain", "write"]


def __getattr__(name: str) -> Any:
    # Imported at first use: the module imports NumPy and the tokenizers.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ctx_embed.explanations.explanation"), name)
