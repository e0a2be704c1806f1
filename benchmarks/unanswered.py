"""Relevance: how often questions without an answer get hits, and what a lowest relevance costs.

python benchmarks/unanswered.py --data DIR [--model MODEL] [--development] [--json FILE]

Each retrieval collection gets its own questions, and 200 questions of the other collections, which it does not answer.
``--development`` uses other texts: questions, titles and headings, asked to passages of other sources in the same field
(near) and of other fields (far). Near questions are not all without an answer. What relevance needs was chosen with it.
"""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from common import COLLECTIONS, collection, data_option, json_option, report
from development import pool, shuffled

from ctx_embed import SearchIndex
from ctx_embed.index.hits import Hits
from ctx_embed.training.distillation.texts import read_pair_rows

MODES = ("dense", "hybrid")
LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95)
# Levels at which a query could count as unanswered.
BARS = (0.5, 0.7, 0.8, 0.85, 0.9)
UNANSWERED = 200
# Files of pairs by field.
FIELDS = {
    "world": ("qa_squad_sentences", "qa_selqa_wikipedia", "headline_article_news"),
    "medicine": ("qa_medquad", "qa_medical_forums", "title_abstract_systematic_reviews"),
    "law": ("heading_section_dc_code",),
    "science": ("title_abstract_arxiv", "title_abstract_acl_ml"),
    "software": ("title_description_jira", "qa_stackexchange"),
}
# A file's passages: the first of these numbers of them. A field asks this many questions of each file.
SIZES = (100, 1_000, 10_000)
ASKED = 25


class Trial(NamedTuple):
    """Passages by id, questions with the ids of their answers, and questions that the passages do not answer."""

    name: str
    passages: dict[str, str]
    answered: dict[str, set[str]]
    unanswered: Sequence[str]


def collections(data: Path) -> Iterator[Trial]:
    """Yield the retrieval collections, each with questions of the others."""
    found = {name: collection(data, name) for name in COLLECTIONS}
    for name, (documents, queries, judged) in found.items():
        answers = {
            text: {document for document, grade in judged[query].items() if grade > 0}
            for query, text in queries.items()
        }
        others = shuffled(text for other, (_, asked, _) in found.items() if other != name for text in asked.values())
        yield Trial(name, documents, answers, others[:UNANSWERED])


def fields(data: Path) -> Iterator[Trial]:
    """Yield the files of pairs in several sizes, each with questions of other files, of its field or of others."""
    pools = {
        (field, name): pool(read_pair_rows(data / "pairs" / f"{name}.jsonl.gz"))
        for field, names in FIELDS.items()
        for name in names
    }
    for (field, name), own in pools.items():
        others: dict[str, list[str]] = {"near": [], "far": []}
        for (other, file), asked in pools.items():
            if file != name:
                others["near" if other == field else "far"] += asked.queries[:ASKED]
        for size in SIZES:
            if size // 2 > len(own.passages):
                continue
            passages = {str(place): text for place, text in enumerate(own.passages[:size])}
            answers = {
                query: {str(place) for place in relevant if place < size}
                for query, relevant in zip(own.queries, own.relevant, strict=True)
            }
            kept = {query: relevant for query, relevant in answers.items() if relevant}
            for kind, unanswered in others.items():
                if unanswered:
                    trial = f"{name}, {kind}, {size:,}"
                    yield Trial(trial, passages, dict(list(kept.items())[:UNANSWERED]), unanswered)


def measured(trial: Trial, model: str | None, levels: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode and lowest relevance."""
    with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index", model) as index:
        index.add(list(trial.passages.values()), list(trial.passages))
        for mode in MODES:
            answered: list[Hits] = index.search(list(trial.answered), mode=mode)
            unanswered: list[Hits] = index.search(list(trial.unanswered), mode=mode)
            for level in levels:
                yield {
                    "collection": trial.name,
                    "mode": mode,
                    "min_relevance": level,
                    **scores(answered, list(trial.answered.values()), unanswered, level),
                }


def scores(
    answered: Sequence[Hits], answers: Sequence[set[str]], unanswered: Sequence[Hits], level: float
) -> dict[str, float]:
    """Return percentages at a lowest relevance.

    False alarms: of the questions without an answer, those with a hit; coverage: of the others, those with a hit;
    right hits: of those with a right hit among ten, those that keep one; precision: of all first hits, the right ones.
    """
    shown = [ids(hits, level) for hits in answered]
    right = sum(bool(of_question & set(ids(hits, 0))) for hits, of_question in zip(answered, answers, strict=True))
    kept = sum(bool(of_question & set(found)) for found, of_question in zip(shown, answers, strict=True))
    firsts = [found[0] in of_question for found, of_question in zip(shown, answers, strict=True) if found]
    alarms = sum(bool(ids(hits, level)) for hits in unanswered)
    return {
        "false alarms": 100 * alarms / len(unanswered),
        "coverage": 100 * len(firsts) / len(answered),
        "right hits": 100 * kept / max(right, 1),
        "precision": 100 * sum(firsts) / max(len(firsts) + alarms, 1),
    }


def ids(hits: Hits, level: float) -> list[str]:
    """Return the ids of the hits that a search with this lowest relevance returns."""
    return [str(hit.id) for hit in hits if hit.relevance is None or hit.relevance >= level]


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each collection and mode: false alarms, coverage and precision for each lowest relevance."""
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = f"{row['collection']}, {row['mode']}"
        level = str(row["min_relevance"] or "all hits")
        cell = ", ".join(f"{row[score]:.0f}" for score in ("false alarms", "coverage", "precision"))
        cells.setdefault(name, {"collection, mode": name})[level] = cell
    return list(cells.values())


@click.command()
@data_option
@click.option("--model", help="A model.  [default: the default model]")
@click.option("--development", is_flag=True, help="Use the texts on which relevance was developed.")
@json_option
def main(data: Path, model: str | None, development: bool, json_path: Path | None) -> None:
    """Print false alarms, coverage and precision in % for each collection, mode and lowest relevance."""
    trials = fields(data) if development else collections(data)
    levels = BARS if development else LEVELS
    rows = [row for trial in trials for row in measured(trial, model, levels)]
    report(table(rows), json_path, measurements=rows)
    for kind in ("near", "far") if development else ():
        for mode, level in itertools.product(MODES, BARS):
            wanted = mode, level
            chosen = [row for row in rows if f", {kind}, " in row["collection"]]
            chosen = [row for row in chosen if (row["mode"], row["min_relevance"]) == wanted]
            names = ("coverage", "false alarms", "right hits")
            means = [f"{score} {np.mean([row[score] for row in chosen]):.1f}" for score in names]
            print(f"{kind} questions, {mode}, at {level}: {', '.join(means)}")


if __name__ == "__main__":
    main()
