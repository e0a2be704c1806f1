"""Child process: kill a writer before every n-th of our lines that an operation reaches, and check what is left.

Usage: crash_points.py BASE WORK STRIDE [DTYPE], where BASE is an index and WORK a folder. The operation is an addition,
or, if a data type is given, storing all vectors in it. Prints the number of kills, and how many of them left the old
and the new state.
"""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashEmbedder
from tests.index.support.killed_at import run_and_die
from tests.index.support.stored import stored, widths_of

WIDTHS = {"float32": 4, "float16": 2, "int8": 1}
ADDED = ["first new text", "second new text", "third new text"]


def change(folder: Path, dtype: str | None) -> Callable[[], Any]:
    """Open the index in ``folder`` and return the operation."""
    index = SearchIndex(IndexFolder(folder), HashEmbedder())
    return partial(index.add, ADDED, ["x", "y", "z"]) if dtype is None else partial(index.compact, dtype)


def is_new(folder: Path, old: list[str], dtype: str | None) -> bool:
    """Return whether the operation has happened, after checking that the index is intact."""
    texts = texts_of(folder)
    if dtype is None:
        assert texts in (old, old + ADDED), texts
        return texts != old
    assert texts == old
    opened = IndexFolder(folder)
    opened.close()
    return opened.settings.dtype == dtype and widths_of(folder) == {WIDTHS[dtype] * HashEmbedder.dimension}


def texts_of(folder: Path) -> list[str]:
    """Return all texts in their order, after checking that the index is intact."""
    return list(stored(folder, exact=len(sys.argv) < 5).values())


if __name__ == "__main__":
    base, work, stride = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    dtype = sys.argv[4] if len(sys.argv) > 4 else None
    old = texts_of(base)
    left = {"old": 0, "new": 0}
    line = 1
    while True:
        folder = work / f"killed-at-{line}"
        shutil.copytree(base, folder)
        child = os.fork()
        if child == 0:
            run_and_die(change(folder, dtype), line)
        _, status = os.waitpid(child, 0)
        left["new" if is_new(folder, old, dtype) else "old"] += 1
        texts = texts_of(folder)
        # The next writer adds more, and removes what the killed one left.
        with SearchIndex(IndexFolder(folder), HashEmbedder()) as index:
            index.add(["afterwards"])
            if dtype is not None:
                index.compact(dtype)
                assert index.describe()["dtype"] == dtype
            assert index.search("afterwards", 1, mode="dense")[0].text == "afterwards"
        assert len(list(folder.glob("*.faiss*"))) <= 1, line
        assert texts_of(folder) == [*texts, "afterwards"]
        assert dtype is None or is_new(folder, [*texts, "afterwards"], dtype)
        shutil.rmtree(folder)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        line += stride
    print(left["old"] + left["new"], left["old"], left["new"])
