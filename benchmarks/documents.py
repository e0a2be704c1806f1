"""Folders of files, passages against whole documents, near-duplicates, and vectors of each data type.

python benchmarks/documents.py folder --data DIR --work FOLDER [--files 50000] [--json FILE]
python benchmarks/documents.py passages --data DIR [--sizes "128 256"] [--json FILE]
python benchmarks/documents.py dedupe --data DIR --work FOLDER [--lines N] [--json FILE]
python benchmarks/documents.py vectors --data DIR --work FOLDER [--sentences N] [--json FILE]
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import os
import random
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import report
from index import HELD_OUT, collection, corpus_sentences, data_option, json_option, measured, ndcg, nearest_of_all
from tqdm import tqdm

from ctx_embed import SearchIndex
from ctx_embed.index.ann import nearest
from ctx_embed.index.view import View

CHANGED = 100
# Fraction of the files of each kind: notes of 5 to 60 sentences, reviews and news, and files of Python's packages.
SHARES = {"corpus": 0.5, "longdocs": 0.25, "installed": 0.25}
INSTALLED = (".py", ".md", ".rst", ".html", ".txt", ".json")

PLANTED_SHARE = 0.05
JUDGED = 1000
# A merge counts as wrong if the sentences share a smaller fraction of their words.
COMMON_WORDS = 0.7
work_option = click.option("--work", required=True, type=click.Path(path_type=Path), help="A folder for what is made.")


@click.group()
def main() -> None:
    pass


def _corpus(data: Path) -> Iterator[tuple[str, bytes]]:
    """Yield notes of consecutive sentences of the corpus, every third one as Markdown with headings."""
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
    """Yield the sources and documentation of this Python and its packages."""
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
    """Print nDCG@10 of whole documents and of their best passages on cranfield and cisi."""
    import tempfile

    rows: list[dict[str, Any]] = []
    for name in tqdm(("cranfield", "cisi")):
        documents, queries, judged = collection(data, name)
        with (data / "retrieval" / name / "corpus.jsonl").open(encoding="utf-8", newline="\n") as lines:
            titles = [{"title": row.get("title", "")} for row in map(json.loads, lines)]
        row: dict[str, Any] = {"collection": name}
        for chunk in ("none", *(f"passages:{size}" for size in sizes.split())):
            with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "i", chunk=chunk) as index:
                index.add(list(documents.values()), list(documents), titles)
                found = index.search(list(queries.values()), k=10, mode="dense", group="id")
                ranked = zip(queries, found, strict=True)
                scores = [ndcg([str(hit.id) for hit in hits], judged[query]) for query, hits in ranked]
            row[chunk] = 100 * float(np.mean(scores))
        rows.append(row)
    report(rows, json_path)


def other_case(text: str, generator: random.Random) -> str:
    return generator.choice([text.upper(), text.lower(), text.title()])


def other_punctuation(text: str, generator: random.Random) -> str:
    return generator.choice(
        [f'"{text}"', text.rstrip(".!?"), text.replace(" ", "  ", 2), text.replace(",", " -") + "!"]
    )


def typing_error(text: str, generator: random.Random) -> str:
    """Return the text with a letter left out, doubled or swapped with the next."""
    places = [place for place in range(len(text) - 1) if text[place : place + 2].isalpha()]
    if not places:
        return text
    place = generator.choice(places)
    first, second = text[place], text[place + 1]
    return text[:place] + generator.choice([second, first + first + second, second + first]) + text[place + 2 :]


def other_word(text: str, generator: random.Random) -> str:
    """Return the text without a short word, or with a filler word added."""
    words = text.split()
    short = [place for place, word in enumerate(words) if len(word) <= 4 and word.isalpha()]
    if short and generator.random() < 0.5:
        del words[generator.choice(short)]
    else:
        words.insert(generator.randrange(len(words)), generator.choice(["also", "really", "now", "the"]))
    return " ".join(words)


EDITS: dict[str, Callable[[str, random.Random], str]] = {
    "case": other_case,
    "punctuation": other_punctuation,
    "typing error": typing_error,
    "word": other_word,
}


@main.command()
@data_option
@work_option
@click.option("--lines", default=1_000_000, show_default=True)
@click.option("--threshold", help="As of `ctx-embed dedupe`.")
@json_option
def dedupe(data: Path, work: Path, lines: int, threshold: str | None, json_path: Path | None) -> None:
    """Print the time, memory, copies found and wrong merges for sentences of which one in twenty is an edited copy."""
    work.mkdir(exist_ok=True)
    generator = random.Random(0)
    planted = round(PLANTED_SHARE * lines)
    texts = corpus_sentences(data, lines - planted)
    # Put each copy at a random place after its original.
    order = [(float(place), place, "") for place in range(len(texts))]
    for number, place in enumerate(generator.sample(range(len(texts)), planted)):
        order.append((generator.uniform(place, len(texts)), place, list(EDITS)[number % len(EDITS)]))
    order.sort()
    row_of = {place: row for row, (_, place, kind) in enumerate(order) if not kind}
    rows = [EDITS[kind](texts[place], generator) if kind else texts[place] for _, place, kind in order]
    pairs = [(row_of[place], row, kind) for row, (_, place, kind) in enumerate(order) if kind]
    (work / "lines.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    # Let the process read its own peak: getrusage would include the memory of this process, its parent.
    peak_of = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    program = f"import atexit; atexit.register(lambda: {peak_of}); from ctx_embed.cli.main import main; main()"
    command = [sys.executable, "-c", program, "dedupe", str(work / "lines.txt"), "-o", str(work / "unique.txt")]
    command += ["--groups", str(work / "groups.jsonl"), *(["--threshold", threshold] if threshold else [])]
    seconds, processor, _, output = measured(command)
    leader: dict[int, int] = {}
    with (work / "groups.jsonl").open(encoding="utf-8") as file:
        for group in map(json.loads, file):
            leader |= {member["row"] - 1: group["kept"]["row"] - 1 for member in group["dropped"]}
    facts: dict[str, Any] = {
        "lines": len(rows),
        "seconds": seconds,
        "processor seconds": processor,
        "peak MB": int(output.split()[-1]) / 1024,
        "dropped": len(leader),
    }
    for kind in EDITS:
        # A pair is missed only if both rows are kept: if the original is dropped, its copy may resemble another row.
        found = [left in leader or right in leader for left, right, edit in pairs if edit == kind]
        facts[f"found, {kind}"] = float(np.mean(found))
    facts["found"] = float(np.mean([left in leader or right in leader for left, right, _ in pairs]))
    copies = {row for _, row, _ in pairs}
    natural = sorted(row for row in leader if row not in copies)
    judged = random.Random(1).sample(natural, min(JUDGED, len(natural)))
    shares = [common_words(rows[row], rows[leader[row]]) for row in judged]
    facts |= {"natural": len(natural), "merged wrongly": float(np.mean([share < COMMON_WORDS for share in shares]))}
    for row, share in zip(judged, shares, strict=True):
        if share < COMMON_WORDS:
            print(f"{share:.2f}\t{rows[row]}\t{rows[leader[row]]}", file=sys.stderr)
    report([facts], json_path)


def common_words(left: str, right: str) -> float:
    words = [["".join(filter(str.isalnum, word)) for word in text.casefold().split()] for text in (left, right)]
    return difflib.SequenceMatcher(None, *words, autojunk=False).ratio()


def nearest_rows(view: View, queries: Any) -> list[list[int]]:
    """Return the ten nearest rows to each query, as a search finds them."""
    return [[row for _, row in of] for of in nearest.search(view, queries, 10)]


@main.command()
@data_option
@work_option
@click.option("--sentences", default=200_000, show_default=True)
@json_option
def vectors(data: Path, work: Path, sentences: int, json_path: Path | None) -> None:
    """Print size, recall@10 and milliseconds a search of one index stored as float32, float16 and int8."""
    shutil.rmtree(work, ignore_errors=True)
    texts = corpus_sentences(data, sentences + HELD_OUT)
    rows: list[dict[str, Any]] = []
    with SearchIndex.create(work) as index:
        index.add(texts[:sentences])
        queries = index.embedder.queries(texts[sentences:])
        truth = [set(of) for of in index._folder.read(lambda view: nearest_of_all(view, queries))]
        for dtype in ("float32", "float16", "int8"):
            start = time.process_time()
            index.compact(dtype)
            row: dict[str, Any] = {"dtype": dtype, "rewriting, processor s": time.process_time() - start}
            row["faiss, bytes a passage"] = sum(file.stat().st_size for file in work.glob("*.faiss")) / sentences
            row["index, bytes a passage"] = index.describe()["bytes"] / sentences
            for name, search in (("exact", nearest_of_all), ("auto", nearest_rows)):
                found = index._folder.read(lambda view, search=search: search(view, queries))
                pairs = zip(found, truth, strict=True)
                row[f"recall@10, {name}"] = sum(len(set(of) & right) for of, right in pairs) / (10 * len(queries))
                times = []
                for query in queries[:100]:
                    start = time.process_time()
                    index._folder.read(lambda view, search=search, query=query: search(view, query[None]))
                    times.append((time.process_time() - start) * 1000)
                row[f"p50 processor ms, {name}"] = float(np.median(times))
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    report(rows, json_path)


if __name__ == "__main__":
    main()
