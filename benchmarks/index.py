"""The search index at size, and its three modes on retrieval collections.

python benchmarks/index.py million --data DIR --work FOLDER [--sentences N] [--kinds "SQ8 HNSW32"] [--json FILE]
python benchmarks/index.py retrieval --data DIR [--json FILE]
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import faiss
import numpy as np
from common import report
from tqdm import tqdm

from ctx_embed import SearchIndex
from ctx_embed.index.ann import nearest
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.view import View

HELD_OUT = 1000
KINDS = "SQ8 IVF4096,Flat IVF4096,PQ64 HNSW16,SQ8 HNSW32"
COLLECTIONS = ("cranfield", "cisi", "cacm", "npl")
MODES = ("dense", "words", "hybrid")
data_option = click.option("--data", required=True, type=click.Path(path_type=Path), envvar="CTX_EMBED_DATA")
json_option = click.option("--json", "json_path", type=click.Path(path_type=Path))


@click.group()
def main() -> None:
    pass


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


@main.command()
@data_option
@click.option("--work", required=True, type=click.Path(path_type=Path), help="A folder with 7 GB of space.")
@click.option("--sentences", default=1_000_000, show_default=True)
@click.option("--kinds", default=KINDS, show_default=True, help="FAISS factory strings measured beside auto.")
@json_option
def million(data: Path, work: Path, sentences: int, kinds: str, json_path: Path | None) -> None:
    """Measure build rate, sizes, memory, latency and recall, each step in a process of its own.

    Repeat the command with the same folder, perhaps with other kinds, to reuse what is built.
    """
    work.mkdir(exist_ok=True)
    texts, index = work / "sentences.txt", work / "auto.index"
    drawn = corpus_sentences(data, sentences + HELD_OUT)
    texts.write_text("\n".join(drawn[:sentences]) + "\n", encoding="utf-8")
    (work / "queries.json").write_text(json.dumps(drawn[sentences:]), encoding="utf-8")
    del drawn
    script = [sys.executable, __file__]
    built = build(work / "built.json", texts, index, sentences)
    print(json.dumps(built), file=sys.stderr)
    sizes = {part: sum(file.stat().st_size for file in index.glob(part)) / 1e6 for part in ("index.sqlite", "*.faiss")}
    rows: list[dict[str, Any]] = []
    for kind in (["auto"], ["auto", "--memory-map"], *([name] for name in kinds.split())):
        *_, output = measured([*script, "measure", str(work), *kind])
        rows.append({"kind": " ".join(kind), **json.loads(output)})
        print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps(built | {"MB": sizes}, indent=2))
    names = dict.fromkeys(name for row in rows for name in row)
    report([{name: row.get(name, "") for name in names} for row in rows], json_path, build=built, megabytes=sizes)


def build(record: Path, texts: Path, index: Path, sentences: int) -> dict[str, float]:
    """Measure the time and memory of building the index, once."""
    if record.exists():
        built: dict[str, float] = json.loads(record.read_text(encoding="utf-8"))
        if built["sentences"] != sentences:
            raise SystemExit(f"{record.parent}: holds {built['sentences']} sentences, name another folder")
        return built
    program = "from ctx_embed.cli.main import main; main()"
    command = [sys.executable, "-c", program, "index", "build", str(texts), str(index), "--overwrite"]
    seconds, processor, peak, _ = measured(command)
    built = {
        "sentences": sentences,
        "seconds": seconds,
        "processor seconds": processor,
        "sentences a processor second": sentences / processor,
        "peak MB": peak,
    }
    record.write_text(json.dumps(built), encoding="utf-8")
    return built


@main.command(hidden=True)
@click.argument("work", type=click.Path(path_type=Path))
@click.argument("kind")
@click.option("--memory-map", is_flag=True)
def measure(work: Path, kind: str, memory_map: bool) -> None:
    """Measure one kind of index: latency of searches with embedded queries, and recall@10 against exact search."""
    faiss.omp_set_num_threads(1)
    queries = json.loads((work / "queries.json").read_text(encoding="utf-8"))
    index = SearchIndex.open(work / "auto.index", memory_map=memory_map)
    start = time.perf_counter()
    vectors = index.embedder.queries(queries)
    embedding = (time.perf_counter() - start) * 1000 / len(queries)
    known = dict(zip(queries, vectors, strict=True))
    index.embedder.queries = lambda texts: np.stack([known[text] for text in texts])  # type: ignore[method-assign]
    facts: dict[str, Any] = {"embedding ms": embedding}
    if kind != "auto":
        index, own = with_kind(index, work, kind)
        facts |= own
    index.search(queries[:5], mode="dense")
    for batch in (1, 64):
        times, processor = [], []
        for first in range(0, len(queries) - batch + 1, batch):
            start, used = time.perf_counter(), time.process_time()
            index.search(queries[first : first + batch], mode="dense")
            times.append((time.perf_counter() - start) * 1000)
            processor.append((time.process_time() - used) * 1000)
        for quantile in (50, 95, 99):
            facts[f"batch {batch} p{quantile} ms"] = float(np.percentile(times, quantile))
        # Other programs on the machine change processor time less.
        facts[f"batch {batch} p50 processor ms"] = float(np.percentile(processor, 50))
    if kind == "auto":
        # A word is slower to search for the first time, so each mode has its own queries; "hybrid again" repeats some.
        for name, mode, first in (("words", "words", 200), ("hybrid", "hybrid", 400), ("hybrid again", "hybrid", 400)):
            times = []
            for query in queries[first : first + 200]:
                start = time.perf_counter()
                index.search(query, mode=mode)
                times.append((time.perf_counter() - start) * 1000)
            for quantile in (50, 99):
                facts[f"{name} p{quantile} ms"] = float(np.percentile(times, quantile))
    facts["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    exact = index._folder.read(lambda view: nearest_of_all(view, vectors))
    facts |= {name: value for name, value in (index.describe()["faiss"] or {}).items() if name in ("effort", "spare")}
    hits = index.search(queries, mode="dense")
    found = sum(len({hit.id for hit in of} & set(truth)) for of, truth in zip(hits, exact, strict=True))
    facts["recall@10"] = found / (10 * len(queries))
    print(json.dumps(facts))


def nearest_of_all(view: View, queries: Any, k: int = 10) -> list[list[int]]:
    """Return the k nearest rows to each query, after comparing all."""
    found = zip(queries, nearest.compared(view, queries, k, None), strict=True)
    return [[row for _, row in nearest.ranking(view, query, rows, k)] for query, rows in found]


def with_kind(index: SearchIndex, work: Path, kind: str) -> tuple[SearchIndex, dict[str, Any]]:
    """Return a copy of an index with a FAISS index of another kind over the same vectors, and the cost of making it."""
    path = work / f"{kind.replace(',', '-')}.index"
    if not path.exists():
        index.backup(path)
    with closing(DocumentStore(path / "index.sqlite")) as store, store.writing():
        store.store_settings(replace(store.present(), factory=kind))
    other = SearchIndex.open(path)
    other.embedder.queries = index.embedder.queries  # type: ignore[method-assign]
    start = time.perf_counter()
    with closing(DocumentStore(path / "index.sqlite")) as store:
        other.writer.tidy(store, anew=True)
    size = sum(file.stat().st_size for file in path.glob("*.faiss")) / 1e6
    return other, {"FAISS build s": time.perf_counter() - start, "FAISS MB": size}


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


@main.command()
@data_option
@click.option("--model", help="Instead of the default model.")
@json_option
def retrieval(data: Path, model: str | None, json_path: Path | None) -> None:
    """Return nDCG@10 of each mode on four collections."""
    import tempfile

    rows: list[dict[str, Any]] = []
    for name in tqdm(COLLECTIONS):
        documents, queries, judged = collection(data, name)
        with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index", model) as index:
            index.add(list(documents.values()), list(documents))
            row: dict[str, Any] = {"collection": name}
            for mode in MODES:
                found = index.search(list(queries.values()), mode=mode)
                pairs = zip(queries, found, strict=True)
                scores = [ndcg([str(hit.id) for hit in hits], judged[query]) for query, hits in pairs]
                row[mode] = float(np.mean(scores))
            rows.append(row)
    rows.append({"collection": "mean", **{mode: float(np.mean([row[mode] for row in rows])) for mode in MODES}})
    report(rows, json_path)


if __name__ == "__main__":
    main()
