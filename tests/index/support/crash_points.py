"""Child process: kill a writer before every n-th of our lines that an operation reaches, and check what is left.

Usage: crash_points.py BASE WORK STRIDE KIND, where BASE is an index and WORK a folder. KIND is "add", "reembed" or a
data type for all vectors. Prints how many kills left the old and the new state.
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import ctx_embed
from ctx_embed.index import writer
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.vectors import DTYPES
from tests.index.support.hash_model import HashEmbedder, HashModel
from tests.index.support.stored import stored, widths_of

ADDED = ["first new text", "second new text", "third new text"]
MODEL = HashModel(16)
OURS = str(Path(ctx_embed.__file__).parent)


def opened(folder: Path) -> SearchIndex:
    found = IndexFolder(folder)
    return SearchIndex(found, HashEmbedder(found.settings.dimension))


def change(index: SearchIndex):
    works = {"add": partial(index.add, ADDED, ["x", "y", "z"]), "reembed": partial(index.reembed, MODEL)}
    return works.get(kind) or partial(index.compact, kind)


def state(folder: Path) -> tuple[list[str], tuple]:
    """Return all texts in their order, and how their vectors are stored; check that the index is intact."""
    with closing(IndexFolder(folder)) as found:
        settings = found.settings
    texts = stored(folder, exact=kind not in DTYPES).values()
    return list(texts), (settings.dtype, settings.dimension, *widths_of(folder))


def change_and_die(folder: Path, line: int) -> None:
    """Change an index, and be killed before the ``line``-th of our lines that is reached."""
    work, lines = change(opened(folder)), set()

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    work()
    os._exit(0)


def kills(base: Path, work: Path, stride: int) -> Iterator[Path]:
    """Kill changes of copies of a folder, before every ``stride``-th of our lines; yield each copy.

    The last one is that of a change that ended.
    """
    for line in count(1, stride):
        folder = work / f"killed-at-{line}"
        shutil.copytree(base, folder)
        child = os.fork()
        if child == 0:
            change_and_die(folder, line)
        _, status = os.waitpid(child, 0)
        yield folder
        shutil.rmtree(folder)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return


if __name__ == "__main__":
    base, work, stride, kind = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    writer.BATCH_DOCUMENTS = 5
    old, _ = state(base)
    left, afterwards = [], set()
    for folder in kills(base, work, stride):
        left.append(state(folder))
        texts, _ = left[-1]
        assert texts == old or (kind == "add" and texts == old + ADDED), texts
        # The next writer adds more, and removes what the killed one left.
        with opened(folder) as index:
            index.add(["afterwards"])
            if kind != "add":
                change(index)()
            assert index.search("afterwards", 1, mode="dense")[0].text == "afterwards"
        assert len(list(folder.glob("*.faiss*"))) <= 1, folder
        found, widths = state(folder)
        assert found == [*texts, "afterwards"]
        afterwards.add(widths)
    # The last change ended.
    new = left[-1]
    assert afterwards == {new[1]}
    print(len(left) - left.count(new), left.count(new))
