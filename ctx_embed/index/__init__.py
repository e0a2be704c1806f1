"""Semantic search: vectors (FAISS) and documents (SQLite) in one folder.

    manifest.json         what the index is: format, model, dimension, factory; follows each commit
    documents.sqlite      ids, texts, metadata, the generation and the list of shards: its transaction is the commit
    vectors/*.safetensors the shards of raw vectors, the truth: row i belongs to the document of row i
    faiss/*.faiss         a cache of the FAISS index, rebuilt where it is missing, old or damaged

A writer puts new shards beside the old ones, syncs them, and lists them in one SQLite transaction together with their
documents; what is not listed does not exist, and the next writer removes it. So a kill at any moment leaves the old
state or the new one.
"""

from __future__ import annotations

from ctx_embed.index.fulltext import snippet
from ctx_embed.index.hits import Hit
from ctx_embed.index.search_index import SearchIndex

__all__ = ["Hit", "SearchIndex", "snippet"]
