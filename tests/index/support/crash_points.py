"""Child process: kill a writer before every n-th of our lines that an operation reaches, and check what is left.

Usage: crash_points.py BASE WORK STRIDE [DTYPE], where BASE is an index and WORK a folder. The operation is an addition,
or, if a data type is given, storing all vectors in it. Prints how many kills left the old and the new state.
"""

import sys
from functools import partial
from pathlib import Path

from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashEmbedder
from tests.index.support.killed_at import kills
from tests.index.support.stored import stored, widths_of

WIDTHS = {"float32": 4, "float16": 2, "int8": 1}
ADDED = ["first new text", "second new text", "third new text"]


def change(folder: Path):
    index = SearchIndex(IndexFolder(folder), HashEmbedder())
    return partial(index.add, ADDED, ["x", "y", "z"]) if dtype is None else partial(index.compact, dtype)


def texts_of(folder: Path) -> list[str]:
    """Return all texts in their order, after checking that the index is intact."""
    return list(stored(folder, exact=dtype is None).values())


def has_dtype(folder: Path) -> bool:
    opened = IndexFolder(folder)
    opened.close()
    return opened.settings.dtype == dtype and widths_of(folder) == {WIDTHS[dtype] * HashEmbedder.dimension}


if __name__ == "__main__":
    base, work, stride, dtype = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), (*sys.argv[4:], None)[0]
    old = texts_of(base)
    left = {False: 0, True: 0}
    for folder in kills(base, work, stride, change):
        texts = texts_of(folder)
        assert texts == old or (dtype is None and texts == old + ADDED), texts
        left[texts != old if dtype is None else has_dtype(folder)] += 1
        # The next writer adds more, and removes what the killed one left.
        with SearchIndex(IndexFolder(folder), HashEmbedder()) as index:
            index.add(["afterwards"])
            if dtype is not None:
                index.compact(dtype)
                assert index.describe()["dtype"] == dtype
            assert index.search("afterwards", 1, mode="dense")[0].text == "afterwards"
        assert len(list(folder.glob("*.faiss*"))) <= 1, folder
        assert texts_of(folder) == [*texts, "afterwards"]
        assert dtype is None or has_dtype(folder)
    print(left[False], left[True])
