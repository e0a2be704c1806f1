"""Semantic search: an index is one SQLite database in a folder, with FAISS's file beside it.

Called by ``ctx-embed index``, the server, the stores and :class:`ctx_embed.SearchIndex`'s users.
A change starts in ``search_index.py``, which joins the other files; what is on disk, in ``database.py``.

    index.sqlite  settings, documents, passages, vectors and words; each change is one transaction
    TOKEN.faiss   FAISS's index of the vectors, derived from them: deleted at will, written again by the next writer

A reader uses FAISS's file only if its own transaction lists the token, drops candidates that it does not have, compares
rows that the file lacks, and computes all scores from the stored vectors. So the database alone is the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.index.hits import Hit as Hit, Hits as Hits, snippet as snippet
    from ctx_embed.index.search_index import SearchIndex as SearchIndex

_HOMES = {"ctx_embed.index.search_index": "SearchIndex", "ctx_embed.index.hits": "Hit Hits snippet"}
__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
