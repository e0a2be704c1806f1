"""One write, fsync or rename of a command fails, or the power does: each output is old or new, and whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ctx_embed import SearchIndex

ROOT = Path(__file__).parents[2]
TRAINING = "--dimension 8 --steps 1 --rank 2 --vocabulary-size 80"
QUICK = ["index build more.jsonl notes.index --upsert", "encode rows.jsonl --to parquet"]
COMMANDS = [
    *QUICK,
    "index sync files files.index",
    "index build rows.jsonl new.index",
    "index build another.jsonl notes.index --append",
    "index build more.jsonl notes.index --overwrite",
    "index delete notes.index 3 5",
    "index set notes.index 3 -m year=5",
    "index compact notes.index",
    "index merge notes.index other.index -o both.index",
    "index reembed notes.index --model ../tiny",
    "index export notes.index vectors",
    "encode rows.jsonl -o vectors.npy",
    "dedupe rows.jsonl -o unique.jsonl --groups dropped.jsonl",
]
TRAININGS = [
    f"train labelled.tsv -o classifier --from scratch {TRAINING} --epochs 1",
    f"distill texts.txt -o student --teacher ../tiny {TRAINING} --epochs 1 --batch-size 8",
]


@pytest.fixture(scope="session")
def work(tmp_path_factory, tiny_model) -> Path:
    """A folder with a model, and a folder ``before`` with indexes and texts."""
    work = tmp_path_factory.mktemp("work")
    tiny_model.save_pretrained(str(work / "tiny"))
    before = work / "before"
    (before / "files").mkdir(parents=True)
    rows = [{"id": n, "text": f"a {word} film {n}", "year": n} for n, word in enumerate(["good", "dull", "odd"] * 4)]
    more = [{"id": n, "text": f"another film {n}"} for n in range(10, 15)]
    another = [{"text": "yet another film"}]
    for name, found in (("rows", rows), ("more", more), ("another", another)):
        (before / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    (before / "labelled.tsv").write_text("".join(f"{'ab'[row['id'] % 2]}\t{row['text']}\n" for row in rows * 5))
    (before / "texts.txt").write_text("".join(f"{row['text']}\n" for row in rows * 5))
    with SearchIndex.create(before / "notes.index") as index:
        index.add([row["text"] for row in rows[:11]], [row["id"] for row in rows[:11]], [{"year": 1}] * 11)
        index.delete([0])
    with SearchIndex.create(before / "other.index") as index:
        index.add(["the other film"], ["other"])
    (before / "files" / "a.md").write_text("# One\n\nA film.\n")
    (before / "files" / "b.md").write_text("# Two\n\nA book.\n")
    build = [sys.executable, "-m", "ctx_embed", "index", "build", "files", "files.index"]
    subprocess.run(build, check=True, cwd=before, capture_output=True)
    (before / "files" / "a.md").write_text("# One\n\nAnother film.\n")
    (before / "files" / "b.md").unlink()
    (before / "files" / "c.md").write_text("# Three\n\nA song.\n")
    return work


def states(kinds: str, library: Path, work: Path, most: int, command: str) -> list[list[int]]:
    """Return for each kind the states that were left: their number, and those before the command and after it."""
    arguments = [sys.executable, "-m", "tests.helpers.faulty", kinds, work, most, *command.split()]
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(list(map(str, arguments)), env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return [list(map(int, line.split())) for line in process.stdout.splitlines()]


@pytest.mark.parametrize(("kinds", "command"), [("errors,power", QUICK[0]), ("errors,memory", QUICK[1])])
def test_a_fault_leaves_one_state_or_the_other(faults_library, work, kinds, command):
    found = states(kinds, faults_library, work, 2, command)
    assert all(tried >= 2 for tried, _, _ in found)
    assert all(before > 0 for _, before, _ in found)


# Every call fails once, the power is cut before every call, allocations fail.
FAULTS = [
    ("errors", 10**6, 1, COMMANDS),
    ("power", 10**6, 3, COMMANDS),
    ("memory", 30, 10, [*COMMANDS, "index query notes.index film"]),
    *((kind, 30, 10, TRAININGS) for kind in ("errors", "power", "memory")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "most", "least", "command"), [(*fault, command) for *fault, commands in FAULTS for command in commands]
)
def test_faults_of_every_kind(faults_library, work, kind, most, least, command):
    assert states(kind, faults_library, work, most, command)[0][0] > least


@pytest.mark.parametrize("moments", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", TRAININGS)
def test_a_killed_training_resumes_to_the_same_weights(faults_library, work, command, moments):
    longer = command.replace("--epochs 1", "--epochs 3")
    assert states("kills", faults_library, work, moments, longer)[0][0] == moments
