"""Tables 2 to 4 of the Contextualizer's paper: accuracies of classifiers trained end to end."""

from __future__ import annotations

from collections.abc import Sequence

from ctx_embed.eval.reproduce.classifier_cells import (
    accuracy_summary,
    fold_parts,
    quick_training,
    settings_from,
    settings_of,
    train_and_test,
)
from ctx_embed.eval.reproduce.experiment import (
    Cell,
    Column,
    Experiment,
    Outcome,
    Settings,
    difference,
    number,
    published,
)
from ctx_embed.eval.reproduce.plotting import bars, lines
from ctx_embed.eval.tasks.catalogue import TASKS
from ctx_embed.eval.tasks.probe import CONTEXTUALIZER, USE

PAPER = "Maupome & Meurs 2022, Information 13(6):290"
M, K, LAYERS, HEADS = 128, 5, 5, 4
SIZES = (0.5, 1.0, 1.5, 2.0)
# u of Tables 3 and 4: half a million parameters with K 5.
RANK = 260

PROTOCOL = (
    "Encoder and linear head trained end to end by cross-entropy from random weights: Adam 1e-4, batches of 32, 10 "
    "epochs, the best epoch on 10 % of the training part; stratified 10-fold, each fold with other initial weights; ± "
    "is the standard deviation over the folds that were run."
)
CHOICES = (
    "Open in the paper, chosen by us: BERT's uncased WordPiece entries without special tokens; positions absolute "
    "with weights that average 1 (`scale` mean; the paper's formula, which sums to 1, does as well); token vectors "
    "randomly initialised with standard deviation 0.03; layer normalisation with gain and bias; the head reads c^K "
    "and is initialised with zeros, that of the other encoders as torch's Linear.",
)


def _accuracy(outcome: Outcome) -> str:
    figures = outcome.figures
    if "accuracy" not in figures:
        return ""
    return f"{figures['accuracy']:.1f}" + (f" ± {figures['std']:.1f}" if "std" in figures else "")


ACCURACY = Column("accuracy", _accuracy)
TESTS = Column("folds", number("tests", 0))
ERROR = Column("standard error", number("standard_error", 2))
PARAMETERS = Column("parameters", number("parameters", 0))
SECONDS = Column("seconds a fold", number("seconds_each", 0))


def contextualizer(task: str, steps: int = K, rank: int = RANK, initial_context: str = "ones") -> Settings:
    """Return the settings of a Contextualizer trained from scratch with the choices above."""
    return settings_of(
        task,
        "contextualizer",
        steps=steps,
        rank=rank,
        positions="absolute",
        scale="mean",
        initial_context=initial_context,
    )


def transformer(task: str, parameters: float, heads: int = HEADS) -> Settings:
    """Return the settings of a Transformer of 5 layers with a feed-forward width for ``parameters`` parameters."""
    # Biases and the two layer normalisations have 9 m + f parameters a layer.
    feedforward = round((parameters / LAYERS - 4 * M * M - 9 * M) / (2 * M + 1))
    return settings_of(task, "transformer", layers=LAYERS, heads=heads, feedforward=feedforward)


def _table2() -> tuple[Cell, ...]:
    def cell(row: str, size: float, settings: Settings) -> Cell:
        return Cell(row, f"{size:g} M", {**settings, "speed": True})

    ours = [cell("Contextualizer", size, contextualizer("MR", rank=round(size * 1e6 / (3 * K * M)))) for size in SIZES]
    theirs = [cell("Transformer", size, transformer("MR", size * 1e6)) for size in SIZES]
    return (*ours, *theirs)


def _by_size(outcome: Outcome) -> tuple[Sequence[float], Sequence[float]]:
    accuracy = outcome.figures.get("accuracy")
    return ((), ()) if accuracy is None else ([float(outcome.cell.column.split()[0])], [accuracy])


