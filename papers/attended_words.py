"""LAMA's attention in reviews and reports: the most attended words of each class, and chosen words in both classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ctx_embed.explanations import Explanation, attention_weights
from ctx_embed.progress import Meter
from papers.classifier_cells import quick_training, single_part, trained
from papers.experiment import (
    Cell,
    Claim,
    Column,
    Experiment,
    Figures,
    Found,
    Outcome,
    Settings,
    Verdict,
    number,
    of_paper,
)
from papers.inputs import Workplace
from papers.lama import CHOICES, LAMA, LAMA_TABLE3, PAPER, TRAINING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 15
# Maximum number of test texts to read; R8 has fewer.
READ = 4000
# The two classes to compare, with their names by label, and the words to compare: the paper's, and of R8 our choice.
CLASSES = {"IMDB": {"0": "negative", "1": "positive"}, "R8": {"ship": "ship", "money-fx": "money-fx"}}
CHOSEN = {
    "IMDB": (of_paper("LAMA", "Figure 2")["negative"], of_paper("LAMA", "Figure 2")["positive"]),
    "R8": (("gulf", "cargo", "shipping", "iranian"), ("monetary", "currencies", "fed", "rate")),
}
TABLE4_PLACES = tuple(f"{task}: {name}" for task, classes in CLASSES.items() for name in classes.values())
# A word must occur in at least this many texts of a class.
LEAST = {"IMDB": 15, "R8": 4}
# The words that the paper lists for a class; of its Yelp reviews where IMDB stands.
IN_PLACE = {"IMDB: negative": "Yelp: 1 star", "IMDB: positive": "Yelp: 5 stars"}
PUBLISHED_WORDS = {place: of_paper("LAMA", "Table 4")[IN_PLACE.get(place, place)] for place in TABLE4_PLACES}


def words_of(attention: Explanation) -> Iterator[tuple[str, float]]:
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
    """Train a classifier, and collect the attention to each word over test texts of each class.

    Return the ``accuracy`` on the test texts read, and under ``attention`` for each class by word the number of texts
    with the word and its mean attention, for words in at least ``least`` texts of the class.
    """
    sample: tuple[int | None, int | None] = (settings.get("tokens"), settings.get("rows"))
    task = settings["task"]
    classifier, figures = trained(settings, workplace, workplace.labelled(task, "train", *sample))
    test = workplace.labelled(task, "test", sample[0], sample[1] or (READ if task == "IMDB" else None))
    found: dict[str, dict[str, list[float]]] = {label: {} for label in classifier.head.labels}
    texts: dict[str, dict[str, int]] = {label: {} for label in classifier.head.labels}
    meter = Meter("explaining", len(test.texts), leave=False)
    for label, text in meter.each(zip(test.labels, test.texts, strict=True)):
        (attention,) = attention_weights(classifier.encoder.backend, [text])
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
    """Return the accuracy, both classes' most attended words, and the attention to all words that are shown."""
    (figures,) = parts.values()
    attention = figures["attention"]
    most = {label: most_attended(attention, label) for label in CLASSES[settings["task"]] if label in attention}
    listed = {*chain.from_iterable((*most.values(), *CHOSEN[settings["task"]], *PUBLISHED_WORDS.values()))}
    return {
        "accuracy": figures["accuracy"],
        "most_attended": most,
        "attention": {
            label: {word: mean for word, (_, mean) in attention[label].items() if word in listed} for label in most
        },
    }


def _listed(outcome: Outcome) -> list[str]:
    """Return the most attended words of a cell's class."""
    words: list[str] = outcome.figures.get("most_attended", {}).get(label_of(outcome.cell.column), [])
    return words


def label_of(place: str) -> str:
    """Return the label that a class has in its data, from the column of its cell."""
    task, name = place.split(": ")
    return next((label for label, shown in CLASSES[task].items() if shown == name), name)


def above_uniform(place: str, figures: Figures) -> list[bool]:
    """Return, for each word that the paper lists for a class and that is frequent enough, whether it gets more than
    uniform attention in our results."""
    attention = figures["attention"].get(label_of(place), {})
    return [attention[word] > 1 for word in PUBLISHED_WORDS[place] if word in attention]


def in_paper(place: str, figures: Figures) -> str:
    """Return how many of those words get more, how many there are, and how many the paper lists."""
    above = above_uniform(place, figures) if figures else []
    return f"{sum(above)} of {len(above)} ({len(PUBLISHED_WORDS[place])})" if figures else ""


def _weight(outcome: Outcome, place: int) -> float | None:
    """Return the attention of a cell's word in the first (0) or second (1) class of its data."""
    label = list(CLASSES[outcome.cell.column])[place]
    weight: float | None = outcome.figures.get("attention", {}).get(label, {}).get(outcome.cell.row)
    return weight


def _in_class(place: int) -> Column:
    def show(outcome: Outcome) -> str:
        name = list(CLASSES[outcome.cell.column].values())[place]
        weight = _weight(outcome, place)
        return "" if not outcome.figures else f"{name}: {'too rare' if weight is None else f'{weight:.2f}'}"

    return Column(("first class", "second class")[place], show)


