"""The tables and figures of LAMA's paper that compare systems: accuracy, parameters, loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctx_embed.eval.reproduce.classifier_cells import (
    accuracy_summary,
    quick_training,
    settings_of,
    single_part,
    train_and_test,
)
from ctx_embed.eval.reproduce.experiment import Cell, Column, Experiment, Figures, Outcome, Settings, number, published
from ctx_embed.eval.reproduce.inputs import Workplace
from ctx_embed.eval.reproduce.plotting import bars, lines
from ctx_embed.eval.reproduce.tables import ACCURACY, PARAMETERS
from ctx_embed.systems import parameter_count, without_vocabulary

PAPER = "Mehta, Rangwala & Ramakrishnan 2019, arXiv:1912.00835"
M, HIDDEN, HEADS = 128, 64, 30
# SAN's penalty: of 1 (Lin et al. 2017), 0.1 and 0.01 the best on R8's validation part. Larger ones outweigh the
# classification loss in Adam's steps.
PENALTY = 0.01
SAN, GRU, TE, LAMA, CTX, OURS = "SAN", "BiGRU", "TE", "LAMA", "LAMA+ctx", "Contextualizer"
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    SAN: ("san", {"heads": HEADS, "hidden": HIDDEN, "penalty": PENALTY}),
    GRU: ("bigru", {"hidden": HIDDEN}),
    "CNN": ("cnn", {"filters": 100}),
    TE: ("transformer", {"layers": 1, "heads": 4}),
    LAMA: ("lama", {"heads": HEADS}),
    CTX: ("lama-ctx", {"heads": HEADS, "hidden": HIDDEN}),
    "AVG": ("mean", {}),
    OURS: ("contextualizer", {"steps": 3, "rank": 64}),
}
# Systems with recurrence or pairwise attention read only the first tokens of a text.
CUT = (SAN, GRU, TE, CTX)
TOKENS = 256
EPOCHS = {"AGNEWS": 10, "R8": 10, "IMDB": 3}
COUNTS = (1, 2, 4, 8, 16, 32)

TRAINING = (
    "Encoder and linear head trained end to end from random weights: Adam 1e-3, batches of 64 of similar length, 10 "
    "epochs (IMDB 3), the best epoch on 10 % of the training part; accuracy on the test part. AG news is the "
    "10,001 training texts available here and the whole test part."
)
CHOICES = (
    f"Our choices: randomly initialised token vectors of {M} features, BERT's uncased WordPiece entries; a linear "
    f"head initialised with zeros over the Contextualizer and as torch's Linear over the others; {HEADS} heads of "
    f"attention; bi-GRU of {HIDDEN} units a direction under SAN and LAMA+ctx, LAMA over the token vectors "
    f"themselves; SAN with 350 units and penalty {PENALTY}; TE of one layer and 4 heads; CNN of 100 filters "
    "of each width 3, 4 and 5; Contextualizer of K 3 and u 64 without positions, the library's defaults.",
    f"The systems with a bi-GRU and TE read the first {TOKENS} tokens of a text, the others all.",
)
UNKNOWN_FIGURES = "We could not find the paper's numbers."


def _settings(system: str, task: str, **changes: Any) -> Settings:
    name, architecture = SYSTEMS[system]
    training = {"epochs": EPOCHS[task], "batch_size": 64, "learning_rate": 1e-3, "like_length": True}
    settings = settings_of(task, name, training, **{**architecture, "dimension": M, **changes})
    return {**settings, "tokens": TOKENS} if system in CUT else settings


def _read(outcome: Outcome) -> str:
    tokens = outcome.cell.settings.get("tokens")
    return "all" if tokens is None else str(tokens)


SECONDS = Column("seconds", number("seconds", 0))

LAMA_TABLE3 = Experiment(
    "lama-table3",
    "test accuracy on AG news, R8 and IMDB",
    f"{PAPER}, Table 3",
    (TRAINING, *CHOICES, UNKNOWN_FIGURES),
    ("system", "task"),
    tuple(Cell(system, task, _settings(system, task)) for task in EPOCHS for system in SYSTEMS),
    single_part,
    train_and_test,
    accuracy_summary,
    (ACCURACY, published(), PARAMETERS, Column("tokens read", _read), SECONDS),
    bars("accuracy", "accuracy in %"),
    quick_training,
)


def _by_heads(name: str) -> Any:
    def points(outcome: Outcome) -> tuple[Sequence[float], Sequence[float]]:
        return [float(outcome.cell.column.split()[0])], [outcome.figures[name]]

    return points


def _heads(count: int) -> str:
    return f"{count} head{'s' if count > 1 else ''}"


LAMA_FIGURE3 = Experiment(
    "lama-figure3",
    "R8 by number of heads",
    f"{PAPER}, Figure 3",
    (TRAINING, *CHOICES, "A head of TE has m / heads features.", UNKNOWN_FIGURES),
    ("system", "heads"),
    tuple(
        Cell(system, _heads(count), _settings(system, "R8", heads=count))
        for system in (LAMA, SAN, TE)
        for count in COUNTS
    ),
    single_part,
    train_and_test,
    accuracy_summary,
    (ACCURACY, published(), PARAMETERS, SECONDS),
    lines(_by_heads("accuracy"), "heads", "accuracy on R8 in %"),
    quick_training,
)

# The attention only, without a bi-GRU; for the Contextualizer the rank is counted instead of heads.
COUNTED: dict[str, tuple[str, dict[str, Any], str]] = {
    SAN: ("san", {}, "heads"),
    LAMA: ("lama", {}, "heads"),
    TE: ("transformer", {"layers": 1}, "heads"),
    OURS: ("contextualizer", {"steps": 1}, "rank"),
}


def _counted(system: str, count: int) -> Settings:
    name, options, letter = COUNTED[system]
    return {"layer": name, "dimension": M, "options": {**options, letter: count}}


def count_parameters(settings: Settings, part: str, workplace: Workplace) -> Figures:
    """Return the number of a system's parameters, excluding its token table."""
    module = without_vocabulary(settings["layer"], settings["dimension"], **settings["options"])
    return {"parameters": parameter_count(module)}


