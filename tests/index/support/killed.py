"""Child process that is killed: edit an index or build one, and report what is stored.

Usage: killed.py edits INDEX FIRST, or killed.py build SOURCE INDEX MODE, or killed.py dies SOURCE INDEX MODE, which is
a build that ends when it creates its index.
"""

import os
import random
import signal
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

from ctx_embed.index import build, search_index, writer
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.search_index import SearchIndex
from tests.index.support.hash_model import HashEmbedder

KINDS = ("add", "add", "upsert", "delete", "compact")


def operation(number: int, state: dict[int, str]) -> tuple[str, dict[int, str]]:
    """Return the kind of the operation with a number, and the texts that it adds or the ids that it deletes."""
    generator = random.Random(number)
    kind = generator.choice(KINDS)
    if kind == "add":
        return kind, {1000 * number + place: f"text {number} {place}" for place in range(generator.randint(1, 8))}
    chosen = generator.sample(sorted(state), min(len(state), generator.randint(1, 6)))
    return kind, {identifier: f"new {number} of {identifier}" for identifier in chosen}


def applied(number: int, state: dict[int, str]) -> dict[int, str]:
    """Return the texts by id after an operation, from a plain dictionary."""
    kind, changed = operation(number, state)
    if kind == "delete":
        return {identifier: text for identifier, text in state.items() if identifier not in changed}
    return state if kind == "compact" else {**state, **changed}


def states() -> Iterator[dict[int, str]]:
    """Return the texts by id before each operation."""
    state: dict[int, str] = {}
    for number in count():
        yield state
        state = applied(number, state)


def edit(path: str, first: int) -> None:
    """Run the operations from number ``first`` on, and print the number of each one when it is done."""
    index = SearchIndex(IndexFolder(path), HashEmbedder())
    # Low enough for deletions to compact.
    index.writer.least_dead_rows = 12
    for number, state in enumerate(islice(states(), first, None), first):
        kind, changed = operation(number, state)
        if kind == "delete":
            index.delete(list(changed))
        elif kind == "compact":
            index.compact()
        else:
            getattr(index, kind)(list(changed.values()), list(changed))
        print(number, flush=True)


def model(*arguments, **options) -> HashEmbedder:
    """A stand-in for :meth:`ctx_embed.model.Model.of` that imports nothing slow."""
    return HashEmbedder()


def run_build(source: str, path: str, mode: str) -> None:
    """Build an index with --resume, in small steps, and print the number of documents at each commit."""
    search_index.Model.of = search_index.model_for = model
    record = build.record
    committed = [-1]

    def reported(store, run) -> None:
        print(committed[-1], flush=True)
        committed.append(run.documents)
        record(store, run)

    build.record = reported
    writer.STEP_DOCUMENTS, writer.BATCH_DOCUMENTS = 12, 4
    factory = "HNSW8" if mode == "create" else None
    build.build_index(source, path, mode=mode, resume=True, factory=factory)


if __name__ == "__main__":
    if sys.argv[1] == "edits":
        edit(sys.argv[2], int(sys.argv[3]))
    else:
        if sys.argv[1] == "dies":
            search_index.Database.create = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        run_build(*sys.argv[2:])
        print("done", Path(sys.argv[3]).name, flush=True)
