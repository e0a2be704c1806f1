"""Texts with one label each, or with several, and how well predictions agree with them.

Labels are strings, integers, floats or booleans, all of one type.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, quoted
from ctx_embed.reading.rows import header_hint, read_labelled
from ctx_embed.texts import aligned

Label = str | int | float
SEVERAL = (tuple, list, set, frozenset)
# A wider confusion matrix is shown as a list of the most frequent mistakes.
WIDEST_MATRIX = 20
MOST_MISTAKES = 20
MOST_LABEL = MOST_CONFUSED = 1000
# Maximum number of texts times classes: the fit compares each of the texts with each of the classes.
MOST_COMPARED = 100_000_000


@dataclass(frozen=True)
class Labelled:
    """Texts with one label each or, if labels are tuples, with any number of labels each."""

    labels: Sequence[Any]
    texts: Sequence[str]

    @classmethod
    def read(cls, source: str | Path, *fields: Any, **options: Any) -> Labelled:
        """Read a labelled file; the arguments are those of :func:`ctx_embed.reading.rows.read_labelled_rows`."""
        data = cls(*read_labelled(source, *fields, typed=True, **options))
        data.require_labels()
        return data

    @property
    def multi_label(self) -> bool:
        """Whether a text may have any number of labels."""
        return len(self.labels) > 0 and isinstance(self.labels[0], SEVERAL)

    def require_labels(self) -> None:
        """Raise an InputError unless the labels are of one type, see :func:`require_labels`."""
        require_labels(chain.from_iterable(self.labels) if self.multi_label else self.labels)

    def classes(self) -> list[Any]:
        """Return the labels that occur, sorted; raise an InputError for fewer than two."""
        classes = sorted(self.label_set())
        if self.multi_label and not classes:
            raise InputError("the training texts must have at least one label, got none")
        if not self.multi_label and len(classes) < 2:
            shown = f" ({quoted(classes[0])})" if classes else ""
            raise InputError(f"the training texts must have at least two classes, got {len(classes)}{shown}")
        return classes

    def targets(self, classes: Sequence[Any]) -> NDArray[Any]:
        """Return each text's class number (n,), or with several labels per text 0s and 1s (n, classes)."""
        place = {label: number for number, label in enumerate(classes)}
        if not self.multi_label:
            return np.array([place[label] for label in self.labels], np.int64)
        targets = np.zeros((len(self.labels), len(classes)), np.float32)
        for row, labels in enumerate(self.labels):
            targets[row, [place[label] for label in labels]] = 1
        return targets

    def doubt(self) -> str:
        """Return a hint if the labels look like a mistake, such as swapped columns; otherwise an empty string."""
        if self.multi_label:
            return ""
        if len(self.label_set()) > len(set(self.texts)) > 1:
            return "the label must come first (label<TAB>text); the columns may be swapped"
        return header_hint(self.labels)

    def split(self, share: float, seed: int) -> tuple[Labelled, Labelled]:
        """Split off ``share`` of the texts, with labels in similar proportions; return the larger part first.

        Equal texts are on the same side. A text whose label no other text has stays in the first part. With several
        labels per text the split is random. With too few texts to have each label in both, raise an InputError.
        """
        from sklearn.model_selection import train_test_split

        first_row = {text: row for row, text in reversed(list(enumerate(self.texts)))}
        distinct = sorted(first_row.values())
        counts = Counter(() if self.multi_label else [self.labels[row] for row in distinct])
        doubt = self.doubt()
        alone = {row for row in distinct if not self.multi_label and counts[self.labels[row]] == 1 and not doubt}
        # If every label occurs once, none is left, and the split below raises its error.
        shared = [row for row in distinct if row not in alone]
        # Numbers, since NumPy's strings and floats may merge labels.
        number = {label: place for place, label in enumerate(counts)}
        classes = None if self.multi_label else [number[self.labels[row]] for row in shared]
        try:
            _, held_out = train_test_split(shared, test_size=share, random_state=seed, stratify=classes)
        except ValueError:
            doubt = doubt or "give more texts or validation texts, or leave the encoder frozen"
            different = f" ({len(distinct)} different ones)" if len(distinct) < len(self.texts) else ""
            raise InputError(
                f"{len(self.texts)} texts{different} with {len(self.label_set())} labels are too few to hold out "
                f"{share:.0%} with every label; {doubt}"
            ) from None
        held_out = set(held_out)
        parts: Any = ([], []), ([], [])
        for label, text in zip(self.labels, self.texts, strict=True):
            labels, texts = parts[first_row[text] in held_out]
            labels.append(label)
            texts.append(text)
        return Labelled(*parts[0]), Labelled(*parts[1])

    def rows(self, chosen: Iterable[int]) -> Labelled:
        """Return some of the rows."""
        chosen = list(chosen)
        return Labelled([self.labels[row] for row in chosen], [self.texts[row] for row in chosen])

    def folds(self, count: int, seed: int) -> list[list[int]]:
        """Return the rows of each of ``count`` folds, with labels in similar proportions; equal texts share a fold.

        Raises:
            InputError: a fold would be empty, or the other folds might have only one label.
        """
        rows_of: dict[str, list[int]] = {}
        for row, text in enumerate(self.texts):
            rows_of.setdefault(text, []).append(row)
        groups = list(rows_of.values())
        order = np.random.default_rng(seed).permutation(len(groups)).tolist()
        if not self.multi_label:
            place = {label: number for number, label in enumerate(self.classes())}
            order.sort(key=lambda group: place[self.labels[groups[group][0]]])
        often = [count for count in Counter(self.labels[rows[0]] for rows in groups).values() if count > 1]
        if len(groups) < count or (not self.multi_label and len(often) < 2):
            raise InputError(
                f"{count} folds need {count} different texts, and two texts of each of two labels; give more texts"
            )
        folds: list[list[int]] = [[] for _ in range(count)]
        for number, group in enumerate(order):
            folds[number % count] += groups[group]
        return folds

    def matched(self, classes: Sequence[Any]) -> Labelled:
        """Return the texts with each label replaced by the class that it means, see :class:`Classes`, if any."""
        known_classes = Classes(classes)

        def meant(label: Any) -> Any:
            return label if (found := known_classes.meant(label)) is None else found

        if self.multi_label:
            return Labelled([tuple(map(meant, labels)) for labels in self.labels], self.texts)
        return Labelled([meant(label) for label in self.labels], self.texts)

    def unknown(self, classes: Sequence[Any]) -> str:
        """Return the first five labels that are not among the classes, as text; an empty string if there are none."""
        return first_labels(sorted(self.label_set() - set(classes), key=str))

    def require_labels_of(self, train: Labelled, name: str) -> None:
        """Raise an InputError for labels that ``train`` lacks; the error calls these texts ``name``."""
        if self.multi_label != train.multi_label:
            raise InputError(f"the {name} texts and the training texts must both have one label each, or both several")
        if unknown := self.unknown(list(train.label_set())):
            raise InputError(f"the {name} texts have labels that the training texts lack: {unknown}")

    def label_set(self) -> set[Any]:
        """Return the labels that occur."""
        return {label for labels in self.labels for label in labels} if self.multi_label else set(self.labels)


