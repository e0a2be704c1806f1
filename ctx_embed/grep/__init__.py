"""Search files by meaning without an index, in memory that does not grow with them.

Called by ``ctx-embed grep``.
What is printed changes in ``cli/grep.py``; what is read, in ``reading.py``; what is found, in ``search.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.grep.search import Found, Search, grep

__all__ = ["Found", "Search", "grep"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "ctx_embed.grep.search"))
