"""Tables 2 to 4 and Figure 2 of the Contextualizer's paper: accuracies of classifiers trained end to end."""

from collections.abc import Mapping, Sequence

from ctx_embed.eval.tasks import CONTEXTUALIZER, TASKS, USE
from papers.classifier_cells import (
    INITIAL,
    accuracy_summary,
    fold_parts,
    quick_training,
    settings_from,
    settings_of,
    train_and_test,
)
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
    bars,
    beside,
    difference,
    lines,
    number,
    of_paper,
    published,
    span,
)
from papers.variants import MATRICES

PAPER = "Maupome & Meurs 2022, Information 13(6):290"
M, K, LAYERS, HEADS = 128, 5, 5, 4
OURS, TRANSFORMER, SCRATCH = "Contextualizer", "Transformer", "Contextualizer, from scratch"
CONTEXTS = ("ones", "learned", "uniform")
USE_DAN = "USE-DAN"
PUBLISHED_DAN = of_paper("Contextualizer", "Table 4")[USE_DAN]
TABLE4_TASKS = ("MR", "CR", "SUBJ", "MPQA")
# Accuracies by first context: with one step, and with five.
PUBLISHED_TABLE_3 = of_paper("Contextualizer", "Table 3")
SIZES = (0.5, 1.0, 1.5, 2.0)
# The rank u of Tables 3 and 4: with 5 steps, half a million parameters.
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
    # In each layer, the biases and the two layer normalisations have 9 m + f parameters.
    feedforward = round((parameters / LAYERS - 4 * M * M - 9 * M) / (2 * M + 1))
    return settings_of(task, "transformer", layers=LAYERS, heads=heads, feedforward=feedforward)


PUBLISHED_ACCURACY = of_paper("Contextualizer", "Table 2, accuracy")
PUBLISHED_MS = of_paper("Contextualizer", "Table 2, milliseconds")
PAPER_MS = "ms (paper, i7-7700)"
# Smaller differences of accuracy do not count: the standard error of a difference over ten folds is up to 0.4.
ALIKE = 1.0


def _table2() -> tuple[Cell, ...]:
    def cell(row: str, size: float, settings: Settings) -> Cell:
        accuracy, ms = (figures[row][f"{size:g}"] for figures in (PUBLISHED_ACCURACY, PUBLISHED_MS))
        return Cell(row, f"{size:g} M", {**settings, "speed": True}, accuracy, {PAPER_MS: ms})

    ours = [cell(OURS, size, contextualizer("MR", rank=round(size * 1e6 / (3 * K * M)))) for size in SIZES]
    theirs = [cell(TRANSFORMER, size, transformer("MR", size * 1e6)) for size in SIZES]
    return (*ours, *theirs)


def _ratios(ms: Mapping[str, Sequence[float]]) -> list[float]:
    return [theirs / ours for ours, theirs in zip(ms[OURS], ms[TRANSFORMER], strict=True)]


