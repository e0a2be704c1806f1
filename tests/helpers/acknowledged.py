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


def changes(disk: Path, given: Path) -> Iterator[str]:
    """Change an index in each way, and yield the name of each change once its call has returned."""
    folder = given / "folder"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("# One\n\nA film.\n")
    (folder / "b.md").write_text("# Two\n\nA book.\n")
    index = SearchIndex.create(disk / "notes.index", HashModel(), "HNSW8")
    yield "create"
    for number in range(3):
        index.add([f"text {number} {place}" for place in range(30)], metadata=[{"year": 1}] * 30)
        yield "add"
    index.upsert(["new 3", "new 4", "new 99"], [3, 4, 99])
    yield "upsert"
    index.delete([5, 6])
    yield "delete"
    index.update_metadata([7, 8], {"year": 2})
    yield "update_metadata"
    index.sync(folder)
    yield "sync"
    (folder / "a.md").write_text("# One\n\nAnother film.\n")
    (folder / "b.md").unlink()
    index.sync(folder)
    yield "sync"
    index.writer.least_dead_rows = 12
    index.delete(list(range(10, 70)))
    yield "delete, which compacts"
    index.compact("float16")
    yield "compact"
    index.reembed(HashModel(16))
    yield "reembed"
    index.close()
    yield "close"
    with SearchIndex.open(disk / "notes.index", HashModel(16)) as index:
        index.add(["afterwards"])
        yield "add to an index opened again"
        index.backup(disk / "copy.index")
        yield "backup"
        index.export(disk / "vectors")
        yield "export"


def outputs(disk: Path, given: Path, tiny: str) -> Iterator[str]:
    """Write each kind of output, and yield its name once it is acknowledged; ``tiny`` is a small model."""
    rows = [{"id": str(n), "text": f"a {word} film {n}"} for n, word in enumerate(["good", "dull", "odd"] * 4)]
    (given / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (given / "more.jsonl").write_text("".join(json.dumps({**row, "text": "another"}) + "\n" for row in rows[:3]))
    (given / "labelled.tsv").write_text("".join(f"{'ab'[n % 2]}\t{row['text']}\n" for n, row in enumerate(rows * 5)))
    source, more, labelled = (str(given / name) for name in ("rows.jsonl", "more.jsonl", "labelled.tsv"))
    model = HashModel()
    for mode, name in (("create", source), ("upsert", more), ("append", labelled), ("overwrite", more)):
        build_index(name, disk / "built.index", model=model, mode=mode)
        yield f"index build, {mode}"
    (disk / "half.index.partial").mkdir()
    build_index(source, disk / "half.index", model=model)
    yield "index build over an interrupted one"
    merge_indexes([disk / "built.index", disk / "half.index"], disk / "merged.index", replace=True)
    yield "index merge"
    encode_dataset(source, disk / "parquet")
    yield "encode --to"
    encode_dataset(more, disk / "parquet")
    yield "encode --to again"
    with open_store(disk / "parquet") as store:
        ids = [row["id"] for row in rows]
        store.upsert(Batch(ids, ids, [{}] * len(ids), np.ones((len(ids), store.collection.dimension), np.float32)))
        yield "upsert to Parquet"
    for command in (
        *(f"encode {source} -o {disk}/encoded{suffix}" for suffix in (".npy", ".jsonl", ".csv", ".parquet")),
        f"encode {more} -o {disk}/encoded.npy --overwrite",
        f"dedupe {source} -o {disk}/unique.jsonl --groups {disk}/dropped.jsonl",
        f"train {labelled} -o {disk}/classifier --from {tiny} --frozen",
        f"train {labelled} -o {disk}/classifier --from {tiny} --frozen --no-words --overwrite",
        f"predict {disk}/classifier {source} -o {disk}/predicted.csv",
        f"explain film -o {disk}/explained.html",
    ):
        main(command.split(), standalone_mode=False)
        yield command.replace(str(disk), "")
    from ctx_embed.training.run import Checkpoint

    Checkpoint(disk / "training", "run").save({"epoch": 1})
    yield "a training's checkpoint"


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
    scenarios = [changes, *(partial(outputs, tiny=model) for model in models)]
    for scenario in scenarios:
        for name in scenario(work / "disk", work / "given"):
            mark(ord("a"), name.encode())
    os._exit(0)