def label_accuracy(predicted: Sequence[Any], data: Labelled) -> float:
    """Return the share of texts with the correct label; with several labels, the overlap with the true labels.

    The overlap is |predicted and true| / |predicted or true|, 1 if both are empty, averaged over the texts.
    """
    pairs = zip(predicted, data.labels, strict=True)
    if not data.multi_label:
        return float(np.mean([a == b for a, b in pairs]))
    sets = [(set(a), set(b)) for a, b in pairs]
    return float(np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in sets]))


def require_labels(labels: Iterable[Any]) -> None:
    """Raise an InputError unless labels are strings, booleans or numbers, all of one type."""
    kinds = set()
    for label in labels:
        # Subclasses, such as members of enumerations, could not be saved and loaded as what they are.
        if type(label) not in (str, int, float, bool) or (type(label) is float and not math.isfinite(label)):
            remedy = f"; give its value, {quoted(label.value)}" if isinstance(label, Enum) else ""
            if isinstance(label, str) and not remedy:
                remedy = f" of the class {type(label).__name__}; give str(label)"
            raise InputError(f"labels must be strings, finite numbers or booleans, got {quoted(label)}{remedy}")
        # An array of strings takes the longest one's room for each.
        if isinstance(label, str) and len(label) > MOST_LABEL:
            raise InputError(f"a label must have at most {MOST_LABEL:,} characters, got {quoted(label)}")
        kinds.add(type(label))
    if len(kinds) > 1 and kinds != {int, float}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"labels must be of one type, got {names}")


def as_array(labels: Sequence[Any]) -> NDArray[Any]:
    """Return labels as an array (classes,) that holds each of them exactly; of objects, where no other one does."""
    for dtype in (None, np.uint64):
        with suppress(OverflowError, ValueError, TypeError):
            found = np.array(labels, dtype)
            # NumPy drops NUL characters at the end of strings, and turns integers above 2^63 into floats.
            is_mixed = len(set(map(type, labels))) > 1
            if found.tolist() == list(labels) and (is_mixed or type(found.tolist()[0]) is type(labels[0])):
                return found
    objects = np.empty(len(labels), object)
    objects[:] = labels
    return objects