def _draw_most_attended(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    for number_of_class, outcome in enumerate(outcomes):
        label, words = label_of(outcome.cell.column), _listed(outcome)[::-1]
        places = range(number_of_class * (SHOWN + 1), number_of_class * (SHOWN + 1) + len(words))
        attention = outcome.figures["attention"].get(label, {})
        axes.barh(places, [attention[word] for word in words], label=outcome.cell.column)
        for place, word in zip(places, words, strict=True):
            axes.text(0, place, f" {word}", va="center", fontsize=5)
    axes.set_yticks([])
    axes.set_xlabel("attention (1: uniform)")


def _draw_chosen(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    for class_place, name in enumerate(("first class", "second class")):
        heights = [_weight(outcome, class_place) or 0.0 for outcome in outcomes]
        places = [place + (class_place - 0.5) * 0.4 for place in range(len(outcomes))]
        axes.bar(places, heights, 0.36, label=name)
    axes.set_xticks(range(len(outcomes)), [outcome.cell.row for outcome in outcomes], rotation=60, fontsize=7)
    axes.set_ylabel("attention (1: uniform)")


def _check_table4(found: Found) -> tuple[str, Verdict]:
    of_classes = {place: found[LAMA, place] for place in PUBLISHED_WORDS}
    each = {place: above_uniform(place, figures) for place, figures in of_classes.items()}
    told = [
        f"{sum(above)} of {len(above)} for {place.split(': ')[1]} ({len(PUBLISHED_WORDS[place])} listed)"
        for place, above in each.items()
    ]
    above = [is_above for words in each.values() for is_above in words]
    measured = (
        "of the words that our copy of the paper lists and that are frequent enough here, "
        f"{', '.join(told)} get more than uniform attention."
    )
    return measured, Verdict.of(bool(above) and all(above), sum(above) > len(above) / 2)


def _check_figure2(found: Found) -> tuple[str, Verdict]:
    fits = []
    for task, (first, second) in CHOSEN.items():
        labels = list(CLASSES[task])
        for own, words in enumerate((first, second)):
            for word in words:
                by_class = found[word, task]["attention"]
                here, there = (by_class.get(label, {}).get(word) for label in (labels[own], labels[1 - own]))
                if here is not None and there is not None:
                    fits.append(here > there)
    measured = f"{sum(fits)} of {len(fits)} words get more attention in the class they speak for."
    return measured, Verdict.of(bool(fits) and all(fits), sum(fits) > len(fits) / 2)


def _settings(task: str) -> Settings:
    (cell,) = (cell for cell in LAMA_TABLE3.cells if (cell.row, cell.column) == (LAMA, task))
    return {**cell.settings, "least": LEAST[task]}


def _quick(settings: Settings) -> Settings:
    return {**quick_training(settings), "least": 4}


NOTES = (
    TRAINING,
    CHOICES[0],
    "Attention is LAMA's weight, the mean over heads and a word's pieces, times the number of tokens: uniform "
    f"attention would be 1. Mean over the occurrences in test texts, of IMDB in {READ:,}, half of each class; words in "
    f"at least {LEAST['IMDB']} texts of a class, of R8 {LEAST['R8']}.",
)
SHARED: dict[str, Any] = {"parts": single_part, "work": attention_by_class, "summary": _summary, "quick": _quick}
ACCURACY = Column("accuracy", number("accuracy"))

LAMA_TABLE4 = Experiment(
    name="lama-table4",
    title="most attended words by class",
    source=f"{PAPER}, Table 4",
    claim=Claim(
        "the words that LAMA attends to most are those that carry the class: ship has kuwait, gulf, tanker, cargo, "
        "money-fx currencies, monetary, stability.",
        _check_table4,
    ),
    notes=(
        *NOTES,
        "For each class: words that occur in more of its texts than of any other class's. 'paper's words': how many of "
        "the paper's get more than uniform attention here, how many are frequent enough, and in brackets how many of "
        "the paper's 20 a class our copy lists. The paper has Yelp reviews of 1 and 5 stars where IMDB stands.",
    ),
    heads=("system", "class"),
    cells=tuple(Cell(LAMA, place, _settings(place.split(": ")[0])) for place in TABLE4_PLACES),
    columns=(
        Column("most attended words", lambda outcome: ", ".join(_listed(outcome))),
        Column("paper's words", lambda outcome: in_paper(outcome.cell.column, outcome.figures)),
        ACCURACY,
    ),
    draw=_draw_most_attended,
    **SHARED,
)
LAMA_FIGURE2 = Experiment(
    name="lama-figure2",
    title="attention of chosen words by class",
    source=f"{PAPER}, Figure 2",
    claim=Claim(
        "positive words get more attention in reviews of 3 to 5 stars, negative ones in those of 1 and 2.",
        _check_figure2,
    ),
    notes=NOTES,
    heads=("word", "task"),
    cells=tuple(
        Cell(word, task, _settings(task)) for task, classes in CHOSEN.items() for words in classes for word in words
    ),
    columns=(*map(_in_class, (0, 1)), ACCURACY),
    draw=_draw_chosen,
    **SHARED,
)
