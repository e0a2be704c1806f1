"""What a call acknowledges is on disk: rebuild what a power cut may leave after it, and at any moment before."""

from __future__ import annotations

import ast
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ctx_embed.index.database import DATABASE
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.verify import verify
from ctx_embed.stores import open as open_store
from tests.helpers.disk import ALL, NAMES, NONE, Disk, Event, Tree, Way, events, tree, write

PACKAGE = Path(__file__).parent.parent / "ctx_embed"


class Reader:
    """Reads what a power cut leaves of outputs, each state once."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.found = scratch, {}

    def __call__(self, tree: Tree) -> dict[str, tuple[Any, Any]]:
        """Return the content of each output by its name, see :func:`_content`; a name after a dot is no output."""
        return {name: self._of(name, left) for name, left in tree.items() if name[0] != "."}

    def _of(self, name: str, left: Tree | bytes) -> tuple[Any, Any]:
        key = hashlib.sha256(repr((name, left)).encode()).digest()
        if key not in self.found:
            path = self.scratch / str(len(self.found)) / name
            path.parent.mkdir(parents=True)
            write(left, path)
            try:
                self.found[key] = _content(path)
            except Exception as error:
                self.found[key] = error, None
            shutil.rmtree(path.parent)
        return self.found[key]


def _content(path: Path) -> tuple[Any, Any]:
    """Return what an output holds that is old or new at any moment, and what a call changes step by step; or raise."""
    if path.is_file():
        return path.read_bytes(), None
    if (path / DATABASE).exists():
        assert verify(path, None) == []
        with closing(IndexFolder(path)) as index:
            documents = [(each.id, each.text, each.metadata, each.spans) for each in index.all()]
            vectors = index.read(lambda view: view.vectors.get(view.rows[view.live]).tobytes())
            record = index.record()
            file = record and record.path(path)
            faiss = file.read_bytes() if file and file.exists() else None
            return (documents, vectors), (index.settings, record, faiss, index.deleted_rows())
    files = {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    if path.name != "parquet":
        return files, None
    if "_collection.json" not in map(str, files):
        return None, None
    with open_store(path) as store:
        return None, (sorted((row.id, row.text, row.embedding.tobytes()) for row in store.documents()), store.notes(""))


class Cuts:
    """Power cuts during a process that acknowledges what it writes, see acknowledged.py for its arguments."""

    def __init__(self, work: Path, library: Path, *arguments: str) -> None:
        environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.helpers.acknowledged", str(work), *arguments]
        subprocess.run(command, check=True, cwd=PACKAGE.parent, env=environment, capture_output=True)
        self.disk, self.record, self.read = work / "disk", list(events(work / "record")), Reader(work / "left")
        # The outputs at each acknowledgment.
        self.acknowledged: list[dict[str, tuple[Any, Any]]] = []
        state = Disk(self.disk)
        for event in self.record:
            if event.kind == "a":
                self.acknowledged.append(self.read(state.left(ALL)))
            state.apply(event)
        assert not [each for each in self.acknowledged for left, _ in each.values() if isinstance(left, Exception)]
        # The record is complete: after all its events the disk is as it is.
        assert state.left(ALL) == tree(self.disk)

    def losses(
        self, ways: list[Way], every: int = 1, dropped: Callable[[Event, str], bool] = lambda event, line: False
    ) -> Iterator[str]:
        """Yield what is lost of what was acknowledged, or is neither old nor new at one of ``every`` moments.

        Args:
            ways: what is left of what was not synced.
            dropped: gets a sync, and the line of ours that asks for it ("" if SQLite does); whether it is left out.
        """
        state, line = Disk(self.disk), ""
        before: dict[str, tuple[Any, Any]] = {}
        acknowledged = iter(self.acknowledged)
        wanted = next(acknowledged)
        for number, event in enumerate(self.record):
            cut = event.kind == "a" or (event.kind in "SRX" and number % every == 0)
            for way in ways if cut else ():
                found = self.read(state.left(way))
                for name in {*before, *wanted, *(found if event.kind == "a" else ())}:
                    old, new, left = (each.get(name, (None, None)) for each in (before, wanted, found))
                    whole = left[0] in (old[0], new[0]) or name.endswith(".partial")
                    if left != new if event.kind == "a" else not whole:
                        yield f"event {number} ({event.kind} {event.path}), {way}: {name}: {left!r:.300}"
            if event.kind == "a":
                before, wanted = wanted, next(acknowledged, wanted)
            if event.kind != "S" or not dropped(event, line):
                state.apply(event)
            line = event.path if event.kind == "f" else "" if event.kind == "S" else line


@pytest.fixture(scope="module")
def cuts(tmp_path_factory, faults_library, tiny_model_path) -> Cuts:
    return Cuts(tmp_path_factory.mktemp("work"), faults_library, "FULL", str(tiny_model_path))


def test_a_power_cut_loses_nothing_that_is_acknowledged(cuts):
    assert list(cuts.losses([NONE, NAMES, random.Random(0), random.Random(1)], every=3)) == []


def test_each_fsync_of_ours_is_needed(cuts):
    """Leave out those that one line asks for: each is noticed."""
    lines = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("fsync_file", "fsync_folder")
    }
    assert {event.path for event in cuts.record if event.kind == "f"} == lines
    assert next(cuts.losses([NONE]), None) is None
    for line in lines:
        assert next(cuts.losses([NONE], dropped=lambda event, its, line=line: its == line), None), line


def test_the_log_of_sqlite_must_be_synced_at_each_commit(cuts, tmp_path, faults_library):
    assert next(cuts.losses([NONE], dropped=lambda event, line: event.path.endswith("-wal")), None)
    assert next(Cuts(tmp_path, faults_library, "NORMAL").losses([NONE]), None)
