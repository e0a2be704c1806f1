"""Texts with one label each, or with several: strings, integers, floats or booleans, all of one type."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.rows.reading import header_hint, read_labelled

Label = str | int | float
SEVERAL = (tuple, list, set, frozenset)


@dataclass(frozen=True)
class Labelled:
    """Texts with one label each or, if labels are tuples, with any number of labels each."""

    labels: Sequence[Any]
    texts: Sequence[str]

    @classmethod
    def read(
        cls,
        source: str | Path,
        text_field: str | None = None,
        label_field: str | None = None,
        several: bool = False,
        encoding: str | None = None,
    ) -> Labelled:
        """Read a labelled file, see :func:`ctx_embed.rows.reading.read_labelled_rows`."""
        data = cls(*read_labelled(source, text_field, label_field, several=several, typed=True, encoding=encoding))
        data.require_labels()
        return data

    @property
    def multi_label(self) -> bool:
        """Whether each text has any number of labels."""
        return len(self.labels) > 0 and isinstance(self.labels[0], SEVERAL)

    def require_labels(self) -> None:
        """Raise an InputError unless the labels are of one type, see :func:`require_labels`."""
        require_labels(chain.from_iterable(self.labels) if self.multi_label else self.labels)

    def classes(self) -> list[Any]:
        """Return the labels that occur, sorted; raise an InputError for several types, or fewer than two."""
        self.require_labels()
        classes = sorted(self.label_set())
        if self.multi_label and not classes:
            raise InputError("the training texts must have at least one label, got none")
        if not self.multi_label and len(classes) < 2:
            shown = f" ({classes[0]!r})" if classes else ""
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

    @property
    def repeated(self) -> int:
        """The number of texts that equal an earlier one."""
        return len(self.texts) - len(set(self.texts))

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
        # If every label occurs once, nothing can be held out: let the split below raise its error.
        shared = [row for row in distinct if row not in alone] or distinct
        classes = None if self.multi_label else [self.labels[row] for row in shared]
        try:
            _, held_out = train_test_split(shared, test_size=share, random_state=seed, stratify=classes)
        except ValueError:
            doubt = doubt or "give more texts or validation texts, or leave the encoder frozen"
            different = f" ({len(distinct)} different ones)" if self.repeated else ""
            raise InputError(
                f"{len(self.texts)} texts{different} with {len(self.label_set())} labels are too few to hold out "
                f"{share:.0%} with every label; {doubt}"
            ) from None
        held_out = set(held_out)
        of_second = [first_row[text] in held_out for text in self.texts]
        return (
            self.rows([row for row, second in enumerate(of_second) if not second]),
            self.rows([row for row, second in enumerate(of_second) if second]),
        )

    def matched(self, classes: Sequence[Any]) -> Labelled:
        """Return the texts with the classes that their labels mean, whatever their type; unknown labels stay."""
        of = Classes(classes)

        def meant(label: Any) -> Any:
            return label if (found := of.meant(label)) is None else found

        if self.multi_label:
            return Labelled([tuple(map(meant, labels)) for labels in self.labels], self.texts)
        return Labelled([meant(label) for label in self.labels], self.texts)

    def unknown(self, classes: Sequence[Any]) -> str:
        """Return the labels that are not among the classes, the first five of them; otherwise an empty string."""
        return first_labels(sorted(self.label_set() - set(classes), key=str))

    def require_labels_of(self, train: Labelled, name: str) -> None:
        """Raise an InputError for labels that ``train`` lacks; ``name`` is the error's name for these texts."""
        if self.multi_label != train.multi_label:
            raise InputError(f"the {name} texts and the training texts must both have one label each, or both several")
        if unknown := self.unknown(list(train.label_set())):
            raise InputError(f"the {name} texts have labels that the training texts lack: {unknown}")

    def rows(self, rows: Sequence[int]) -> Labelled:
        """Return some of the texts."""
        return Labelled([self.labels[row] for row in rows], [self.texts[row] for row in rows])

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
    """Raise an InputError unless labels are strings, numbers or booleans of one type; integers and floats are one."""
    kinds = set()
    for label in labels:
        if not isinstance(label, str | int | float) or (isinstance(label, float) and not math.isfinite(label)):
            raise InputError(f"labels must be strings, finite numbers or booleans, got {label!r}")
        kinds.add(type(label))
    if len(kinds) > 1 and kinds != {int, float}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"labels must be of one type, got {names}")


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