def first_labels(labels: Sequence[Label]) -> str:
    """Return the first five labels as text, for a message; an empty string if there are none."""
    return ", ".join([*map(repr, labels[:5]), *["..."] * (len(labels) > 5)])


def spellings(label: Label) -> list[str]:
    """Return the texts that mean a label, the usual one first: a string itself, True as 1, 1 as 1.0."""
    if isinstance(label, str):
        return [label]
    if isinstance(label, bool):
        return ["True", "true", "TRUE", "1", "1.0"] if label else ["False", "false", "FALSE", "0", "0.0"]
    whole = math.isfinite(label) and label == int(label)
    return list(dict.fromkeys([str(label), *([str(int(label)), f"{int(label)}.0"] if whole else [])]))


class Classes:
    """Finds the class that a label means, whatever its type: "1", 1 and 1.0 are the class 1."""

    def __init__(self, labels: Sequence[Label]) -> None:
        self._by_spelling: dict[str, Label] = {}
        for label in labels:
            for text in spellings(label):
                self._by_spelling.setdefault(text, label)

    def meant(self, label: Label) -> Label | None:
        """Return the class; None if no class is spelled like the label."""
        return next((self._by_spelling[text] for text in spellings(label) if text in self._by_spelling), None)


def report(predicted: Sequence[Any], data: Labelled, labels: Sequence[Any]) -> dict[str, Any]:
    """Compare predictions with the labels of the same texts, some of which may not be among the classes ``labels``.

    Returns:
        JSON values: the number of ``texts``; ``accuracy``, see :func:`label_accuracy`; with several labels ``exact``,
        the share of texts with exactly the correct labels; the unweighted means ``macro_precision``, ``macro_recall``
        and ``macro_f1`` over the classes that occur or are predicted; the ``classes`` with ``label``, ``precision``,
        ``recall``, ``f1`` and ``texts``; and with one label per text and at most 1,000 classes ``confusion``: row i
        column j counts texts of class i predicted as j.
    """
    known = [*labels, *sorted(data.label_set() - set(labels), key=str)]
    sides = [of if data.multi_label else [(label,) for label in of] for of in (data.labels, predicted)]
    sets = [(set(a), set(b), set(a) & set(b)) for a, b in zip(*sides, strict=True)]
    # Counted label by label: an array of all texts or classes and all classes might fill the memory.
    true, found, right = (Counter(chain.from_iterable(each[side] for each in sets)) for side in range(3))
    rows = []
    for label in known:
        both, of, by = right[label], true[label], found[label]
        shares = {"precision": both / max(by, 1), "recall": both / max(of, 1), "f1": 2 * both / max(of + by, 1)}
        rows.append({"label": label, **shares, "texts": of})
    met = [row for row in rows if row["texts"] or found[row["label"]]] or rows
    exact = {"exact": float(np.mean([a == b for a, b, _ in sets]))} if data.multi_label else {}
    means = {f"macro_{name}": float(np.mean([row[name] for row in met])) for name in ("precision", "recall", "f1")}
    result = {"texts": len(data.texts), "accuracy": label_accuracy(predicted, data), **exact, **means, "classes": rows}
    if not data.multi_label and len(known) <= MOST_CONFUSED:
        pairs = Counter(zip(data.labels, predicted, strict=True))
        result["confusion"] = [[pairs[true, found] for found in known] for true in known]
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
    parts = [f"accuracy {report['accuracy']:.4f}{exact}, macro F1 {report['macro_f1']:.4f}", aligned(of_classes)]
    if "confusion" in report:
        names, counts = [str(row["label"]) for row in report["classes"]], np.array(report["confusion"])
        if len(names) <= WIDEST_MATRIX:
            rows = [[name, *map(str, row)] for name, row in zip(names, counts.tolist(), strict=True)]
            parts.append(aligned([["true \\ predicted", *names], *rows]))
        else:
            np.fill_diagonal(counts, 0)
            order = np.argsort(-counts, axis=None, kind="stable")
            most = [divmod(int(cell), len(names)) for cell in order[:MOST_MISTAKES]]
            mistakes = [[names[i], names[j], str(counts[i, j])] for i, j in most if counts[i, j]]
            parts.append(aligned([["true", "predicted", "texts"], *mistakes]))
    return "\n\n".join(parts)
