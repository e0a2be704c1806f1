"""What the benchmarks share: data, alternating timings, medians, and their JSON and Markdown."""

from __future__ import annotations

import gzip
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

COLLECTIONS = ("cranfield", "cisi", "cacm", "npl")
data_option = click.option("--data", required=True, type=click.Path(path_type=Path), envvar="CTX_EMBED_DATA")
json_option = click.option("--json", "json_path", type=click.Path(path_type=Path))


def alternate(
    tasks: Mapping[str, Callable[[], Any]],
    runs: int = 5,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time tasks in turn, A B A B ..., so that changes of the machine's speed affect all of them equally.

    Returns:
        The seconds of each counted run by task.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for run in tqdm(range(warmups + runs), desc="runs", file=sys.stderr):
        for name, task in tasks.items():
            start = clock()
            task()
            if run >= warmups:
                seconds[name].append(clock() - start)
    return seconds


def summary(seconds: list[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "runs": len(seconds)}


def paired_ratio(slow: list[float], quick: list[float]) -> float:
    """Return the median of slow / quick over runs that were measured in pairs, one right after the other."""
    return statistics.median(a / b for a, b in zip(slow, quick, strict=True))


def best_batch_size(encode: Callable[[int], Any], sizes: tuple[int, ...]) -> int:
    """Return the fastest batch size. Each counts by the faster of two runs."""

    def quickest(size: int) -> float:
        encode(size)
        start = time.perf_counter()
        encode(size)
        return time.perf_counter() - start

    return min(sizes, key=quickest)


def environment() -> dict[str, Any]:
    """Return the versions and the number of threads, which every result records."""
    packages = ("ctx-embed", "numpy", "torch", "sentence-transformers", "tokenizers")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))),
        **{name: version(name) for name in packages},
    }


def processor() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def commit() -> str:
    """Return the commit of this source, with a plus if files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True).stdout.strip()


def rounded(value: float) -> str:
    """Return three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def stored(path: Path) -> list[dict[str, Any]]:
    """Return the stored rows; none if there is no such file."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def store(path: Path, kept: list[dict[str, Any]], measured: list[dict[str, Any]]) -> None:
    """Write the rows to keep and the measured ones, with where and with what these were measured; a line for each."""
    at = {"commit": commit(), "processor": processor(), **environment()}
    at.pop("threads")  # a row has its own, if they matter
    lines = [json.dumps(row, ensure_ascii=False) for row in [*kept, *({**row, **at} for row in measured)]]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table whose columns are the keys of the rows."""

    def cell(value: Any) -> str:
        return (
            f"{value:,.4g}"
            if isinstance(value, float) and abs(value) < 1000
            else f"{value:,.0f}"
            if isinstance(value, float)
            else str(value)
        )

    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def report(rows: list[dict[str, Any]], json_path: Path | None, **details: Any) -> None:
    """Print the table and write all measurements as JSON."""
    print(markdown(rows))
    if json_path is not None:
        content = {"environment": environment(), "rows": rows, **details}
        json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def corpus_sentences(data: Path, count: int) -> list[str]:
    """Return ``count`` sentences, sampled evenly from all files of the corpus, in random order."""
    lines: list[str] = []
    for path in sorted((data / "corpus").glob("*.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            lines += [line.rstrip("\n") for line in file]
    return random.Random(0).sample(lines, count)


def measured(command: list[str]) -> tuple[float, float, float, str]:
    """Return seconds, processor seconds, peak memory in MB and output of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: exit status {status}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output


def collection(data: Path, name: str) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    """Return the documents, the judged queries and the judgements of a collection in BEIR layout."""
    folder = data / "retrieval" / name

    def rows(file: str) -> Iterator[dict[str, Any]]:
        with (folder / file).open(encoding="utf-8", newline="\n") as lines:
            yield from map(json.loads, lines)

    documents = {row["_id"]: f"{row.get('title', '')} {row['text']}".strip() for row in rows("corpus.jsonl")}
    judged: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8", newline="\n") as lines:
        next(lines)
        for line in lines:
            query, document, grade = line.rstrip("\n").split("\t")
            judged.setdefault(query, {})[document] = int(grade)
    queries = {row["_id"]: row["text"] for row in rows("queries.jsonl") if row["_id"] in judged}
    return documents, queries, judged


def ndcg(found: list[str], grades: dict[str, int], k: int = 10) -> float:
    """Return nDCG@k with linear gains: the sum of grade / log2(rank + 1), divided by the sum for the ideal order."""
    gains = [max(grades.get(document, 0), 0) for document in found[:k]]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:k]

    def discounted(values: list[int]) -> float:
        return sum(value / math.log2(rank + 1) for rank, value in enumerate(values, 1))

    return discounted(gains) / discounted(ideal) if any(ideal) else 0.0
