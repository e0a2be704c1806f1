"""Child process: kill `reembed` before every n-th of our lines that it reaches, and check what is left.

Usage: reembed_points.py WORK STRIDE. The folder WORK has an index `base` of twelve notes; 3 and 11 are deleted.
Prints how many kills left the old and the new vectors.
"""

import sys
from functools import partial
from pathlib import Path

from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.writing import writer
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model.saved import DEFAULT_MODEL
from tests.index.support.hash_model import HashEmbedder
from tests.index.support.killed_at import kills

if __name__ == "__main__":
    work, stride = Path(sys.argv[1]), int(sys.argv[2])
    writer.BATCH_DOCUMENTS = 5
    model = Embedder.load(DEFAULT_MODEL)
    old = IndexFolder(work / "base").settings.model_fingerprint
    left = {True: 0, False: 0}

    def check(index: SearchIndex) -> None:
        assert index.verify() == []
        assert index.search("note 5 about the weather", 1, mode="dense")[0].id == 5

    def again(folder: Path):
        return partial(SearchIndex(IndexFolder(folder), HashEmbedder()).reembed, model)

    for folder in kills(work / "base", work, stride, again):
        is_old = IndexFolder(folder).settings.model_fingerprint == old
        left[is_old] += 1
        with SearchIndex(IndexFolder(folder), HashEmbedder() if is_old else None) as index:
            if is_old:
                check(index)
            index.reembed(model)
            check(index)
            assert index.ids() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
        assert all(entry.name.startswith("index.sqlite") for entry in folder.iterdir())
    print(left[True], left[False])
