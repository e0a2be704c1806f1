"""Whether the context settles as steps are added: a question that the Contextualizer's paper leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from ctx_embed.classify.labelled import Labelled
from ctx_embed.classify.predictor import Predictor
from ctx_embed.systems import parameter_count, without_vocabulary
from papers.classifier_cells import (
    INITIAL,
    TOKEN_DEVIATION,
    accuracy_summary,
    fold_parts,
    quick_training,
    settings_of,
    split,
    trained,
)
from papers.experiment import COLOURS, Cell, Claim, Column, Experiment, Figures, Found, Outcome, Settings
from papers.inputs import Workplace
from papers.tables import ACCURACY, ERROR, PAPER, PARAMETERS, PROTOCOL, SECONDS, TESTS
from papers.variants import TIED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

M, RANK = 64, 32
COUNTS = (1, 2, 3, 5, 10, 20)
MOST = COUNTS[-1]
# The best epoch is among the first.
EPOCHS = 5
UNTIED, LARGE = "untied", "large tokens"
# The steps tried in each row. Of small tokens, the first-order part b * x_i exceeds the second-order part by far.
ROWS = {UNTIED: COUNTS, TIED: COUNTS, f"{UNTIED}, {LARGE}": (1, MOST), f"{TIED}, {LARGE}": (1, MOST)}
# The steps of the longest run that tables show.
SHOWN = (1, 2, 3, 5, 10, 15, 19, 20)


def _cell(row: str, steps: int) -> Cell:
    # Steps of the usual size would hardly move large tokens.
    training = {"epochs": EPOCHS, **({"learning_rate": 1e-3} if LARGE in row else {})}
    settings = settings_of("MR", "contextualizer", training, dimension=M, steps=steps, rank=RANK)
    # One step is tied to no other.
    initial: dict[str, Any] = {TIED: True} if row.startswith(TIED) and steps > 1 else {}
    if LARGE in row:
        initial |= {TOKEN_DEVIATION: 1}
    return Cell(row, f"K {steps}", {**settings, INITIAL: initial} if initial else settings)


def train_and_follow(settings: Settings, part: str, workplace: Workplace) -> Figures:
    """Train on the training part of a fold, score its test part, and follow the contexts of its texts.

    Return the same as :func:`papers.classifier_cells.train_and_test`, with the ``parameters`` of tied steps counted
    once, and :func:`followed`.
    """
    train, test, fold = split(settings, part, workplace)
    classifier, figures = trained(settings, workplace, train, fold)
    if settings.get(INITIAL, {}).get(TIED):
        one = without_vocabulary("contextualizer", **{**settings["architecture"], "steps": 1})
        figures["parameters"] = parameter_count(one)
    return {"accuracy": 100 * classifier.accuracy(test), **figures, **followed(classifier, test)}


@torch.no_grad()
def followed(classifier: Predictor, test: Labelled) -> Figures:
    """Return what the contexts of texts do from step to step: lists of a value for each step k = 1..K.

    They are means over the texts where nothing else is said: ``length`` |z^k|, ``of_bound`` the longest z^k over its
    bound (:func:`bounds`), ``cosine`` of c^k and c^(k-1), ``turn`` the cosine of z^k and z^(k-1) (1 for the first),
    ``accuracy_at`` in percent when the trained head reads c^k, ``agreement`` the percentage of texts for which it says
    the same of c^k as of c^K, and ``certain`` the percentage for which the bounds of the remaining steps say so.
    """
    head, module = classifier.head, classifier.encoder.backend.eval()[0]
    weight, bias = torch.from_numpy(head.weight), torch.from_numpy(head.bias)
    numbers, lengths = module.text_tokenizer(test.texts)
    ids = torch.from_numpy(numbers).long()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    contexts = module.attention(module.embedding(ids), ids, offsets)
    z = contexts.diff(dim=0)
    bound = bounds(module.attention)
    logits = F.linear(contexts[1:], weight, bias)
    chosen = logits.argmax(2)
    # The margin between two classes changes by at most |w_1 - w_0| |z^k| in a step.
    ahead = bound.sum() - bound.cumsum(0)
    margin = (logits[..., 1] - logits[..., 0]).abs() / (weight[1] - weight[0]).norm()
    values = {
        "length": z.norm(dim=2).mean(1),
        "of_bound": z.norm(dim=2).amax(1) / bound,
        "cosine": F.cosine_similarity(contexts[1:], contexts[:-1], dim=2).mean(1),
        "turn": F.cosine_similarity(z, torch.cat([z[:1], z[:-1]]), dim=2).mean(1),
        "accuracy_at": 100 * (chosen == torch.from_numpy(test.targets(head.labels))).double().mean(1),
        "agreement": 100 * (chosen == chosen[-1]).double().mean(1),
        "certain": 100 * (margin >= ahead[:, None]).double().mean(1),
    }
    return {name: value.tolist() for name, value in values.items()}


def bounds(attention: Any) -> torch.Tensor:
    """Return sqrt(m) max|gain| + |bias| of each step, (K,), which no |z^k| exceeds.

    Layer normalisation makes a vector of mean 0 and variance 1, thus of length sqrt(m), and then applies gain and bias.
    """
    longest: torch.Tensor = attention.gain.shape[1] ** 0.5 * attention.gain.abs().amax(1) + attention.bias.norm(dim=1)
    return longest


def _summary(settings: Settings, parts: Mapping[str, Figures]) -> Figures:
    """Return the accuracy's summary, and over the folds the means of the values by step, the maxima of ``of_bound``."""
    folds = list(parts.values())
    lists = [name for name, value in folds[0].items() if isinstance(value, list) and name != "loss"]
    over = {"of_bound": np.max}
    by_step = {name: over.get(name, np.mean)([fold[name] for fold in folds], axis=0).tolist() for name in lists}
    return {**accuracy_summary(settings, parts), **by_step}


