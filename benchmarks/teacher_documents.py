"""Documents embedded by a teacher, queries by ours: nDCG@10 of hybrid search with and without them.

    python benchmarks/teacher_documents.py --data DIR --cache DIR [--sets "health questions, law"] [--json FILE]

A document's vector is unit(unit(W t(text)) + ours), W (384 x 320) by ridge regression on 16,000 sentences of the corpus
that both models embed. The teacher reads a document in pieces of 180 words. ``--sets`` adds sets of the development
set, with at most 4,000 passages each. The teacher's embeddings take half an hour, and are kept in ``--cache``.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import development
import numpy as np
from common import COLLECTIONS, collection, corpus_sentences, data_option, json_option, ndcg, report
from numpy.typing import NDArray

from ctx_embed import SearchIndex, load
from ctx_embed.eval.scoring.statistics import paired_means
from ctx_embed.training.distillation.texts import read_pair_rows
from ctx_embed.vectors import unit_rows

Vectors = NDArray[np.float32]
SENTENCES, PASSAGES, PIECE_WORDS, RIDGE = 16_000, 4_000, 180, 1e-3


def embedded_by(teacher: Any, texts: list[str], cache: Path) -> Vectors:
    """Return unit vectors (texts, d) of texts, each the mean of its pieces'; stored, as they take long."""
    path = cache / f"{hashlib.sha256(chr(0).join(texts).encode()).hexdigest()[:20]}.npy"
    if not path.exists():
        pieces, owners = [], []
        for place, text in enumerate(texts):
            words = text.split()
            for first in range(0, max(1, len(words)), PIECE_WORDS):
                pieces.append(" ".join(words[first : first + PIECE_WORDS]))
                owners.append(place)
        vectors = teacher.encode(pieces, normalize_embeddings=True, show_progress_bar=True)
        sums = np.zeros((len(texts), vectors.shape[1]), np.float32)
        np.add.at(sums, owners, vectors)
        np.save(path, unit_rows(sums))
    found: Vectors = np.load(path)
    return found


def scores(texts: list[str], queries: list[str], grades: list[dict[str, int]], vectors: Vectors) -> dict[str, Any]:
    """Return nDCG@10 times 100 of each query, for each kind of search."""
    found = {}
    with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index") as index:
        index.add(texts, list(map(str, range(len(texts)))), embeddings=vectors)
        for kind, options in {"late=False": {"late": False}, "hybrid": {}}.items():
            ranked = index.search(queries, mode="hybrid", **options)
            found[kind] = [100 * ndcg([hit.id for hit in hits], of) for hits, of in zip(ranked, grades, strict=True)]
    return found


@click.command()
@data_option
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--sets", default="", help="Sets of the development set, with commas between them.")
@json_option
def main(data: Path, cache: Path, sets: str, json_path: Path | None) -> None:
    """Print a row for each collection and set."""
    cache.mkdir(exist_ok=True)
    teacher, ours = load("minilm"), load()
    encode: Callable[[list[str]], Vectors] = lambda texts: ours.encode(texts, normalize_embeddings=True)  # noqa: E731
    sentences = corpus_sentences(data, SENTENCES)
    read = embedded_by(teacher, sentences, cache)
    squares = read.T @ read + RIDGE * len(read) / read.shape[1] * np.eye(read.shape[1])
    bridge = np.linalg.solve(squares, read.T @ encode(sentences)).astype(np.float32)
    trials: dict[str, tuple[list[str], list[str], list[dict[str, int]]]] = {}
    for name in COLLECTIONS:
        documents, queries, judged = collection(data, name)
        places = {document: str(place) for place, document in enumerate(documents)}
        grades = [{places[of]: grade for of, grade in judged[query].items() if of in places} for query in queries]
        trials[name] = list(documents.values()), list(queries.values()), grades
    development.MOST_PASSAGES = PASSAGES
    for name in filter(None, map(str.strip, sets.split(","))):
        of = development.pool(read_pair_rows(data / "pairs" / f"{development.HELD_OUT[name]}.jsonl.gz"))
        trials[name] = of.passages, of.queries, [{str(place): 1 for place in places} for places in of.relevant]
    rows: list[dict[str, Any]] = []
    every: dict[str, tuple[list[float], list[float]]] = {"late=False": ([], []), "hybrid": ([], [])}
    for name, (texts, asked, graded) in trials.items():
        own = encode(texts)
        both = unit_rows(unit_rows(embedded_by(teacher, texts, cache) @ bridge) + own)
        before, after = scores(texts, asked, graded, own), scores(texts, asked, graded, both)
        row: dict[str, Any] = {"set": name}
        for kind, (old, new) in every.items():
            old += before[kind]
            new += after[kind]
            row |= {kind: np.mean(before[kind]), f"{kind}, by the teacher": np.mean(after[kind])}
            row[f"p, {kind}"] = paired_means(after[kind], before[kind]).p
        rows.append(row)
        if name == COLLECTIONS[-1]:
            row = {"set": "mean of the four"}
            for kind, (old, new) in every.items():
                row |= {key: np.mean([of[key] for of in rows]) for key in (kind, f"{kind}, by the teacher")}
                row[f"p, {kind}"] = paired_means(new, old).p
            rows.append(row)
    report(rows, json_path)


if __name__ == "__main__":
    main()
