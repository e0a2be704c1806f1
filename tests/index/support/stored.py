"""Read the content of an index without its search, for tests and for the child processes that are killed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from ctx_embed.index.analysis.verification import verify
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashEmbedder, hash_vectors


def vectors_of(path):
    """Return the stored vectors of all rows."""
    folder = IndexFolder(path)
    with closing(folder.documents) as store:
        return folder.vectors.gather(store.shards(), np.arange(store.state().rows))


def stored(path: Path, exact: bool = True) -> dict:
    """Return texts by id in the order of rows, after checking that the index is intact and vectors fit texts.

    Args:
        path: the index.
        exact: whether its vectors have always been float32.
    """
    folder = IndexFolder(path)
    try:
        assert verify(folder, HashEmbedder()) == []
        documents = list(folder.documents.all())
        rows = np.array([document.row for document in documents], np.int64)
        shards = folder.documents.shards()
        vectors = folder.vectors.gather(shards, rows)
        # An older version must not take other vectors for float32.
        dtypes = {folder.vectors.dtype_of(shard) for shard in shards}
        assert dtypes <= {"float32"} or folder.manifest.format_version == 3
        wanted = hash_vectors([document.text for document in documents])
        np.testing.assert_allclose(vectors, wanted, rtol=1e-6, atol=0 if exact else 0.01)
        assert len({document.id for document in documents}) == len(documents) == folder.count()
        return {document.id: document.text for document in documents}
    finally:
        folder.documents.close()
