"""Kills at random moments: nothing that was acknowledged is lost, nothing deleted comes back."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from itertools import islice, product

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.building.build import build_index
from tests.index.support.child import ENVIRONMENT, child
from tests.index.support.hash_model import hash_vectors
from tests.index.support.killed import applied, states
from tests.index.support.stored import stored

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("factory", "kills"),
    [*product(["auto", "HNSW8"], [5]), *(pytest.param(f, 65, marks=SLOW) for f in ["auto", "HNSW8"])],
)
def test_kills_while_editing(tmp_path, hash_model, factory, kills):
    """Kill a process that adds, replaces, deletes and compacts; after each kill the index is what was acknowledged."""
    path = tmp_path / "index"
    SearchIndex.create(path, hash_model, factory).close()
    generator = random.Random(0)
    number, state = 0, {}
    for _ in range(kills):
        process = child("killed", "edits", path, number)
        for _ in range(generator.randint(1, 8)):
            assert int(process.stdout.readline()) == number
            state, number = applied(number, state), number + 1
        time.sleep(generator.random() * 0.05)
        process.kill()
        for line in process.communicate()[0].split():
            assert int(line) == number
            state, number = applied(number, state), number + 1
        present = stored(path)
        if present != state:
            # The operation that was under way at the kill is there completely or not at all.
            state, number = applied(number, state), number + 1
        assert present == state
    assert state == next(islice(states(), number, None))


@pytest.mark.parametrize("kills", [4, pytest.param(70, marks=SLOW)])
def test_kills_while_building(tmp_path, kills):
    """Kill a process that builds an index and then one that appends to it, until both are done; repeat."""
    generator = random.Random(1)
    source, more = tmp_path / "source.jsonl", tmp_path / "more.jsonl"
    rows = [{"id": f"s{number}", "text": f"text {number}"} for number in range(150)]
    extra = [{"text": f"more {number}"} for number in range(100)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more.write_text("".join(json.dumps(row) + "\n" for row in extra))
    first = {row["id"]: row["text"] for row in rows}
    both = first | {number: row["text"] for number, row in enumerate(extra)}
    done, round_number = 0, 0
    while done < kills:
        path = tmp_path / f"index{round_number}"
        partial = path.with_name(f"{path.name}.partial")
        for mode, given, before, after in (("create", source, None, first), ("append", more, first, both)):
            finished = False
            while not finished:
                process = child("killed", "build", given, path, mode)
                lines = []
                for _ in range(generator.randint(0, 6)):
                    lines.append(process.stdout.readline().strip())
                    if lines[-1].startswith("done"):
                        break
                time.sleep(generator.random() * 0.03)
                process.kill()
                assert process.wait() in (0, -9)
                lines += process.communicate()[0].split("\n")
                finished = any(line.startswith("done") for line in lines)
                done += not finished
                acknowledged = max((int(line) for line in lines if line.strip("-").isdigit()), default=-1)
                if path.exists():
                    present = stored(path)
                    assert present in ((before, after) if before is not None else (after,))
                    finished = finished or (present == after and mode == "create" and not partial.exists())
                if partial.exists() and (partial / "index.sqlite").exists():
                    kept = list(stored(partial).values())
                    assert kept == [row["text"] for row in (rows if mode == "create" else extra)][: len(kept)]
                    assert len(kept) >= acknowledged
            assert stored(path) == after
        assert not partial.exists()
        round_number += 1


KILLED_WHILE_CREATING = """
import os, signal, sys
from ctx_embed.index import search_index
from ctx_embed.index.building import build
from tests.index.support.hash_model import HashEmbedder
search_index.IndexModel.of = lambda *arguments: HashEmbedder()
search_index.DocumentStore.create = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
build.build_index(sys.argv[1], sys.argv[2])
"""


def test_a_kill_in_the_first_moment_of_a_build_leaves_nothing_for_long(tmp_path, hash_model):
    source, path = tmp_path / "source.txt", tmp_path / "index"
    source.write_text("one\n")
    # This is what a kill at the last moment of an earlier build leaves.
    (tmp_path / ".index.partial.removed" / "vectors").mkdir(parents=True)
    command = [sys.executable, "-c", KILLED_WHILE_CREATING, str(source), str(path)]

    assert subprocess.run(command, env=ENVIRONMENT, check=False).returncode == -9
    (left,) = {entry.name for entry in tmp_path.iterdir()} - {"source.txt"}
    assert left.startswith(".index.partial.")
    build_index(source, path, model=hash_model, resume=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["index", "source.txt"]


@pytest.mark.parametrize("factory", ["auto", "HNSW8"])
def test_a_reader_sees_whole_states_while_another_process_edits(tmp_path, hash_model, factory):
    path = tmp_path / "index"
    with SearchIndex.create(path, hash_model, factory) as index:
        process = child("killed", "edits", path, 0)
        try:
            process.stdout.readline()
            before, number, looks = states(), -1, 0
            state: dict[int, str] = {}
            end = time.monotonic() + 2
            while time.monotonic() < end or looks < 5:
                hits = index.search("a query", k=10_000, mode="dense")
                scores = hash_vectors([hit.text for hit in hits]) @ hash_vectors(["a query"])[0]
                np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-6)
                present = {hit.id: hit.text for hit in hits}
                assert len(present) == len(hits)
                # States appear in order, and each search sees one of them.
                while present != state:
                    state, number = next(before), number + 1
                    assert number < 5000
                looks += 1
        finally:
            process.kill()
            process.communicate()
        assert number > 3