def _listed(ratios: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


def _by_size_of(found: Found, name: str) -> dict[str, list[float]]:
    return {row: [found[row, f"{size:g} M"][name] for size in SIZES] for row in (OURS, TRANSFORMER)}


def _published_ratios() -> list[float]:
    return _ratios({row: [*ms.values()] for row, ms in PUBLISHED_MS.items()})


def _check_table2(found: Found) -> tuple[str, Verdict]:
    accuracy, ratios = _by_size_of(found, "accuracy"), _ratios(_by_size_of(found, "ms"))
    alike = all(abs(ours - theirs) <= ALIKE for ours, theirs in zip(*accuracy.values(), strict=True))
    measured = f"{span(accuracy[OURS])} against {span(accuracy[TRANSFORMER])} %, {_listed(ratios)} times as fast."
    return measured, Verdict.of(alike, min(ratios) >= min(_published_ratios()))


def _check_table3(found: Found) -> tuple[str, Verdict]:
    one, five = ({context: found[context, f"K {steps}"]["accuracy"] for context in CONTEXTS} for steps in (1, 5))
    measured = f"{_contexts(one)} % with one step, {_contexts(five)} with five."
    spoiled = one["uniform"] < one["ones"] - 10
    return measured, Verdict.of(spoiled, spoiled and five["uniform"] > five["ones"] - ALIKE)


def _contexts(accuracies: Mapping[str, float]) -> str:
    """Return the accuracies of the three contexts as text."""
    return ", ".join(f"{accuracies[context]:.1f} ({context})" for context in CONTEXTS)


def _check_table4(found: Found) -> tuple[str, Verdict]:
    ours: list[Figures] = [found[SCRATCH, task] for task in TABLE4_TASKS]
    published = [TASKS[task].published[CONTEXTUALIZER] for task in TABLE4_TASKS]
    measured = ", ".join(f"{figures['accuracy']:.1f}" for figures in ours) + " %."
    # Ours must not be more than two standard errors (of the mean over the folds) below the paper's.
    reached = [
        figures["accuracy"] >= theirs - 2 * figures.get("standard_error", 0.0)
        for figures, theirs in zip(ours, published, strict=True)
    ]
    return measured, Verdict.of(*reached)


def _by_size(outcome: Outcome) -> tuple[Sequence[float], Sequence[float]]:
    accuracy = outcome.figures.get("accuracy")
    return ((), ()) if accuracy is None else ([float(outcome.cell.column.split()[0])], [accuracy])


TABLE2 = Experiment(
    "table2",
    "MR by number of parameters",
    f"{PAPER}, Table 2",
    Claim(
        "at equal size the Contextualizer is as accurate as the Transformer "
        f"({' against '.join(span(of.values()) for of in PUBLISHED_ACCURACY.values())} %) and "
        f"{_listed(_published_ratios())} times as fast.",
        _check_table2,
    ),
    (
        PROTOCOL,
        *CHOICES,
        f"m {M}; Contextualizer of K {K} and rank u = parameters / (3 K m); Transformer of {LAYERS} layers, {HEADS} "
        "heads and the feed-forward width for that size, sinusoidal positions, dropout 0.1, mean of the token "
        "outputs. The token table is not counted.",
        "Milliseconds are medians over one batch of 32 tokenized MR texts: forward pass, and with all gradients of a "
        "training step; measure them on a machine without other work. The paper's are of an Intel Core i7-7700: "
        "compare ratios.",
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
        beside(PAPER_MS, 0),
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
    Claim(
        "a uniform first context, drawn anew for each document, spoils one step ({uniform[0]} %; ones {ones[0]}, "
        "learned {learned[0]}) but not five ({uniform[1]}; ones {ones[1]}, learned {learned[1]}).".format(
            **PUBLISHED_TABLE_3
        ),
        _check_table3,
    ),
    (
        PROTOCOL,
        *CHOICES,
        f"m {M}, u {RANK} for one step and for five.",
        "A uniform c^0 is sampled with the text's own tokens as the seed, the same in training and afterwards; the "
        "paper draws it anew for every document.",
    ),
    ("first context", "steps"),
    tuple(
        Cell(context, f"K {steps}", contextualizer("MR", steps, RANK, context), PUBLISHED_TABLE_3[context][place])
        for place, steps in enumerate((1, 5))
        for context in CONTEXTS
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
    for task in TABLE4_TASKS:
        figures = TASKS[task].published
        others = {USE: figures[USE], USE_DAN: PUBLISHED_DAN[task]}
        cells += [
            Cell(SCRATCH, task, contextualizer(task), figures[CONTEXTUALIZER], others),
            Cell("Contextualizer, default model", task, settings_from(task, "default"), None, others),
            Cell("DAN", task, settings_of(task, "dan"), None, others),
            Cell("Transformer", task, transformer(task, 0.5e6), None, others),
        ]
    return tuple(cells)


TABLE4 = Experiment(
    "table4",
    "MR, CR, SUBJ and MPQA",
    f"{PAPER}, Table 4; {USE}: Cer et al. 2018, arXiv:1803.11175, with another protocol",
    Claim(
        "the Contextualizer reaches {}, {}, {} and {} % on MR, CR, SUBJ and MPQA, near ".format(
            *(TASKS[task].published[CONTEXTUALIZER] for task in TABLE4_TASKS)
        )
        + f"USE with a DAN ({', '.join(str(PUBLISHED_DAN[task]) for task in TABLE4_TASKS)}).",
        _check_table4,
    ),
    (
        PROTOCOL,
        *CHOICES,
        f"From scratch: K {K}, m {M}, u {RANK}; Transformer: {LAYERS} layers, 0.5 M parameters; DAN: two layers, "
        "bigrams in 32,768 buckets.",
        "The default model is fine-tuned as by `ctx-embed train --from default --runs 1 --epochs 8`: batches of 64, "
        "Adam 1e-3, the head is initialised as the linear probe. It was distilled from all-MiniLM-L6-v2 and has seen "
        "other reviews.",
    ),
    ("encoder", "task"),
    _table4(),
    fold_parts,
    train_and_test,
    accuracy_summary,
    (ACCURACY, TESTS, ERROR, published(), difference("accuracy"), beside(USE), beside(USE_DAN), PARAMETERS, SECONDS),
    bars("accuracy", "accuracy in %"),
    quick_training,
)

# Parameters of one step's attention without its b, and the number of steps.
BUDGET, STEPS = 32**3, 3
# The best epoch is among the first.
EPOCHS = 5
SCALAR, VECTOR, TENSOR = "scalar", "vector", "full tensor"
KINDS = ((SCALAR, 64), (SCALAR, 128), (VECTOR, 32), (VECTOR, 64), (VECTOR, 128), (TENSOR, 32))


def _figure2_cell(kind: str, m: int) -> Cell:
    rank = round(BUDGET / (3 * m)) if kind == VECTOR else 1
    settings = settings_of("MR", "contextualizer", {"epochs": EPOCHS}, dimension=m, steps=STEPS, rank=rank)
    return Cell(kind, f"m {m}", settings if kind == VECTOR else {**settings, INITIAL: {MATRICES: BUDGET // m**2}})


def _size(outcome: Outcome) -> str:
    settings, kind = outcome.cell.settings, outcome.cell.row
    if kind == VECTOR:
        return f"u {settings['architecture']['rank']}"
    return f"h {settings[INITIAL][MATRICES]}" if kind == SCALAR else f"{settings[INITIAL][MATRICES]} slices"


def _check_figure2(found: Found) -> tuple[str, None]:
    best = {
        kind: max((found[kind, f"m {m}"]["accuracy"], m) for known, m in KINDS if known == kind)
        for kind in (SCALAR, VECTOR, TENSOR)
    }
    return ", ".join(f"{kind} {accuracy:.1f} % (m {m})" for kind, (accuracy, m) in best.items()) + ".", None


FIGURE2 = Experiment(
    "figure2",
    "MR by kind of attention, at equal parameters",
    f"{PAPER}, Figure 2",
    Claim(
        "attention gives a token one number for each head, or a vector; a vector takes a tensor, which factors of rank "
        "u replace. It gives no accuracies.",
        _check_figure2,
    ),
    (
        PROTOCOL.replace("10 epochs", f"{EPOCHS} epochs"),
        f"K {STEPS}, no positions, first context of ones, and {BUDGET:,} parameters in the attention of each step: "
        "scalar attention has one matrix for each of h heads, which each weigh m / h features; a full tensor has one "
        "for each feature; vector attention has the factors U, V and W. None has a softmax.",
    ),
    ("attention", "features"),
    tuple(_figure2_cell(kind, m) for kind, m in KINDS),
    fold_parts,
    train_and_test,
    accuracy_summary,
    (Column("heads or rank", _size), ACCURACY, TESTS, ERROR, PARAMETERS, SECONDS),
    bars("accuracy", "accuracy on MR in %"),
    quick_training,
)
