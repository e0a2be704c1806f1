"""Distillation: an encoder over a token table learns to give a teacher's sentence embeddings.

Loss of a batch: mean(1 - cos(student, target)) + relation_weight * mean((S - S_teacher)^2), with S the cosines between
all pairs of the batch, + label_weight * (cross-entropy of labelled spans) + word_weight * (the text's own words named).
The target is the teacher's embedding rotated into the student's dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from ctx_embed.errors import InputError
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.modules.tokenization import TextTokenizer
from ctx_embed.training.checkpoint import Checkpoint
from ctx_embed.training.divergence import require_finite
from ctx_embed.training.objectives import LabelHead, LabelledSpans, WordHead
from ctx_embed.training.packed import PackedTexts, batches_per_epoch, seeded_batches

CHECKPOINT_STEPS = 500


@dataclass(frozen=True)
class DistillationOptions:
    """How a student is trained.

    Args:
        epochs: passes over the sentences.
        batch_size: sentences of a batch, whose pairs make up the relations.
        learning_rate: the peak, for table and network alike.
        warmup: the share of all steps in which the rate rises to its peak; after it a cosine falls to 0.
        weight_decay: of AdamW.
        relation_weight: of the second term of the loss.
        label_weight: of the third, where there are labelled texts.
        label_batch: labelled spans of a batch.
        word_weight: of the fourth; 0 leaves it out.
        words: so many of the most frequent entries are named.
        held_out: sentences that are not trained on and measure the distance to the teacher.
        seed: of the order, the weights drawn and the held-out part.
    """

    epochs: int = 3
    batch_size: int = 256
    learning_rate: float = 5e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    relation_weight: float = 2.0
    label_weight: float = 0.3
    label_batch: int = 64
    word_weight: float = 0.0
    words: int = 8000
    held_out: int = 4096
    seed: int = 0

    def trained_on(self, sentences: int) -> int:
        """How many of so many sentences are trained on: all but the held-out part.

        Raises:
            InputError: fewer than two batches.
        """
        count = sentences - self.held_out
        if count < 2 * self.batch_size:
            raise InputError(
                f"{sentences} sentences are too few: {self.held_out} are held out and two batches of "
                f"{self.batch_size} are needed; give more text, or lower --held-out or --batch-size"
            )
        return count


def distillation_loss(student: Tensor, target: Tensor, teacher: Tensor, relation_weight: float) -> Tensor:
    """mean(1 - cos(student, target)) + relation_weight * mean((S - S_teacher)^2).

    Args:
        student: (B, m).
        target: (B, m) the rotated teacher.
        teacher: (B, d), l2-normalised.
        relation_weight: of the second term.

    Returns:
        A scalar.
    """
    student = F.normalize(student, dim=1)
    distance = (1 - (student * F.normalize(target, dim=1)).sum(1)).mean()
    relations = (student @ student.T - teacher @ teacher.T).square().mean()
    return distance + relation_weight * relations


@torch.no_grad()
def teacher_distance(student: TokenEncoder, texts: PackedTexts, target: Tensor) -> float:
    """The mean of 1 - cos(student, target) over all texts; target is (texts, m)."""
    student.eval()
    rows = [np.arange(start, min(start + 1024, len(texts))) for start in range(0, len(texts), 1024)]
    embeddings = torch.cat([student.embed(*texts.batch(part)) for part in rows])
    return float((1 - F.cosine_similarity(embeddings, target, dim=1)).mean())


def learning_rate_at(step: int, total: int, options: DistillationOptions) -> float:
    """Linear warm-up to the peak, then a cosine down to 0."""
    warm = max(1, round(options.warmup * total))
    if step < warm:
        return options.learning_rate * (step + 1) / warm
    return options.learning_rate * 0.5 * (1 + float(np.cos(np.pi * (step - warm) / max(1, total - warm))))


class Distillation:
    """A run that can be interrupted: its state goes to a checkpoint every 500 steps and is taken up from there.

    Args:
        student: trained in place.
        texts: all sentences; the last ``options.held_out`` of them are held out.
        teacher_embeddings: (sentences, d).
        rotation: (d, m) from :func:`ctx_embed.training.student.new_student`.
        options: how to train.
        checkpoint: where the state is kept; None keeps none.
        labelled: labels and texts to learn beside the teacher; None: none.

    Raises:
        InputError: fewer sentences than two batches beside the held-out part; :meth:`run`: the training diverged.
    """

    def __init__(
        self,
        student: TokenEncoder,
        texts: Sequence[str],
        teacher_embeddings: NDArray[np.float16],
        rotation: NDArray[np.float32],
        options: DistillationOptions,
        checkpoint: Checkpoint | None = None,
        labelled: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> None:
        self.train_count = options.trained_on(len(texts))
        self.student = student
        tokenizer = TextTokenizer(student.tokenizer)
        self.packed = PackedTexts.tokenize(tokenizer, texts)
        self.teacher = teacher_embeddings
        self.rotation = torch.from_numpy(rotation)
        self.options = options
        self.checkpoint = checkpoint
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.labelled = LabelledSpans(tokenizer, *labelled, options.seed) if labelled else None
        self.trained = nn.ModuleDict({"student": student})
        torch.manual_seed(options.seed)
        if self.labelled is not None:
            self.label_head = LabelHead(student.dimension, len(self.labelled.classes))
            self.trained["label_head"] = self.label_head
        if options.word_weight > 0:
            counts = np.bincount(self.packed.ids, minlength=student.tokenizer.get_vocab_size())
            self.word_head = WordHead(student.dimension, counts, options.words)
            self.trained["word_head"] = self.word_head
        self.optimizer = torch.optim.AdamW(
            self.trained.parameters(), betas=(0.9, 0.99), weight_decay=options.weight_decay, fused=True
        )

    def _teacher_rows(self, rows: NDArray[np.int64]) -> Tensor:
        return F.normalize(torch.from_numpy(self.teacher[rows].astype(np.float32)), dim=1)

    def held_out_distance(self) -> float:
        """The mean of 1 - cos to the rotated teacher over the held-out sentences."""
        rows = np.arange(self.train_count, len(self.packed))
        first = self.packed.offsets[self.train_count]
        part = PackedTexts(self.packed.ids[first:], self.packed.offsets[self.train_count :] - first)
        return teacher_distance(self.student, part, self._teacher_rows(rows) @ self.rotation)

    @torch.no_grad()
    def measures(self) -> dict[str, float]:
        """The held-out distance, and the accuracy on held-out labelled spans where there are any."""
        measured = {"held_out_distance": self.held_out_distance()}
        if self.labelled is not None:
            ids, lengths, targets = self.labelled.held_out()
            predicted = self.label_head(self.student.embed(ids, lengths)).argmax(1)
            measured["held_out_label_accuracy"] = float((predicted == targets).float().mean())
        return measured

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save(
                {
                    "trained": self.trained.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "step": self.step,
                    "history": self.history,
                }
            )

    def _resume(self) -> None:
        state = None if self.checkpoint is None else self.checkpoint.load()
        if state is not None:
            self.trained.load_state_dict(state["trained"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.history = state["step"], state["history"]

    def _train_batch(self, rows: NDArray[np.int64], total: int) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.step, total, self.options)
        teacher = self._teacher_rows(rows)
        ids, lengths = self.packed.batch(rows)
        targets: Tensor | None = None
        if self.labelled is not None:
            # One pass over sentences and spans: entries that both have are computed once.
            span_ids, span_lengths, targets = self.labelled.draw(self.options.label_batch, self.step)
            embeddings = self.student.embed(torch.cat([ids, span_ids]), lengths + span_lengths)
            student, spans = embeddings[: len(rows)], embeddings[len(rows) :]
        else:
            student = spans = self.student.embed(ids, lengths)
        loss = distillation_loss(student, teacher @ self.rotation, teacher, self.options.relation_weight)
        if targets is not None:
            loss = loss + self.options.label_weight * self.label_head.loss(spans, targets)
        if self.options.word_weight > 0:
            loss = loss + self.options.word_weight * self.word_head.loss(student, ids, lengths)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def run(self, *, progress: bool = True) -> list[dict[str, float]]:
        """Train to the end, from the checkpoint where there is one.

        Returns:
            For each epoch its number, the step it ended at and the :meth:`measures`; entry 0 is the student before
            training.
        """
        self._resume()
        if not self.history:
            self.history.append({"epoch": 0, "step": 0, **self.measures()})
        options = self.options
        per_epoch = batches_per_epoch(self.train_count, options.batch_size)
        total = per_epoch * options.epochs
        hidden = None if progress else True
        with tqdm(total=total, initial=self.step, unit=" batches", desc="distill", disable=hidden) as bar:
            for epoch in range(self.step // per_epoch, options.epochs):
                self.student.train()
                done = self.step - epoch * per_epoch
                batches = seeded_batches(self.train_count, options.batch_size, options.seed, epoch)
                for index, rows in enumerate(batches):
                    if index < done:
                        continue
                    loss = self._train_batch(rows, total)
                    require_finite(loss, self.step)
                    bar.update()
                    if self.step % CHECKPOINT_STEPS == 0 and self.step < total:
                        self._save()
                        bar.set_postfix(loss=f"{loss:.4f}")
                measured = self.measures()
                require_finite(measured["held_out_distance"], self.step)
                self.history.append({"epoch": epoch + 1, "step": self.step, **measured})
                if progress:
                    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in measured.items())
                    tqdm.write(f"epoch {epoch + 1}: {figures}", file=sys.stderr)
                self._save()
        self.student.eval()
        return self.history
