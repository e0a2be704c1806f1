"""Choose between models: retrieval, clusters and contrasts on texts that are in no evaluation set.

    python benchmarks/development.py default MODEL ... bm25 hybrid --data DIR [--sets "law clusters"] [--json FILE]

Prints nDCG@10 of questions, titles and headings that must find their own passage, and of lines of running text that
must find the two before and after them, the V-measure of k-means over short texts, STS-B dev, and the development half
of contrasts.tsv, with 95 % intervals. ``p`` compares a model with the first one over the same queries, parts or
triples.

contrasts.tsv has 300 triples of each kind, all written for this benchmark: by design a contrast shares
more words with the text than its paraphrase does. ``--part test`` measures the other half of them: no model is trained,
tuned or chosen on it, and no rule that generates training texts may use its words or patterns.

Models that are chosen by these scores must not be trained on the files of pairs in ``HELD_OUT``; neither model that
ships is.
"""

import csv
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import data_option, json_option, lines_of, report
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from ctx_embed import SearchIndex, load
from ctx_embed.eval.scoring.ranking import CUTOFF, ndcg, retrieve, spearman
from ctx_embed.eval.scoring.statistics import mean_interval, paired_means
from ctx_embed.index.query import Mode
from ctx_embed.training.distillation.texts import read_pair_rows, read_pairs

# The name of each set, and the file of pairs that it is made of.
HELD_OUT = {
    "health questions": "qa_medical_forums",
    "encyclopaedia": "qa_selqa_wikipedia",
    "biomedicine": "title_abstract_systematic_reviews",
    "law": "heading_section_dc_code",
    "issues": "title_description_jira",
}
# Files of running text, of which each line should find its neighbours: REACH lines before it, and as many after.
RUNNING = {
    "neighbours: linguistics": "abstracts_acl",
    "neighbours: science": "abstracts_arxiv_all",
    "neighbours: issues": "issues_jira",
    "neighbours: newswire": "reuters21578",
}
REACH, MOST_LINES, LINES_A_QUERY = 2, 40_000, 16
# Long documents join 1 to this many abstracts; a query is the title of one of these.
LONGEST_DOCUMENT = 8
MOST_PASSAGES, MOST_QUERIES = 20_000, 1000
# Clusterings read this many first words of a text, and cluster this many parts of this many texts one by one.
CLUSTERED_WORDS, CLUSTERED_PARTS, CLUSTERED_TEXTS = 10, 5, 1000
TITLES = ("heading", "headline", "qa_medquad", "qa_stackexchange", "title")
# Searches of an index with the default model, by name, and their modes.
SEARCHES: dict[str, Mode] = {"bm25": "words", "hybrid": "hybrid"}


@dataclass(frozen=True)
class Pool:
    """Queries, passages, and the place of the passage that each query must find."""

    queries: list[str]
    passages: list[str]
    relevant: list[set[int]]


def shuffled(texts: Iterable[str]) -> list[str]:
    """Return the distinct texts, ordered by a hash of each."""
    return sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())


def pool(pairs: Sequence[tuple[str, ...]], longest: int = 1) -> Pool:
    """Return the pool of a file's pairs, its documents being 1, 2, ... ``longest``, 1, 2, ... joined passages."""
    passages = shuffled(passage for _, passage, *_ in pairs)[:MOST_PASSAGES]
    documents, place = [], {}
    start, length = 0, 1
    while start < len(passages):
        part = passages[start : start + length]
        place.update(dict.fromkeys(part, len(documents)))
        documents.append("\n".join(part))
        start, length = start + length, length % longest + 1
    relevant: dict[str, set[int]] = {}
    for query, passage, *_ in pairs:
        if passage in place:
            relevant.setdefault(query, set()).add(place[passage])
    queries = shuffled(relevant)[:MOST_QUERIES]
    return Pool(queries, documents, [relevant[query] for query in queries])


Encoder = Callable[[list[str]], NDArray[np.float32]]


def searched(of: Pool, mode: Mode) -> list[list[str]]:
    """Return the places of the passages that an index finds for each query."""
    with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index") as index:
        index.add(of.passages, list(range(len(of.passages))))
        return [[str(hit.id) for hit in index.search(query, CUTOFF, mode=mode)] for query in of.queries]


def retrieval(of: Pool, encode: Encoder | Mode) -> list[float]:
    """Return nDCG@10 times 100 of each query, by cosines or, without an encoder, by a search of an index."""
    if isinstance(encode, str):
        found = searched(of, encode)
    else:
        ids = [str(place) for place in range(len(of.passages))]
        found = retrieve(encode(of.queries), encode(of.passages), ids, CUTOFF)
    return [
        100 * ndcg([float(int(place) in relevant) for place in ranking], [1.0] * len(relevant))
        for ranking, relevant in zip(found, of.relevant, strict=True)
    ]


def neighbours(lines: Sequence[str], encode: Encoder) -> list[float]:
    """Return nDCG@10 times 100 of each query, a line that must find the lines around it, by cosines."""
    queries = range(REACH, len(lines) - REACH, LINES_A_QUERY)
    embeddings = encode(list(lines))
    found = retrieve(embeddings[queries], embeddings, [str(place) for place in range(len(lines))], CUTOFF + 1)
    scores = []
    for query, ranking in zip(queries, found, strict=True):
        distances = (abs(int(place) - query) for place in ranking)
        gains = [float(distance <= REACH) for distance in distances if distance]
        scores.append(100 * ndcg(gains, [1.0] * (2 * REACH)))
    return scores


