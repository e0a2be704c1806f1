"""Child process: kill `reembed` before every n-th of our lines that it reaches, and check what is left.

Usage: reembed_points.py WORK STRIDE. The folder WORK has an index `base` of twelve notes; 3 and 11 are deleted.
Prints the number of kills, and how many of them left the old and the new vectors.
"""

import os
import shutil
import sys
from functools import partial
from pathlib import Path

from ctx_embed.index.building import reembedding
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.writing.writer import Steps
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model.saved import DEFAULT_MODEL
from tests.index.support.hash_model import HashEmbedder
from tests.index.support.killed_at import run_and_die

NOTE = "note 5 about the weather"


if __name__ == "__main__":
    work, stride = Path(sys.argv[1]), int(sys.argv[2])
    reembedding.reembed = partial(reembedding.reembed, steps=Steps(seconds=0, batch=5))
    model = Embedder.load(DEFAULT_MODEL)
    base = work / "base"
    old = IndexFolder(base).settings.model_fingerprint
    left = {"old": 0, "new": 0}
    line = 1
    while True:
        folder = work / f"killed-at-{line}"
        shutil.copytree(base, folder)
        child = os.fork()
        if child == 0:
            index = SearchIndex(IndexFolder(folder), HashEmbedder())
            run_and_die(partial(index.reembed, model), line)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        state = "old" if IndexFolder(folder).settings.model_fingerprint == old else "new"
        left[state] += 1
        embedder = HashEmbedder() if state == "old" else None
        with SearchIndex(IndexFolder(folder), embedder) as index:
            if state == "old":
                assert index.verify() == []
                assert index.search(NOTE, 1, mode="dense")[0].id == 5
            index.reembed(model)
            assert index.verify() == []
            assert index.search(NOTE, 1, mode="dense")[0].id == 5
            assert index.ids() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
        assert all(entry.name.startswith("index.sqlite") for entry in folder.iterdir())
        line += stride
    print(line // stride, left["old"], left["new"])
