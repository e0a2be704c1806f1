"""Folders of files: the first build and the second run; and passages against whole documents.

python benchmarks/documents.py folder --data DIR --work FOLDER [--files 50000] [--json FILE]
python benchmarks/documents.py passages --data DIR [--sizes "128 256"] [--json FILE]
"""

from __future__ import annotations

import csv
import gzip
import os
import random
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import report
from index import collection, data_option, json_option, measured, ndcg
from tqdm import tqdm

from ctx_embed import SearchIndex

CHANGED = 100
# Shares of the files: notes of 5 to 60 sentences, reviews and news, and what Python's packages bring.
SHARES = {"corpus": 0.5, "longdocs": 0.25, "installed": 0.25}
INSTALLED = (".py", ".md", ".rst", ".html", ".txt", ".json")


@click.group()
def main() -> None:
    pass


def _corpus(data: Path) -> Iterator[tuple[str, bytes]]:
    """Notes of sentences that follow each other in the corpus, every third one as Markdown with headings."""
    generator = random.Random(0)
    paths = sorted((data / "corpus").glob("*.gz"))
    files = [gzip.open(path, "rt", encoding="utf-8", newline="\n") for path in paths]  # noqa: SIM115
    for number, file in enumerate(cycle(files), 1):
        paragraphs = [" ".join(line.strip() for line in islice(file, 5)) for _ in range(generator.randint(1, 12))]
        if not any(paragraphs):
            file.seek(0)
        elif number % 3:
            yield f"{number}.txt", "\n\n".join(paragraphs).encode()
        else:
            yield f"{number}.md", "\n\n".join(f"## Part {at}\n\n{text}" for at, text in enumerate(paragraphs)).encode()


def _longdocs(data: Path) -> Iterator[tuple[str, bytes]]:
    number = 0
    for path in sorted((data / "longdocs").glob("*.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                number += 1
                yield f"{number}.txt", row[-1].encode()


def _installed() -> Iterator[tuple[str, bytes]]:
    """The sources and documentation of this Python and its packages."""
    for top in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/usr/share/doc"):
        for folder, inner, names in os.walk(top):
            inner.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if name.endswith(INSTALLED) and path.is_file() and 0 < path.stat().st_size < 200_000:
                    yield f"{path.parent.name}.{name}", path.read_bytes()


def make_folder(data: Path, folder: Path, files: int) -> int:
    """Write a folder of mixed files, 500 in each subfolder, and return its bytes."""
    size = 0
    for kind, found in (("corpus", _corpus(data)), ("longdocs", _longdocs(data)), ("installed", _installed())):
        for number, (name, content) in enumerate(islice(found, round(files * SHARES[kind]))):
            path = folder / kind / str(number // 500) / f"{number}-{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            size += len(content)
    return size


@main.command()
@data_option
@click.option("--work", required=True, type=click.Path(path_type=Path), help="A folder with 3 GB of space.")
@click.option("--files", default=50_000, show_default=True)
@json_option
def folder(data: Path, work: Path, files: int, json_path: Path | None) -> None:
    """Time the first build of a folder and a second run after 100 files have changed, each in its own process."""
    source, index = work / f"{files} files", work / f"{files}.index"
    if not source.exists():
        make_folder(data, source, files)
    found = sorted(path for path in source.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in found)
    shutil.rmtree(index, ignore_errors=True)
    command = [sys.executable, "-m", "ctx_embed", "index", "build", str(source), str(index)]
    rows: list[dict[str, Any]] = []
    for run in ("first build", f"second run, {CHANGED} files changed", "third run, nothing changed"):
        if run.startswith("second"):
            stamp = f"\n\nChanged at {time.time()}.\n".encode()
            for path in random.Random(0).sample([path for path in found if path.suffix in (".txt", ".md")], CHANGED):
                with path.open("ab") as file:
                    file.write(stamp)
        load = os.getloadavg()[0]
        seconds, processor, peak, output = measured(command)
        rows.append({"run": run, "seconds": seconds, "processor s": processor, "peak MB": peak, "load before": load})
        print(output.strip(), file=sys.stderr)
    report(rows, json_path, files=len(found), bytes=size)


@main.command()
@data_option
@click.option("--sizes", default="64 128 256", show_default=True, help="Tokens of a passage.")
@json_option
def passages(data: Path, sizes: str, json_path: Path | None) -> None:
    """nDCG@10 of whole documents and of their best passages, on cranfield and cisi."""
    import tempfile

    rows: list[dict[str, Any]] = []
    for name in tqdm(("cranfield", "cisi")):
        documents, queries, judged = collection(data, name)
        row: dict[str, Any] = {"collection": name}
        for chunk in ("none", *(f"passages:{size}" for size in sizes.split())):
            with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "i", chunk=chunk) as index:
                index.add(list(documents.values()), list(documents))
                scores = []
                # Enough passages that ten documents are among them.
                for query, hits in zip(queries, index.search(list(queries.values()), k=100), strict=True):
                    ranked = list(dict.fromkeys(str(hit.id) for hit in hits))[:10]
                    scores.append(ndcg(ranked, judged[query]))
            row[chunk] = 100 * float(np.mean(scores))
        rows.append(row)
    report(rows, json_path)


if __name__ == "__main__":
    main()
