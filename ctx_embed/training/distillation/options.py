"""The options of a distillation and its learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ctx_embed.errors import InputError, unknown_name

LABELS_FROM = ("all", "spare")
# More held-out texts would not measure the distance to the teacher any better.
MOST_HELD_OUT = 4096


@dataclass(frozen=True)
class DistillationOptions:
    """Options of a distillation.

    Args:
        epochs: passes over the texts.
        batch_size: texts per batch; the relation loss compares all their pairs.
        learning_rate: the highest learning rate, of the token table and the network.
        warmup: fraction of all steps in which the learning rate rises linearly; then it falls to 0 along a cosine.
        weight_decay: AdamW's weight decay.
        averaging: decay per 10 steps of an exponential moving average of the weights, updated every 50 steps; the
            student ends with the average. 0 keeps the last weights.
        relation_weight: weight of the loss on the cosines between the texts of a batch.
        label_weight: weight of the labels' loss, if there are labelled texts.
        label_batch: labelled spans per batch.
        labels_from: dimensions that labels and genres are predicted from: ``all``, or ``spare``, those that the teacher
            does not use, at unit length; ``spare`` harms what is learned from the teacher less and predicts better.
        word_weight: weight of predicting a text's words.
        words: number of the most frequent entries that are predicted.
        genre_weight: weight of predicting the family of files that a text came from.
        pair_weight: weight of finding a text's partner, if a source has pairs.
        pair_batch: pairs per batch.
        contrast_weight: weight of moving texts away from texts of similar words and another meaning, if a source has
            pairs.
        contrast_batch: triples of text, partner and contrast per batch.
        second_weight: weight of a second teacher's loss.
        second_label_weight: weight of predicting the labels that a classifier on the second teacher's embeddings gives,
            if there are labelled texts.
        held_out: number of texts that are not trained on and measure the distance to the teacher; None: a tenth of the
            texts, 4,096 at most.
        seed: seed of the order, the initial weights and the choice of held-out texts.

    Raises:
        InputError: an unknown ``labels_from``.
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
    contrast_weight: float = 0.0
    contrast_batch: int = 64
    second_weight: float = 0.5
    second_label_weight: float = 0.0
    held_out: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.labels_from not in LABELS_FROM:
            raise unknown_name("labels_from", self.labels_from, LABELS_FROM)

    def label_dimensions(self, dimension: int, spare: int) -> int:
        """Return the number of last dimensions that labels and genres are predicted from.

        Raises:
            InputError: ``labels_from`` is ``spare``, but no dimension is spare.
        """
        if self.labels_from == "spare" and not spare:
            raise InputError("labels_from='spare' needs spare_dimensions above 0, got 0; set both")
        return spare if self.labels_from == "spare" else dimension

    def of_texts(self, texts: int) -> DistillationOptions:
        """Return these options with the size of the held-out part for this number of texts, unless it is given."""
        return self if self.held_out is not None else replace(self, held_out=min(MOST_HELD_OUT, max(1, texts // 10)))

    def trained_on(self, texts: int, excluded: int = 0) -> int:
        """Return how many of ``texts`` texts are trained on: all but the held-out and the excluded ones.

        Raises:
            InputError: fewer than two batches.
        """
        held_out = self.of_texts(texts).held_out or 0
        count = texts - held_out - excluded
        if count < 2 * self.batch_size:
            left_out = f"{held_out} held out" + (f", {excluded} excluded" if excluded else "")
            raise InputError(
                f"{texts} texts are too few for two batches of {self.batch_size} ({left_out}); "
                "give more text, or lower --held-out or --batch-size"
            )
        return count


def learning_rate_at(step: int, total: int, options: DistillationOptions) -> float:
    """Return the learning rate of a step: linear warm-up to the peak, then a cosine down to 0."""
    warm = max(1, round(options.warmup * total))
    if step < warm:
        return options.learning_rate * (step + 1) / warm
    return options.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))