def clusterings(texts: Sequence[str], labels: Sequence[str], encode: Encoder) -> list[float]:
    """Return the V-measure times 100 of k-means in each part of the texts, k being the number of labels."""
    order = np.random.default_rng(0).permutation(len(texts))[: CLUSTERED_PARTS * CLUSTERED_TEXTS]
    embeddings = encode([" ".join(texts[row].split()[:CLUSTERED_WORDS]) for row in order])
    scores = []
    for part in np.array_split(np.arange(len(order)), CLUSTERED_PARTS):
        gold = [labels[row] for row in order[part]]
        found = KMeans(len(set(labels)), n_init=5, random_state=0).fit_predict(embeddings[part])
        scores.append(100 * float(v_measure_score(gold, found)))
    return scores


def read_labelled(path: Path) -> tuple[list[str], list[str]]:
    """Return the texts and labels of a file of lines ``label<TAB>text``."""
    rows = [line.split("\t", 1) for line in lines_of(path)]
    return [text for _, text in rows], [label for label, _ in rows]


def titles(data: Path) -> tuple[list[str], list[str]]:
    """Return titles and questions, equally many from each file of pairs, and the name of each one's file."""
    texts, labels = [], []
    for path in sorted((data / "pairs").glob("*.jsonl.gz")):
        if path.name.startswith(TITLES):
            some = shuffled(pair[0] for pair in read_pair_rows(path))[: CLUSTERED_PARTS * 100]
            texts += some
            labels += [path.name] * len(some)
    return texts, labels


def sentence_pairs(path: Path, encode: Encoder) -> list[float]:
    """Return Spearman's correlation times 100 in each fifth of the pairs."""
    pairs = read_pairs(path)
    cosines = (encode(list(pairs.first)) * encode(list(pairs.second))).sum(1)
    parts = np.array_split(np.random.default_rng(0).permutation(len(cosines)), 5)
    return [spearman(cosines[part].tolist(), np.array(pairs.scores)[part].tolist()) for part in parts]


def contrasts(kind: str, part: str, encode: Encoder) -> list[float]:
    """Return 100 for each triple of a part whose paraphrase is nearer than its contrast, else 0."""
    with Path(__file__).with_name("contrasts.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    triples = [row for row in rows if (row["kind"], row["part"]) == (kind, part)]
    text, paraphrase, contrast = (
        encode([row[column] for row in triples]) for column in ("text", "paraphrase", "contrast")
    )
    return (100.0 * ((text * (paraphrase - contrast)).sum(1) > 0)).tolist()


def measures(data: Path, part: str) -> dict[str, Callable[[Encoder | Mode], list[float]]]:
    """Return the measures by name. Those of retrieval also take the mode of a search."""
    pairs = {name: data / "pairs" / f"{file}.jsonl.gz" for name, file in HELD_OUT.items()}
    longdocs = data / "longdocs"
    named: dict[str, Callable[[Any], list[float]]] = {
        name: lambda encode, path=path: retrieval(pool(read_pair_rows(path)), encode) for name, path in pairs.items()
    }
    named["long documents"] = lambda encode: retrieval(
        pool(read_pair_rows(pairs["biomedicine"]), LONGEST_DOCUMENT), encode
    )
    for name, file in RUNNING.items():
        path = data / "corpus" / f"{file}.00.txt.gz"
        named[name] = lambda encode, path=path: neighbours(lines_of(path)[:MOST_LINES], encode)
    for name, file in {"AG news": "AGnews_train_part", "R8": "R8_train"}.items():
        path = longdocs / f"{file}.tsv.gz"
        named[f"clusters: {name}"] = lambda encode, path=path: clusterings(*read_labelled(path), encode)
    named["clusters: titles"] = lambda encode: clusterings(*titles(data), encode)
    named["STS-B dev"] = partial(sentence_pairs, data / "senteval" / "STSB_dev.tsv")
    named.update({kind: partial(contrasts, kind, part) for kind in ("negation", "word order", "small words")})
    return named


def encoder(name: str) -> Encoder:
    """Return a function that embeds texts with a model at unit length."""
    model = load(None if name == "default" else name)
    return lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


@click.command()
@click.argument("models", nargs=-1, required=True)
@data_option
@click.option("--sets", help="Only measures whose names contain one of these words.")
@click.option("--part", type=click.Choice(["development", "test"]), default="development", help="Of the contrasts.")
@json_option
def main(models: tuple[str, ...], data: Path, sets: str | None, part: str, json_path: Path | None) -> None:
    """Print a row for each model and measure; MODEL is `default`, a folder, a name, `bm25` or `hybrid`."""
    chosen = {
        name: measure
        for name, measure in measures(data, part).items()
        if sets is None or any(word in name for word in sets.split())
    }
    by_retrieval = {*HELD_OUT, "long documents"}
    rows: list[dict[str, Any]] = []
    first: dict[str, list[float]] = {}
    for model in models:
        encode = SEARCHES.get(model) or encoder(model)
        means = []
        for name, measure in chosen.items():
            if isinstance(encode, str) and name not in by_retrieval:
                continue
            scores = measure(encode)
            low, high = mean_interval(scores)
            row: dict[str, Any] = {"model": model, "measure": name, "score": float(np.mean(scores)), "low": low}
            row |= {"high": high, "n": len(scores), "p": None}
            if name in first and len(first[name]) == len(scores):
                row["p"] = paired_means(scores, first[name]).p
            first.setdefault(name, scores)
            means += [row["score"]] * (name in by_retrieval)
            rows.append(row)
            p = "" if row["p"] is None else f"p {row['p']:.3f}"
            print(f"| {model} | {name} | {row['score']:.1f} | {low:.1f} to {high:.1f} | {p} |", flush=True)
        if means:
            print(f"| {model} | mean of retrieval | {np.mean(means):.2f} | | |", flush=True)
    report(rows, json_path)


if __name__ == "__main__":
    main()
