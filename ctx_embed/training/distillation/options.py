"""How a student is trained: the options of a distillation and the schedule of its learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ctx_embed.errors import InputError, unknown_name

LABELS_FROM = ("all", "spare")
# More held-out texts measure the distance to the teacher no better.
MOST_HELD_OUT = 4096


@dataclass(frozen=True)
class DistillationOptions:
    """How a student is trained.

    Args:
        epochs: passes over the texts.
        batch_size: texts of a batch, whose pairs make up the relations.
        learning_rate: the peak, for table and network alike.
        warmup: the share of all steps in which the rate rises to its peak; after it a cosine falls to 0.
        weight_decay: of AdamW.
        averaging: decay per 10 steps of the moving average of the weights, taken every 50 steps, which is what the
            student has in the end; 0 keeps the last weights.
        relation_weight: of the teacher's cosines between the texts of a batch.
        label_weight: of the labels, where there are labelled texts.
        label_batch: labelled spans of a batch.
        labels_from: the dimensions from which labels and genres are read: ``all``, or ``spare``, those that the teacher
            leaves empty, at unit length: so they cost the teacher's part less, and read better.
        word_weight: of the text's own words.
        words: so many of the most frequent entries are named.
        genre_weight: of the family of files that a text came from.
        pair_weight: of finding a text's partner, where a source has pairs.
        pair_batch: pairs of a batch.
        second_weight: of a second teacher.
        held_out: texts that are not trained on and measure the distance to the teacher; None: a tenth of the texts,
            4,096 at most.
        seed: of the order, the weights drawn and the held-out part.

    Raises:
        InputError: no such ``labels_from``.
    """

    epochs: int = 3
    batch_size: int = 256
    learning_rate: float = 5e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    averaging: float = 0.0
    relation_weight: float = 2.0
    label_weight: float = 0.3
    label_batch: int = 64
    labels_from: str = "all"
    word_weight: float = 0.0
    words: int = 8000
    genre_weight: float = 0.0
    pair_weight: float = 0.0
    pair_batch: int = 64
    second_weight: float = 0.5
    held_out: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.labels_from not in LABELS_FROM:
            raise unknown_name("labels_from", self.labels_from, LABELS_FROM)

    def label_dimensions(self, dimension: int, spare: int) -> int:
        """From how many of the last dimensions labels and genres are read.

        Raises:
            InputError: from the spare ones, of which there are none.
        """
        if self.labels_from == "spare" and not spare:
            raise InputError("labels_from is spare, but spare_dimensions is 0: set both")
        return spare if self.labels_from == "spare" else dimension

    def of_texts(self, texts: int) -> DistillationOptions:
        """Return these options with the held-out part of so many texts where none is given."""
        return self if self.held_out is not None else replace(self, held_out=min(MOST_HELD_OUT, max(1, texts // 10)))

    def trained_on(self, texts: int, excluded: int = 0) -> int:
        """How many of so many texts are trained on at least: all but the held-out part and the excluded ones.

        Raises:
            InputError: fewer than two batches.
        """
        held_out = self.of_texts(texts).held_out or 0
        count = texts - held_out - excluded
        if count < 2 * self.batch_size:
            left_out = f"{held_out} are held out" + (f", {excluded} are excluded" if excluded else "")
            raise InputError(
                f"{texts} texts are too few: {left_out} and two batches of {self.batch_size} are needed; "
                "give more text, or lower --held-out or --batch-size"
            )
        return count


def learning_rate_at(step: int, total: int, options: DistillationOptions) -> float:
    """Linear warm-up to the peak, then a cosine down to 0."""
    warm = max(1, round(options.warmup * total))
    if step < warm:
        return options.learning_rate * (step + 1) / warm
    return options.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))
