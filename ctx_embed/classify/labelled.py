"""Texts with one label each, or with several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.rows import header_hint, read_labelled

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
        """Read a labelled file, see :func:`ctx_embed.rows.read_labelled_rows`.

        Raises:
            InputError: the file cannot be read.
        """
        return cls(*read_labelled(source, text_field, label_field, several=several, encoding=encoding))

    @property
    def multi_label(self) -> bool:
        """Whether each text has any number of labels."""
        return len(self.labels) > 0 and isinstance(self.labels[0], SEVERAL)

    def classes(self) -> list[Any]:
        """Return the labels that occur, sorted.

        Raises:
            InputError: fewer than two classes, or labels of types that cannot be compared.
        """
        found = self.label_set()
        try:
            classes = sorted(found)
        except TypeError:
            kinds = ", ".join(sorted({type(label).__name__ for label in found}))
            raise InputError(f"labels must be of one type, got {kinds}") from None
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

    def split(self, share: float, seed: int) -> tuple[Labelled, Labelled]:
        """Split off ``share`` of the texts, with labels in similar proportions; return the larger part first.

        A text whose label no other text has stays in the first part. With several labels per text the split is random.

        Raises:
            InputError: too few texts to have each label in both parts.
        """
        from sklearn.model_selection import train_test_split

        rows = np.arange(len(self.labels))
        counts = Counter(() if self.multi_label else self.labels)
        doubt = self.doubt()
        alone = np.array([counts[label] == 1 and not doubt for label in self.labels], bool)
        # If every label occurs once, nothing can be held out: let the split below raise its error.
        alone &= not alone.all()
        shared = rows[~alone]
        classes = None if self.multi_label else [self.labels[row] for row in shared]
        try:
            first, second = train_test_split(shared, test_size=share, random_state=seed, stratify=classes)
        except ValueError:
            raise InputError(
                f"{len(rows)} texts with {len(self.label_set())} labels are too few to hold out {share:.0%} with every "
                f"label; {doubt or 'give more texts, or --valid FILE'}"
            ) from None
        return self.rows(sorted([*first, *rows[alone]])), self.rows(sorted(second))

    def require_labels_of(self, train: Labelled, name: str) -> None:
        """Raise an error for labels that the training texts do not have; ``name`` is the error's name for these texts.

        Raises:
            InputError: naming the first few of them; or one side has several labels per text and the other has one.
        """
        if self.multi_label != train.multi_label:
            raise InputError(f"the {name} texts and the training texts must both have one label each, or both several")
        if unknown := sorted(self.label_set() - train.label_set()):
            shown = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
            raise InputError(f"the {name} texts have labels that the training texts lack: {shown}")

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
