"""Semantic search: vectors (FAISS) and documents (SQLite) in one folder.

    manifest.json         what the index is: format, model, dimension, factory; follows each commit
    documents.sqlite      ids, texts, metadata, the generation and the list of shards: its transaction is the commit
    vectors/*.safetensors the shards of raw vectors, the source of truth: row i belongs to the document of row i
    faiss/*.faiss         a cache of the FAISS index, rebuilt if it is missing, old or damaged

A writer adds new shards next to the old ones, syncs them to disk, and lists them together with their documents in one
SQLite transaction. Files that are not listed are ignored, and the next writer removes them. So if a process is killed,
the index is in its old state or its new one, never in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.index.search_index import SearchIndex
    from ctx_embed.index.searching.hits import Hit, snippet

__all__ = ["Hit", "SearchIndex", "snippet"]

_HOMES = {
    "Hit": "ctx_embed.index.searching.hits",
    "SearchIndex": "ctx_embed.index.search_index",
    "snippet": "ctx_embed.index.searching.hits",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