TABLE2 = Experiment(
    "table2",
    "MR by number of parameters",
    f"{PAPER}, Table 2",
    (
        PROTOCOL,
        *CHOICES,
        f"m {M}; Contextualizer of K {K} and rank u = parameters / (3 K m); Transformer of {LAYERS} layers, {HEADS} "
        "heads and the feed-forward width for that size, sinusoidal positions, dropout 0.1, mean of the token "
        "outputs. The token table is not counted.",
        "Milliseconds are medians over one batch of 32 tokenized MR texts: forward pass, and with all gradients of a "
        "training step; measure them on a machine without other work.",
        "We could not find the paper's values.",
    ),
    ("encoder", "size"),
    _table2(),
    fold_parts,
    train_and_test,
    accuracy_summary,
    (
        ACCURACY,
        TESTS,
        ERROR,
        published(),
        difference("accuracy"),
        PARAMETERS,
        Column("ms a batch", number("ms")),
        Column("ms with gradients", number("training_ms")),
        SECONDS,
    ),
    lines(_by_size, "million parameters", "accuracy on MR in %"),
    quick_training,
)

TABLE3 = Experiment(
    "table3",
    "MR by first context and steps",
    f"{PAPER}, Table 3",
    (
        PROTOCOL,
        *CHOICES,
        f"m {M}, u {RANK} for one step and for five.",
        "Of the paper's values we know: uniform with K 1 (57.9), and 73.1 for either ones or learned with K 1.",
        "A uniform c^0 is sampled with the text's own tokens as the seed, the same in training and afterwards.",
    ),
    ("first context", "steps"),
    tuple(
        Cell(context, f"K {steps}", contextualizer("MR", steps, RANK, context), theirs)
        for context, steps, theirs in (
            ("ones", 1, None),
            ("learned", 1, None),
            ("uniform", 1, 57.9),
            ("ones", 5, None),
            ("learned", 5, None),
            ("uniform", 5, None),
        )
    ),
    fold_parts,
    train_and_test,
    accuracy_summary,
    (ACCURACY, TESTS, ERROR, published(), difference("accuracy"), PARAMETERS, SECONDS),
    bars("accuracy", "accuracy on MR in %"),
    quick_training,
)


def _table4() -> tuple[Cell, ...]:
    cells = []
    for task in ("MR", "CR", "SUBJ", "MPQA"):
        figures = TASKS[task].published
        beside = {USE: figures[USE]}
        cells += [
            Cell("Contextualizer, from scratch", task, contextualizer(task), figures[CONTEXTUALIZER], beside),
            Cell("Contextualizer, default model", task, settings_from(task, "default"), None, beside),
            Cell("DAN", task, settings_of(task, "dan"), None, beside),
            Cell("Transformer", task, transformer(task, 0.5e6), None, beside),
        ]
    return tuple(cells)


TABLE4 = Experiment(
    "table4",
    "MR, CR, SUBJ and MPQA",
    f"{PAPER}, Table 4; {USE}: Cer et al. 2018, arXiv:1803.11175, with another protocol",
    (
        PROTOCOL,
        *CHOICES,
        f"From scratch: K {K}, m {M}, u {RANK}; Transformer: {LAYERS} layers, 0.5 M parameters; DAN: two layers, "
        "bigrams in 32,768 buckets. We could not find the paper's baselines.",
        "The default model is fine-tuned as by `ctx-embed train --from default`: 8 epochs, batches of 64, Adam "
        "1e-3, the head is initialised as the linear probe. It was distilled from all-MiniLM-L6-v2 and has "
        "seen other reviews.",
    ),
    ("encoder", "task"),
    _table4(),
    fold_parts,
    train_and_test,
    accuracy_summary,
    (
        ACCURACY,
        TESTS,
        ERROR,
        published(),
        difference("accuracy"),
        Column(USE, lambda outcome: f"{outcome.cell.beside[USE]:.1f}"),
        PARAMETERS,
        SECONDS,
    ),
    bars("accuracy", "accuracy in %"),
    quick_training,
)
