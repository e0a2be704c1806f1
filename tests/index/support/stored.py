"""Read the content of an index without its search, and change its settings as nobody else does."""

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.verify import verify
from tests.index.support.hash_model import HashEmbedder, hash_vectors


def vectors_of(path):
    """Return the stored vectors of all passages, in the order of rows."""
    with closing(IndexFolder(path)) as folder:
        return folder.read(lambda view: view.vectors.get(view.rows[view.live]))


def widths_of(path) -> set[int]:
    """Return the sizes of the stored vectors in bytes."""
    with closing(IndexFolder(path)) as folder:
        return {width for (width,) in folder.run(f"SELECT DISTINCT length(code) FROM vectors_{folder.settings.table}")}


def stored(path: Path, exact: bool = True) -> dict:
    """Return texts by id in the order of rows, after checking that the index is intact and vectors fit texts.

    ``exact`` says whether its vectors have always been float32.
    """
    with closing(IndexFolder(path)) as folder:
        dimension = folder.settings.dimension
        assert verify(path, lambda: HashEmbedder(dimension)) == []
        documents = list(folder.all())
        rows = np.array([document.row for document in documents], np.int64)
        vectors = folder.read(lambda view: view.vectors.get(rows))
        wanted = hash_vectors([document.text for document in documents], dimension)
        np.testing.assert_allclose(vectors, wanted, rtol=1e-6, atol=0 if exact else 0.01)
        assert len({document.id for document in documents}) == len(documents) == folder.state().documents
        return {document.id: document.text for document in documents}


def ids(hits) -> list:
    """Return the ids of hits."""
    return [hit.id for hit in hits]


def changed_settings(path: Path, **changes: Any) -> None:
    """Change some settings of an index, with a checksum that fits."""
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        (content,) = connection.execute("SELECT content FROM settings WHERE name = 'present'").fetchone()
        content = json.dumps(json.loads(content) | changes)
        values = (content, zlib.crc32(content.encode()))
        connection.execute("UPDATE settings SET content = ?, checksum = ? WHERE name = 'present'", values)
        connection.commit()