LAMA_FIGURE4 = Experiment(
    "lama-figure4",
    "parameters by number of heads",
    f"{PAPER}, Figure 4",
    (
        f"m {M}; counted, not trained: SAN with 350 units, LAMA with the mean as context, TE of one layer with a "
        "feed-forward width of 4 m, whose heads share m features, so its count is constant; the Contextualizer has no "
        "heads: one step, by rank u instead.",
        UNKNOWN_FIGURES,
    ),
    ("system", "heads or rank"),
    tuple(Cell(system, f"{count}", _counted(system, count)) for system in COUNTED for count in (*COUNTS, 64)),
    single_part,
    count_parameters,
    lambda settings, parts: {"parameters": parts["test"]["parameters"]},
    (PARAMETERS, published(0)),
    lines(_by_heads("parameters"), "heads (rank of the Contextualizer)", "parameters", logarithmic=True),
    lambda settings: settings,
)


def _loss_summary(settings: Settings, parts: Mapping[str, Figures]) -> Figures:
    (figures,) = parts.values()
    return {**accuracy_summary(settings, parts), "loss": figures["loss"]}


def _losses(outcome: Outcome) -> str:
    return ", ".join(f"{loss:.3f}" for loss in outcome.figures.get("loss", ()))


LAMA_FIGURE5 = Experiment(
    "lama-figure5",
    "training loss on R8 by epoch",
    f"{PAPER}, Figure 5",
    (
        TRAINING,
        *CHOICES,
        "The loss is the mean cross-entropy over an epoch, SAN's without its penalty.",
        UNKNOWN_FIGURES,
    ),
    ("system", "task"),
    tuple(Cell(system, "R8", _settings(system, "R8")) for system in (SAN, GRU, TE, LAMA, CTX, OURS)),
    single_part,
    train_and_test,
    _loss_summary,
    (Column("loss of epochs 1, 2, ...", _losses), ACCURACY, SECONDS),
    lines(
        lambda outcome: (range(1, len(outcome.figures["loss"]) + 1), outcome.figures["loss"]),
        "epoch",
        "training loss",
    ),
    quick_training,
)