def _by_step(name: str, digits: int) -> Callable[[Outcome], str]:
    def show(outcome: Outcome) -> str:
        values = outcome.figures.get(name, ())
        return ", ".join(f"{values[k - 1]:.{digits}f}" for k in SHOWN if k <= len(values))

    return show


def _check(found: Found) -> tuple[str, None]:
    told = []
    for row in ROWS:
        figures = found[row, f"K {MOST}"]
        accuracies = {count: found[row, f"K {count}"]["accuracy"] for count in (1, MOST)}
        told.append(
            f"{row} steps reach {accuracies[1]:.1f} % with one and {accuracies[MOST]:.1f} with {MOST}, of which the "
            f"last has cos(c^k, c^(k-1)) {figures['cosine'][-1]:.3f}, |z^k| {figures['length'][-1]:.1f} and "
            f"cos(z^k, z^(k-1)) {figures['turn'][-1]:.2f}"
        )
    return "; ".join(told) + ".", None


def _draw(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Draw accuracy by K, and of the longest run accuracy at each c^k, broken."""
    for row, colour in zip(ROWS, COLOURS, strict=False):
        own = [outcome for outcome in outcomes if outcome.cell.row == row]
        counts = [int(outcome.cell.column.split()[1]) for outcome in own]
        accuracies = [outcome.figures["accuracy"] for outcome in own]
        errors = [outcome.figures.get("standard_error", 0.0) for outcome in own]
        axes.errorbar(
            counts, accuracies, errors, marker="o", markersize=4, color=colour, label=f"{row}, trained with k"
        )
        for outcome in own:
            if outcome.cell.column == f"K {MOST}":
                at = outcome.figures["accuracy_at"]
                axes.plot(range(1, len(at) + 1), at, "--", color=colour, label=f"{row}, c^k of K {MOST}")
    axes.set_xticks(COUNTS)
    axes.set_xlabel("steps k")
    axes.set_ylabel("accuracy on MR in %")
    axes.grid(alpha=0.3)


SETTLING = Experiment(
    "settling",
    "MR by number of steps, and the context after each",
    f"{PAPER}, future work",
    Claim("it leaves open whether c^k settles as steps are added.", _check),
    (
        PROTOCOL.replace("10 epochs", f"{EPOCHS} epochs"),
        f"m {M}, u {RANK}, no positions, first context of ones. Tied steps share U, V, W, b, gain and bias. "
        "Large tokens have a deviation of 1 initially, in place of 0.03, and learn at 1e-3.",
        f"Lists are over k = {', '.join(map(str, SHOWN))}, as far as K goes; means over the test texts. Accuracy at "
        "c^k: the head, which was trained to read c^K, reads c^k. Certain: what LayerNorm bounds already decides.",
    ),
    ("steps", "K"),
    tuple(_cell(row, steps) for row, counts in ROWS.items() for steps in counts),
    fold_parts,
    train_and_follow,
    _summary,
    (
        ACCURACY,
        TESTS,
        ERROR,
        PARAMETERS,
        Column("length of z^k", _by_step("length", 1)),
        Column("longest z^k of its bound", _by_step("of_bound", 3)),
        Column("cos(c^k, c^(k-1))", _by_step("cosine", 3)),
        Column("cos(z^k, z^(k-1))", _by_step("turn", 2)),
        Column("accuracy at c^k", _by_step("accuracy_at", 1)),
        Column("same as c^K", _by_step("agreement", 1)),
        Column("certain", _by_step("certain", 1)),
        SECONDS,
    ),
    _draw,
    quick_training,
)
