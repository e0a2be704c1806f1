"""Child process, with the compiled faults.c in LD_PRELOAD: record whatever changes a disk, and what is acknowledged.

Usage: acknowledged.py WORK SYNCHRONOUS [MODEL]. The folder is WORK/disk, the record WORK/record; a remark follows each
call that has returned, and precedes each fsync of ours with the line that asks for it. SYNCHRONOUS is SQLite's, FULL as
shipped. Without a small MODEL, only an index changes.
"""

import ctypes
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ctx_embed import SearchIndex
from ctx_embed.bulk_encoding import encode_dataset
from ctx_embed.cli.main import main
from ctx_embed.index.build import build_index, merge_indexes
from ctx_embed.stores import open as open_store
from ctx_embed.stores.store import Batch
from tests.index.support.hash_model import HashModel

PACKAGE = Path(__file__).parents[2] / "ctx_embed"
FSYNC, CONNECT = os.fsync, sqlite3.connect


def changes(disk: Path, given: Path) -> Iterator[tuple[str, object]]:
    """Change an index in each way, and yield the name of each change, and what its call has returned."""
    folder = given / "folder"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("# One\n\nA film.\n")
    (folder / "b.md").write_text("# Two\n\nA book.\n")
    index = SearchIndex.create(disk / "notes.index", HashModel(), "HNSW8")
    yield "create", index
    for number in range(3):
        yield "add", index.add([f"text {number} {place}" for place in range(30)], metadata=[{"year": 1}] * 30)
    yield "upsert", index.upsert(["new 3", "new 4", "new 99"], [3, 4, 99])
    yield "delete", index.delete([5, 6])
    yield "update_metadata", index.update_metadata([7, 8], {"year": 2})
    yield "sync", index.sync(folder)
    (folder / "a.md").write_text("# One\n\nAnother film.\n")
    (folder / "b.md").unlink()
    yield "sync", index.sync(folder)
    index.writer.least_dead_rows = 12
    yield "delete, which compacts", index.delete(list(range(10, 70)))
    yield "compact", index.compact("float16")
    yield "reembed", index.reembed(HashModel(16))
    yield "close", index.close()
    with SearchIndex.open(disk / "notes.index", HashModel(16)) as index:
        yield "add to an index opened again", index.add(["afterwards"])
        yield "backup", index.backup(disk / "copy.index")
        yield "export", index.export(disk / "vectors")


def outputs(disk: Path, given: Path, tiny: str) -> Iterator[tuple[str, object]]:
    """Write each kind of output, and yield its name and what acknowledges it; ``tiny`` is a small model."""
    rows = [{"id": str(n), "text": f"a {word} film {n}"} for n, word in enumerate(["good", "dull", "odd"] * 4)]
    source, more, labelled = (str(given / name) for name in ("rows.jsonl", "more.jsonl", "labelled.tsv"))
    Path(source).write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path(more).write_text("".join(json.dumps({**row, "text": "another"}) + "\n" for row in rows[:3]))
    Path(labelled).write_text("".join(f"{'ab'[n % 2]}\t{row['text']}\n" for n, row in enumerate(rows * 5)))
    build = partial(build_index, model=HashModel())
    for mode, name in (("create", source), ("upsert", more), ("append", labelled), ("overwrite", more)):
        yield f"index build, {mode}", build(name, disk / "built.index", mode=mode)
    (disk / "half.index.partial").mkdir()
    yield "index build over an interrupted one", build(source, disk / "half.index")
    halves = [disk / "built.index", disk / "half.index"]
    yield "index merge", merge_indexes(halves, disk / "merged.index", replace=True)
    yield "encode --to", encode_dataset(source, disk / "parquet")
    yield "encode --to again", encode_dataset(more, disk / "parquet")
    with open_store(disk / "parquet") as store:
        ids, vectors = [row["id"] for row in rows], np.ones((len(rows), store.collection.dimension), np.float32)
        yield "upsert to Parquet", store.upsert(Batch(ids, ids, [{}] * len(ids), vectors))
    for command in (
        *(f"encode {source} -o {disk}/encoded{suffix}" for suffix in (".npy", ".jsonl", ".csv", ".parquet")),
        f"encode {more} -o {disk}/encoded.npy --overwrite",
        f"dedupe {source} -o {disk}/unique.jsonl --groups {disk}/dropped.jsonl",
        f"train {labelled} -o {disk}/classifier --from {tiny} --frozen",
        f"train {labelled} -o {disk}/classifier --from {tiny} --frozen --no-words --overwrite",
        f"predict {disk}/classifier {source} -o {disk}/predicted.csv",
        f"explain film -o {disk}/explained.html",
    ):
        yield command.replace(str(disk), ""), main(command.split(), standalone_mode=False)
    from ctx_embed.training.run import Checkpoint

    yield "a training's checkpoint", Checkpoint(disk / "training", "run").save({"epoch": 1})


def fsync(descriptor: int) -> None:
    """Record which line of ours asks for an fsync, and call it."""
    frame = sys._getframe(1)
    while frame.f_code.co_name in ("_fsync", "fsync_file", "fsync_folder"):
        frame = frame.f_back
    line = f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}:{frame.f_lineno}"
    mark(ord("f"), line.encode())
    FSYNC(descriptor)


if __name__ == "__main__":
    work, synchronous, *models = Path(sys.argv[1]), *sys.argv[2:]
    library = ctypes.CDLL(None)
    mark = library.mark

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *values):
            return super().execute(statement.replace("synchronous = FULL", f"synchronous = {synchronous}"), *values)

    if synchronous != "FULL":
        sqlite3.connect = partial(CONNECT, factory=Connection)
    os.fsync = fsync
    (work / "disk").mkdir()
    library.record(os.fsencode(work / "disk"), os.fsencode(work / "record"))
    for scenario in (changes, *(partial(outputs, tiny=model) for model in models)):
        for name, _ in scenario(work / "disk", work / "given"):
            mark(ord("a"), name.encode())
    os._exit(0)
