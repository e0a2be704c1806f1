"""Write what a released version leaves on users' disks: python -m tests.versions.make VERSION.tar.gz, with its code.

Run it in a checkout of the version to keep, from which Python then imports ctx_embed; later versions must open the
archive, as test_versions.py tests.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

SENTENCES = [
    "the cat sat on the mat and looked at the dog",
    "a dog barked at the cat in the garden",
    "the film was a joy from the first scene to the last",
    "a dull film without one good idea",
    "rain fell on the garden and the house all night",
    "she reads a good book in the house",
    "the train to the city was late again",
    "prices in the city rise faster than wages",
]
COMMAND = [sys.executable, "-c", "from ctx_embed.cli.main import main; main()"]
TRAIN = ("--dimension", "16", "--rank", "4", "--steps", "2", "--vocabulary-size", "80")


def run(*arguments: object) -> None:
    subprocess.run([*COMMAND, *map(str, arguments)], check=True)


def interrupted(partial: Path, *arguments: object) -> None:
    """Run a command and interrupt it once it has written a checkpoint."""
    process = subprocess.Popen([*COMMAND, *map(str, arguments)])
    while not any(partial.rglob("*checkpoint*")):
        if process.poll() is not None:
            raise SystemExit(f"{arguments[0]} ended before it was interrupted")
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.wait()


def make(folder: Path) -> None:
    rows = [
        {"id": f"s{number}", "text": text, "label": "ab"[number % 2], "number": number, "day": f"2026-0{number + 1}-01"}
        for number, text in enumerate(SENTENCES)
    ]
    records = folder / "records.jsonl"
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    many = folder / "many.jsonl"
    many.write_text("".join(json.dumps(row | {"id": f"{n}"}) + "\n" for n in range(400) for row in rows))

    run("train", many, "-o", folder / "classifier", *TRAIN, "--epochs", "1")
    partial = folder / "unfinished.partial"
    interrupted(partial, "train", many, "-o", folder / "unfinished", *TRAIN, "--epochs", "400")
    many.unlink()

    run("index", "build", records, folder / "default.index")
    run("index", "build", records, folder / "sentences.index", "--chunk", "sentences")
    run("index", "build", records, folder / "hnsw.index", "--factory", "HNSW8")
    for dtype in ("float16", "int8"):
        run("index", "build", records, folder / f"{dtype}.index", "--dtype", dtype)
    run("index", "build", records, folder / "tiny.index", "--model", folder / "classifier")
    notes = folder / "notes"
    notes.mkdir()
    for number, text in enumerate(SENTENCES[:4]):
        (notes / f"{number}.md").write_text(f"# Note {number}\n\n{text}.\n")
    run("index", "build", notes, folder / "notes.index")
    run("encode", records, "--to", folder / "parquet")


if __name__ == "__main__":
    archive = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / archive.name.removesuffix(".tar.gz")
        made.mkdir()
        make(made)
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(made, made.name)
