"""Child process: kill a writer before every n-th of our lines that an addition reaches, and check what is left.

Usage: crash_points.py BASE WORK STRIDE, where BASE is an index and WORK a folder. Prints the number of kills, and how
many of them left the old and the new state.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import ctx_embed
from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashEmbedder
from tests.index.support.stored import stored

OURS = str(Path(ctx_embed.__file__).parent)
ADDED = ["first new text", "second new text", "third new text"]


def add_and_die(folder: Path, line: int) -> None:
    """Add documents to the index in ``folder`` and be killed at the ``line``-th new line; exit code 0 if never."""
    lines = set()

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    index = SearchIndex(IndexFolder(folder), HashEmbedder())
    sys.settrace(trace)
    index.add(ADDED, ["x", "y", "z"])
    os._exit(0)


def texts_of(folder: Path) -> list[str]:
    """Return all texts in their order, after checking that the index is intact."""
    return list(stored(folder).values())


if __name__ == "__main__":
    base, work, stride = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    old = texts_of(base)
    left = {"old": 0, "new": 0}
    line = 1
    while True:
        folder = work / f"killed-at-{line}"
        shutil.copytree(base, folder)
        child = os.fork()
        if child == 0:
            add_and_die(folder, line)
        _, status = os.waitpid(child, 0)
        texts = texts_of(folder)
        assert texts in (old, old + ADDED), (line, texts)
        left["old" if texts == old else "new"] += 1
        # The next writer adds more, and removes what the killed one left.
        with SearchIndex(IndexFolder(folder), HashEmbedder()) as index:
            index.add(["afterwards"])
            assert index.search("afterwards", 1)[0].text == "afterwards"
            names = {shard.name for shard in index._folder.documents.shards()}
        assert {path.name for path in (folder / "vectors").iterdir()} == names, line
        assert texts_of(folder) == [*texts, "afterwards"]
        shutil.rmtree(folder)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        line += stride
    print(left["old"] + left["new"], left["old"], left["new"])
