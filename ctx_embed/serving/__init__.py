"""The HTTP server: embeddings as OpenAI's clients ask for them, search indexes, and a page to search them on.

Called by ``ctx-embed serve`` and ``mcp``.
An answer changes in ``routes_*.py`` and ``app.py``; limits, in ``settings.py`` and ``gate.py``; the process, in
``running.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.serving.app import create_app
    from ctx_embed.serving.settings import Settings

__all__ = ["Settings", "create_app"]

# Imported at first use: the settings need no FastAPI.
_HOMES = {"Settings": "ctx_embed.serving.settings", "create_app": "ctx_embed.serving.app"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
