"""Read the content of an index without its search, for tests and for the child processes that are killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ctx_embed.index.analysis.verification import problems
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashEmbedder, hash_vectors


def stored(path: Path) -> dict:
    """Return texts by id in the order of rows, after checking that the index is intact and vectors fit texts."""
    folder = IndexFolder(path)
    try:
        assert problems(folder, HashEmbedder()) == []
        documents = list(folder.documents.all())
        rows = np.array([document.row for document in documents], np.int64)
        vectors = folder.vectors.gather(folder.documents.shards(), rows)
        np.testing.assert_allclose(vectors, hash_vectors([document.text for document in documents]), rtol=1e-6)
        assert len({document.id for document in documents}) == len(documents) == folder.count()
        return {document.id: document.text for document in documents}
    finally:
        folder.documents.close()
