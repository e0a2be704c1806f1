"""Whole documents found by question: one embedding, passages, truncation, and words.

    OMP_NUM_THREADS=1 python benchmarks/longdocs.py --data DIR --work FOLDER [--set NAME]   # 20 minutes
    python benchmarks/longdocs.py --table | --plot            # of benchmarks/longdocs.json

A document joins 1, 2, ... 32, 1, 2, ... passages of one file of development pairs (abstracts, articles, sections of
law); a question or title must find the document that holds its passage. MiniLM reads 256 tokens: it gets the document
cut there, or in parts of 180 words, whose embeddings are averaged or of which the best one counts. Speed is words of
documents a processor second, with one thread. Needs the extra `peers`.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import FOLDER, drawn, rounded, store, stored, table
from development import HELD_OUT, Pool, pool, retrieval, shuffled
from numpy.typing import NDArray
from peers import distilled_static, write_words

from ctx_embed.eval.scoring.ranking import CUTOFF, ndcg
from ctx_embed.eval.scoring.statistics import mean_interval, paired_means
from ctx_embed.training.distillation.texts import read_pair_rows

STORED = Path(__file__).with_suffix(".json")
SETS = ("biomedicine", "encyclopaedia", "law")
PASSAGES, QUERIES, LONGEST = 3000, 300, 32
OUR_WORDS, MINILM_WORDS = 60, 180
OURS, BEST = "ours, one embedding", f"ours, best passage of {OUR_WORDS} words"

Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]
# Documents to the processor seconds of embedding them and a function from a query's vector to their scores.
Way = tuple[Encode, Callable[[Sequence[str]], tuple[float, Callable[[Vectors], Vectors]]]]


def unit(vectors: Any) -> Vectors:
    rows = np.asarray(vectors, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def whole(encode: Encode) -> Way:
    """One embedding of each document."""

    def embed(documents: Sequence[str]) -> tuple[float, Callable[[Vectors], Vectors]]:
        start = time.process_time()
        rows = unit(encode(documents))
        return time.process_time() - start, lambda query: rows @ query

    return encode, embed


def in_parts(encode: Encode, words: int, reduce: str) -> Way:
    """An embedding of each part of a document, whose mean or whose best cosine counts."""

    def embed(documents: Sequence[str]) -> tuple[float, Callable[[Vectors], Vectors]]:
        start = time.process_time()
        split = [document.split() for document in documents]
        parts = [[" ".join(each[at : at + words]) for at in range(0, max(len(each), 1), words)] for each in split]
        starts = np.cumsum([0, *map(len, parts)])[:-1]
        rows = unit(encode([part for each in parts for part in each]))
        if reduce == "mean":
            rows = unit(np.add.reduceat(rows, starts))
            return time.process_time() - start, lambda query: rows @ query
        return time.process_time() - start, lambda query: np.maximum.reduceat(rows @ query, starts)

    return encode, embed


def ways(work: Path) -> dict[str, Way]:
    """Return the ways by name."""
    from model2vec import StaticModel

    import ctx_embed
    from ctx_embed.numpy_model import Embedder

    ours, static = Embedder.load(), StaticModel.from_pretrained(distilled_static(work), normalize=True)
    minilm = ctx_embed.load("minilm", device="cpu")
    known: dict[str, Vectors] = {}

    def by_minilm(texts: Sequence[str]) -> Vectors:
        # The mean and the best of parts need the same embeddings.
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, minilm.encode(new, batch_size=16, show_progress_bar=True), strict=True))
        return np.stack([known[text] for text in texts])

    def by_ours(texts: Sequence[str]) -> Vectors:
        return np.asarray(ours.encode(list(texts)))

    def by_model2vec(texts: Sequence[str]) -> Vectors:
        return np.asarray(static.encode(list(texts), max_length=None))

    return {
        OURS: whole(by_ours),
        BEST: in_parts(by_ours, OUR_WORDS, "best"),
        "model2vec, one embedding": whole(by_model2vec),
        f"model2vec, best passage of {OUR_WORDS} words": in_parts(by_model2vec, OUR_WORDS, "best"),
        "MiniLM, its 256 tokens": whole(by_minilm),
        f"MiniLM, mean of parts of {MINILM_WORDS} words": in_parts(by_minilm, MINILM_WORDS, "mean"),
        f"MiniLM, best part of {MINILM_WORDS} words": in_parts(by_minilm, MINILM_WORDS, "best"),
    }


def scores(of: Pool, way: Way) -> tuple[list[float], float]:
    """Return nDCG@10 times 100 of each query, and the processor seconds of embedding the documents."""
    encode, embed = way
    seconds, cosines = embed(of.passages)
    found = []
    for query, relevant in zip(unit(encode(of.queries)), of.relevant, strict=True):
        best = np.argsort(-cosines(query), kind="stable")[:CUTOFF]
        found.append(100 * ndcg([float(int(place) in relevant) for place in best], [1.0] * len(relevant)))
    return found, seconds


def documents_of(data: Path, name: str) -> Pool:
    pairs = read_pair_rows(data / "pairs" / f"{HELD_OUT[name]}.jsonl.gz")
    passages = set(shuffled(pair[1] for pair in pairs)[:PASSAGES])
    found = pool([pair for pair in pairs if pair[1] in passages], LONGEST)
    return Pool(found.queries[:QUERIES], found.passages, found.relevant[:QUERIES])


def measure(names: Sequence[str], data: Path, work: Path) -> None:
    """Store a row for each way of each set, as soon as the set is done."""
    for name in names:
        rows: list[dict[str, Any]] = []
        of = documents_of(data, name)
        words = sum(len(document.split()) for document in of.passages)
        measured = {way: scores(of, each) for way, each in ways(work).items()}
        # Of BM25 the processor seconds in which SQLite writes an index of the words.
        start = time.process_time()
        write_words(of.passages)
        seconds = time.process_time() - start
        measured["BM25"] = retrieval(of, "words"), seconds
        for way, (each, seconds) in measured.items():
            low, high = mean_interval(each)
            row: dict[str, Any] = {"set": name, "way": way, "ndcg": statistics.mean(each), "low": low, "high": high}
            row["p"] = None if way == BEST else paired_means(each, measured[BEST][0]).p
            row |= {"documents": len(of.passages), "words": words, "queries": len(of.queries), "seconds": seconds}
            rows.append(row)
            print(f"{name}, {way}: {row['ndcg']:.1f}, {words / max(seconds, 1e-9):,.0f} words/s", file=sys.stderr)
        store(STORED, [row for row in stored(STORED) if row["set"] != name], rows)


def by_way() -> dict[str, dict[str, Any]]:
    """Return for each way its mean, the score in each set, and its words a second."""
    rows = stored(STORED)
    found: dict[str, dict[str, Any]] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        of = [row for row in rows if row["way"] == way]
        # The embeddings of the parts are computed once, for their mean.
        seconds = sum(row["seconds"] for row in of)
        if way.startswith("MiniLM, best"):
            seconds = sum(row["seconds"] for row in rows if row["way"].startswith("MiniLM, mean"))
        found[way] = {
            "mean": statistics.mean(row["ndcg"] for row in of),
            "speed": sum(row["words"] for row in of) / seconds,
        }
        found[way] |= {row["set"]: row for row in of}
    return found


def shown() -> str:
    """Return the table of docs/performance.md."""
    rows = []
    for way, of in by_way().items():
        cells = [
            f"{of[name]['ndcg']:.1f} ± {(of[name]['high'] - of[name]['low']) / 2:.1f}"
            + ("" if of[name]["p"] is None or of[name]["p"] < 0.05 else " =")
            for name in SETS
        ]
        rows.append([way, *cells, f"{of['mean']:.1f}", rounded(of["speed"])])
    return table(["way", *SETS, "mean", "words/s"], rows)


def plot() -> None:
    with drawn(Path(__file__).parents[1] / "docs" / "longdocs.svg") as axis:
        for way, of in by_way().items():
            colour = "tab:red" if way.startswith("ours") else "tab:blue"
            axis.plot(of["speed"], of["mean"], "o", color=colour, markersize=5)
            place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axis.annotate(way.replace(", ", "\n", 1), (of["speed"], of["mean"]), **place)
        axis.set_xscale("log")
        axis.set_xlabel("words of documents per processor second")
        axis.set_ylabel("nDCG@10, mean of three sets")
        axis.margins(0.2, 0.16)


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", type=FOLDER)
@click.option("--work", type=FOLDER, help="Keeps the model of model2vec.")
@click.option("--set", "names", multiple=True, type=click.Choice(SETS), default=SETS)
@click.option("--table", "printed", is_flag=True)
@click.option("--plot", "plotted", is_flag=True)
def main(data: Path | None, work: Path | None, names: tuple[str, ...], printed: bool, plotted: bool) -> None:
    if plotted:
        plot()
        return
    if not printed:
        if data is None or work is None:
            raise click.UsageError("--data and --work must name folders")
        measure(names, data, work)
    print(shown())


if __name__ == "__main__":
    main()
