"""Explanations: how much each token contributes to an embedding, as numbers, in the terminal and as a page.

Called by ``ctx-embed explain``.
The weights change in ``explanation.py``; how they are shown, in ``page.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.explanations.explanation import ContextPath, Contributions, Explanation, contributions, explain
    from ctx_embed.explanations.page import write

__all__ = ["ContextPath", "Contributions", "Explanation", "contributions", "explain", "write"]

_HOMES = {name: f"ctx_embed.explanations.{'page' if name == 'write' else 'explanation'}" for name in __all__}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
