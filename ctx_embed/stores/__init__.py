"""Stores of embeddings: write to Parquet; write to and search LanceDB, PostgreSQL with pgvector, and Qdrant.

Called by ``ctx-embed encode --to`` and :mod:`ctx_embed.bulk_encoding`.
A new store is a class of ``store.py``'s interface in its own file, named in ``opening.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.stores.opening import open
    from ctx_embed.stores.store import Batch, Collection, Store

__all__ = ["Batch", "Collection", "Store", "open"]

_HOMES = dict.fromkeys(__all__, "ctx_embed.stores.store") | {"open": "ctx_embed.stores.opening"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
