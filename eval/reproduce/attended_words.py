"""LAMA's attention in reviews: the most attended words of each class, and chosen words in both classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ctx_embed.eval.reproduce.classifier_cells import quick_training, single_part, trained
from ctx_embed.eval.reproduce.experiment import Cell, Column, Experiment, Figures, Outcome, Settings, number
from ctx_embed.eval.reproduce.inputs import Workplace
from ctx_embed.eval.reproduce.lama import CHOICES, LAMA, LAMA_TABLE3, PAPER, TRAINING, UNKNOWN_FIGURES
from ctx_embed.eval.tasks.probe import SENTIMENT
from ctx_embed.systems import AttentionWeights, attention_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASK = "IMDB"
SHOWN = 15
READ = 4000
CHOSEN = ("good", "great", "excellent", "wonderful", "bad", "boring", "awful", "worst")


def words_of(attention: AttentionWeights) -> Iterator[tuple[str, float]]:
    """Yield each word of a text and its attention: the mean over heads and word pieces, times the number of tokens.

    Uniform attention would be 1 for every token.
    """
    weights = attention.weights.mean(0) * len(attention.tokens)
    word, pieces = "", [0.0]
    for token, weight in zip(attention.tokens, weights.tolist(), strict=True):
        if token.startswith("##"):
            word += token.removeprefix("##")
            pieces.append(weight)
            continue
        if word:
            yield word, fmean(pieces)
        word, pieces = token, [weight]
    if word:
        yield word, fmean(pieces)


def attention_by_class(settings: Settings, part: str, workplace: Workplace) -> Figures:
    """Train on reviews, and collect the attention to each word over test reviews of each class.

    Returns:
        The ``accuracy`` on the test reviews read, and under ``attention`` for each class by word the number of texts
        with the word and its mean attention, for words in at least ``least`` texts of the class.
    """
    sample: tuple[int | None, int | None] = (settings.get("tokens"), settings.get("rows"))
    classifier, figures = trained(settings, workplace, workplace.labelled(TASK, "train", *sample))
    test = workplace.labelled(TASK, "test", sample[0], sample[1] or READ)
    found: dict[str, dict[str, list[float]]] = {label: {} for label in classifier.labels}
    texts: dict[str, dict[str, int]] = {label: {} for label in classifier.labels}
    classifier.eval()
    bar = tqdm(
        zip(test.labels, test.texts, strict=True), total=len(test.texts), desc="texts", disable=None, leave=False
    )
    for label, text in bar:
        (attention,) = attention_weights(classifier.encoder, [text])
        seen = set()
        for word, weight in words_of(attention):
            found[label].setdefault(word, []).append(weight)
            seen.add(word)
        for word in seen:
            texts[label][word] = texts[label].get(word, 0) + 1
    return {
        **figures,
        "accuracy": 100 * classifier.accuracy(test),
        "attention": {
            label: {
                word: [texts[label][word], fmean(weights)]
                for word, weights in sorted(words.items())
                if texts[label][word] >= settings["least"]
            }
            for label, words in found.items()
        },
    }


def most_attended(attention: Mapping[str, Mapping[str, Sequence[float]]], label: str) -> list[str]:
    """Return the alphabetic words that occur in more texts of a class than of any other, most attended first."""
    others = [words for other, words in attention.items() if other != label]
    own = {
        word: weight
        for word, (count, weight) in attention[label].items()
        if word.isalpha() and all(count > words.get(word, (0, 0))[0] for words in others)
    }
    return sorted(own, key=lambda word: (-own[word], word))[:SHOWN]


def _summary(settings: Settings, parts: Mapping[str, Figures]) -> Figures:
    (figures,) = parts.values()
    attention = figures["attention"]
    return {
        "accuracy": figures["accuracy"],
        "most_attended": {label: most_attended(attention, label) for label in attention},
        "chosen": {
            word: {label: words[word][1] for label, words in attention.items() if word in words} for word in CHOSEN
        },
    }


def _words(label: str) -> Column:
    return Column(
        f"{SENTIMENT[label]} reviews",
        lambda outcome: ", ".join(outcome.figures.get("most_attended", {}).get(label, ())),
    )


def _chosen(word: str) -> Column:
    def show(outcome: Outcome) -> str:
        weights = outcome.figures.get("chosen", {}).get(word)
        return (
            " / ".join(f"{weights[label]:.2f}" if label in weights else "?" for label in SENTIMENT) if weights else ""
        )

    return Column(word, show)


def _draw_most_attended(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    (outcome,) = outcomes
    attention = next(iter(outcome.parts.values()))["attention"]
    for number_of_class, label in enumerate(SENTIMENT):
        words = outcome.figures["most_attended"].get(label, [])[::-1]
        places = range(number_of_class * (SHOWN + 1), number_of_class * (SHOWN + 1) + len(words))
        axes.barh(places, [attention[label][word][1] for word in words], label=f"{SENTIMENT[label]} reviews")
        for place, word in zip(places, words, strict=True):
            axes.text(0, place, f" {word}", va="center", fontsize=6)
    axes.set_yticks([])
    axes.set_xlabel("attention (1: uniform)")


def _draw_chosen(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    (outcome,) = outcomes
    for number_of_class, label in enumerate(SENTIMENT):
        heights = [outcome.figures["chosen"][word].get(label, 0.0) for word in CHOSEN]
        places = [place + (number_of_class - 0.5) * 0.4 for place in range(len(CHOSEN))]
        axes.bar(places, heights, 0.36, label=f"{SENTIMENT[label]} reviews")
    axes.set_xticks(range(len(CHOSEN)), CHOSEN)
    axes.set_ylabel("attention (1: uniform)")


def _settings() -> Settings:
    (cell,) = (cell for cell in LAMA_TABLE3.cells if (cell.row, cell.column) == (LAMA, TASK))
    return {**cell.settings, "least": 40}


def _quick(settings: Settings) -> Settings:
    return {**quick_training(settings), "least": 4}


NOTES = (
    TRAINING,
    CHOICES[0],
    "Attention is LAMA's weight, the mean over heads and a word's pieces, times the number of tokens: uniform "
    f"attention would be 1. Mean over the occurrences in {READ:,} test reviews, half of each class; words in at least "
    "40 texts of a class.",
    UNKNOWN_FIGURES,
)
CELLS = (Cell(LAMA, TASK, _settings()),)
SHARED: dict[str, Any] = {
    "heads": ("system", "task"),
    "cells": CELLS,
    "parts": single_part,
    "work": attention_by_class,
    "summary": _summary,
    "quick": _quick,
}
ACCURACY = Column("accuracy", number("accuracy"))

LAMA_TABLE4 = Experiment(
    name="lama-table4",
    title="most attended words of IMDB by class",
    source=f"{PAPER}, Table 4",
    notes=(*NOTES, "For each class: words that occur in more of its texts than of the other's."),
    columns=(*map(_words, SENTIMENT), ACCURACY),
    draw=_draw_most_attended,
    **SHARED,
)
LAMA_FIGURE2 = Experiment(
    name="lama-figure2",
    title="attention of chosen words of IMDB by class",
    source=f"{PAPER}, Figure 2",
    notes=(*NOTES, "For each word: its attention in negative / positive reviews."),
    columns=(*map(_chosen, CHOSEN), ACCURACY),
    draw=_draw_chosen,
    **SHARED,
)
