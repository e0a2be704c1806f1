"""Stores of embeddings: write to Parquet; write to and search LanceDB, PostgreSQL with pgvector, and Qdrant.

Called by ``ctx-embed encode --to`` and :mod:`ctx_embed.bulk_encoding`.
A new store is a class of ``store.py``'s interface in its own file, named in :func:`open`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError, quoted, without_secrets
from ctx_embed.index.database import DATABASE
from ctx_embed.stores.store import Batch, Collection, Store

if TYPE_CHECKING:
    from ctx_embed.model import Given

__all__ = ["Batch", "Collection", "Store", "open"]


def open(address: str | Path, model: Given = None) -> Store:
    """Open a store of embeddings, a context manager; nothing is connected or loaded before it is used.

    Args:
        address: one of

            - ``postgresql://USER@HOST/DATABASE#TABLE``: a table of PostgreSQL with pgvector;
            - ``lancedb:FOLDER#TABLE``: a table of LanceDB;
            - ``qdrant:http://HOST:6333#COLLECTION`` or ``qdrant:FOLDER#COLLECTION``: a collection of Qdrant;
            - a folder, or a URI such as ``s3://bucket/folder``: a directory of Parquet files. Write ``./a:b`` for a
              folder with a colon in its name.

            The name after ``#`` is ``passages`` if it is left out; in PostgreSQL it may be ``SCHEMA.TABLE``.
        model: embeds queries; None: the model that made the vectors.

    Example:
        >>> with ctx_embed.stores.open("postgresql://me@localhost/library#books") as store:  # doctest: +SKIP
        ...     store.search("a whale", k=5, where="year < 1900")
    """
    text = str(address)
    if not isinstance(address, str | Path) or not text.strip():
        raise InputError(
            f"a store's address must be a folder, postgresql://, lancedb: or qdrant:, got {quoted(address)}"
        )
    # A password before the last @ may contain a #.
    user, at, rest = text.rpartition("@")
    place, _, name = rest.partition("#")
    place = f"{user}{at}{place}"
    scheme, colon, rest = place.partition(":")
    name = name or "passages"
    store: Store
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from ctx_embed.stores.postgresql import PostgreSQL

        store = PostgreSQL(place, name)
    elif colon and scheme in ("lancedb", "qdrant"):
        if not rest:
            raise InputError(f"{without_secrets(text)}: names no folder or server; write {scheme}:FOLDER#{name}")
        from ctx_embed.stores.lancedb import LanceDB
        from ctx_embed.stores.qdrant import Qdrant

        store = LanceDB(rest, name) if scheme == "lancedb" else Qdrant(rest, name)
    elif "://" not in text and (Path(text) / DATABASE).is_file():
        raise InputError(
            f"{text}: a search index has one writer; encode into a directory, then `ctx-embed index build "
            "--from-parquet DIRECTORY INDEX`. To search it, use ctx_embed.SearchIndex"
        )
    # A single letter before a colon is a drive of Windows.
    elif colon and "://" not in text and len(scheme) > 1 and not {"/", "\\"} & set(scheme):
        stores = "lancedb:..., qdrant:..., postgresql://... and folders (./NAME if it has a colon)"
        raise InputError(f"unknown store {quoted(without_secrets(text))}; stores are {stores}")
    else:
        from ctx_embed.stores.parquet import Parquet

        store = Parquet(text)
    store.model = model
    return store
