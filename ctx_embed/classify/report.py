"""Quality of predictions: precision, recall and F1 of each class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctx_embed.classify.labelled import Labelled, label_accuracy

# A wider confusion matrix is shown as a list of the most frequent mistakes.
WIDEST_MATRIX = 20
MOST_MISTAKES = 20


def report(predicted: Sequence[Any], data: Labelled, labels: Sequence[Any]) -> dict[str, Any]:
    """Compare predictions with labels.

    Args:
        predicted: for each text a label, or with several labels a tuple of them.
        data: the same texts with their true labels, which may include unknown ones.
        labels: the classes.

    Returns:
        JSON values: the number of ``texts``; ``accuracy``, see :func:`label_accuracy`; with several labels ``exact``,
        the share of texts with exactly the correct labels; the unweighted means ``macro_precision``,
        ``macro_recall`` and ``macro_f1``; the ``classes`` with ``label``, ``precision``, ``recall``, ``f1`` and
        ``texts``; and with one label per text ``confusion``: row i column j counts texts of class i predicted as j.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    known = [*labels, *sorted(data.label_set() - set(labels), key=str)]
    place = {label: number for number, label in enumerate(known)}
    if data.multi_label:
        truth: Any = data.targets(known)
        found: Any = Labelled(predicted, data.texts).targets(known)
        exact = {"exact": float((truth == found).all(1).mean())}
    else:
        truth, found = (np.array([place[label] for label in of_texts]) for of_texts in (data.labels, predicted))
        exact = {}
    of_classes = precision_recall_fscore_support(truth, found, labels=range(len(known)), zero_division=0)
    rows = [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f1), "texts": int(texts)}
        for label, p, r, f1, texts in zip(known, *of_classes, strict=True)
    ]
    means = {f"macro_{name}": float(np.mean([row[name] for row in rows])) for name in ("precision", "recall", "f1")}
    result = {"texts": len(data.texts), "accuracy": label_accuracy(predicted, data), **exact, **means, "classes": rows}
    if not data.multi_label:
        result["confusion"] = confusion_matrix(truth, found, labels=range(len(known))).tolist()
    return result


def as_text(report: dict[str, Any]) -> str:
    """Return a :func:`report` as lines for the terminal."""
    exact = f", all labels of a text correct {report['exact']:.4f}" if "exact" in report else ""
    of_classes = [["", "precision", "recall", "f1", "texts"]]
    for row in report["classes"]:
        of_classes.append([str(row["label"]), *(f"{row[name]:.3f}" for name in ("precision", "recall", "f1"))])
        of_classes[-1].append(str(row["texts"]))
    means = (f"{report[f'macro_{name}']:.3f}" for name in ("precision", "recall", "f1"))
    of_classes.append(["mean", *means, str(report["texts"])])
    parts = [f"accuracy {report['accuracy']:.4f}{exact}", _aligned(of_classes)]
    if "confusion" in report:
        names, counts = [str(row["label"]) for row in report["classes"]], np.array(report["confusion"])
        if len(names) <= WIDEST_MATRIX:
            rows = [[name, *map(str, row)] for name, row in zip(names, counts.tolist(), strict=True)]
            parts.append(_aligned([["true \\ predicted", *names], *rows]))
        else:
            np.fill_diagonal(counts, 0)
            order = np.argsort(-counts, axis=None, kind="stable")
            most = [divmod(int(cell), len(names)) for cell in order[:MOST_MISTAKES]]
            mistakes = [[names[i], names[j], str(counts[i, j])] for i, j in most if counts[i, j]]
            parts.append(_aligned([["true", "predicted", "texts"], *mistakes]))
    return "\n\n".join(parts)


def _aligned(rows: list[list[str]]) -> str:
    """Return rows as lines: the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
