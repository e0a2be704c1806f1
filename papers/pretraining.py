"""What pre-training on masked words does to Table 4: models of :mod:`papers.masked_words`, fine-tuned."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

from papers.classifier_cells import accuracy_summary, fold_parts, quick_training, settings_of, train_and_test
from papers.experiment import Cell, Claim, Experiment, Figures, Found, Settings, bars
from papers.inputs import Workplace
from papers.tables import ACCURACY, ERROR, PAPER, PARAMETERS, PROTOCOL, SECONDS, TABLE4_TASKS, TESTS

ARCHITECTURE = {"dimension": 128, "steps": 3, "rank": 64}
# The share of tokens that pre-training hides, its sentences in a batch and its first learning rate.
HIDDEN, BATCH, RATE = 0.15, 256, 1e-3
# The file in a pre-trained model's folder that says how it was made.
RECORD = "pretraining.json"
SCRATCH, PRETRAINED = "from scratch", "pre-trained"
# The best epoch is among the first.
EPOCHS = 5


def _cell(row: str, task: str) -> Cell:
    training = {"epochs": EPOCHS, "head": "zeros"}
    settings = settings_of(task, "contextualizer", training, **ARCHITECTURE)
    if row == PRETRAINED:
        # The model is named by --option start=PATH.
        settings = {"task": task, "start": None, "training": settings["training"]}
    return Cell(row, task, settings)


def _fine_tune(settings: Settings, part: str, workplace: Workplace) -> Figures:
    figures = train_and_test(settings, part, workplace)
    if start := settings.get("start"):
        figures["pretraining"] = json.loads((Path(start) / RECORD).read_text(encoding="utf-8"))
    return figures


def _summary(settings: Settings, parts: Mapping[str, Figures]) -> Figures:
    figures = {**accuracy_summary(settings, parts), "accuracies": [part["accuracy"] for part in parts.values()]}
    records = [part["pretraining"] for part in parts.values() if "pretraining" in part]
    return {**figures, **({"pretraining": records[0]} if records else {})}


def gain(found: Found, task: str) -> str:
    """Return how many points pre-training adds on a task, the mean over folds, and its standard error."""
    scratch, pretrained = (found[row, task]["accuracies"] for row in (SCRATCH, PRETRAINED))
    gains = [after - before for before, after in zip(scratch, pretrained, strict=False)]
    error = f" ± {stdev(gains) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else ""
    return f"{round(fmean(gains), 1) + 0:+.1f}{error}"


def _check(found: Found) -> tuple[str, None]:
    gains = ", ".join(f"{gain(found, task)} on {task}" for task in TABLE4_TASKS)
    record = found[PRETRAINED, TABLE4_TASKS[0]]["pretraining"]
    return (
        f"one reading of {record['sentences']:,} sentences with hidden words takes {record['processor_hours']:.2f} "
        f"processor hours, and changes the accuracy in points by {gains} (± a standard error)."
    ), None


PRETRAINING = Experiment(
    "pretraining",
    "MR, CR, SUBJ and MPQA after pre-training on masked words",
    f"{PAPER}, future work",
    Claim("it leaves pre-training at linear cost to future work.", _check),
    (
        PROTOCOL.replace("from random weights", "from random or pre-trained weights").replace(
            "10 epochs", f"{EPOCHS} epochs"
        ),
        "m 128, K 3, u 64, no positions, first context of ones; a linear head of zeros.",
        f"Pre-training: {HIDDEN:.0%} of the tokens of a batch of {BATCH} sentences are hidden, and c^K of each "
        f"sentence scores the entries of the batch; one reading, Adam {RATE:g} falling to 0. The model is the one that "
        "`--option start=PATH` names, made by `python -m papers.masked_words`.",
    ),
    ("weights", "task"),
    tuple(_cell(row, task) for row in (SCRATCH, PRETRAINED) for task in TABLE4_TASKS),
    lambda settings, folds: [] if settings.get("start", "") is None else fold_parts(settings, folds),
    _fine_tune,
    _summary,
    (ACCURACY, TESTS, ERROR, PARAMETERS, SECONDS),
    bars("accuracy", "accuracy in %"),
    quick_training,
)
