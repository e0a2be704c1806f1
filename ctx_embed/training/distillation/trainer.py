"""Distillation: an encoder over a token table learns to return a teacher's sentence embeddings.

The loss of a batch is a weighted sum of :mod:`.objectives`. One is always mean(1 - cos(student, target)): the target is
the teacher's embedding, rotated into the student's dimensions. Options and the student's regularizer add others.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.progress import Meter, say
from ctx_embed.training.batches import PackedTexts, held_out, numbered, seeded_batches
from ctx_embed.training.distillation import objectives
from ctx_embed.training.distillation.student import Composition
from ctx_embed.training.distillation.texts import Mixture, Pairs
from ctx_embed.training.options import DistillationOptions
from ctx_embed.training.run import Checkpoint, require_finite

# A run records its loss about this many times or more.
FEWEST_LOGGED = 40
BETAS, WEIGHT_DECAY, EPSILON = (0.9, 0.99), 0.01, 1e-8


class Distillation:
    """A training that can be interrupted: it saves a checkpoint every 500 steps and resumes from there.

    The student is trained in place, on its device. A teacher's embeddings (texts, d) are 0 for texts that it has not
    embedded; its rotation is (d, m). ``second`` are a second teacher's embeddings of the mixture's ``second_rows``, and
    its rotation. What is measured and saved is a mean: ``start_share`` of the weights before training, and
    1 - ``start_share`` of the trained ones (Wortsman et al. 2022, arXiv 2109.01903).
    """

    # Number of steps between saved states, and maximum number between recorded losses.
    checkpoint_steps, log_steps = 500, 50
    # Steps between updates of the average, each of which reads the whole table; and the number of steps in which the
    # average decays by the factor ``DistillationOptions.averaging``.
    averaging_steps, decay_steps = 50, 10.0

    def __init__(
        self,
        student: TokenEncoder,
        mixture: Mixture,
        teacher_embeddings: NDArray[np.float16],
        rotation: NDArray[np.float32],
        options: DistillationOptions,
        checkpoint: Checkpoint | None = None,
        *,
        second: tuple[NDArray[np.float16], NDArray[np.float32]] | None = None,
        labelled: tuple[Sequence[str], Sequence[str]] | None = None,
        pairs: Pairs | None = None,
        start_share: float = 0.0,
    ) -> None:
        taught = mixture.taught_rows
        taught = taught[(teacher_embeddings[taught] != 0).any(axis=1)]
        options = options.for_texts(len(taught))
        self.student = student
        self.device = student.embedding.weight.device
        self.composition = Composition(student)
        self.packed = PackedTexts.tokenize(student.text_tokenizer, mixture.texts)
        self.teacher = teacher_embeddings
        self.rotation = torch.from_numpy(rotation).to(self.device)
        self.options = options
        self.checkpoint = checkpoint
        self.pairs = pairs
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.losses: list[dict[str, float]] = []
        self.kept_epoch = 0
        self.start_share = start_share
        self.start = self.kept = self._weights()
        order = taught[np.random.default_rng([options.seed, 4]).permutation(len(taught))]
        # All copies of a text are held out or none, so that no held-out text has been trained on.
        self.same = numbered(mixture.texts)
        measured, rows = held_out(order, self.same, options.held_out or 0)
        self.held_out_rows, rows = np.sort(measured), np.sort(rows)
        self.rows = rows[mixture.shown[rows]]
        replace(options, held_out=len(self.held_out_rows)).trained_on(len(taught), len(rows) - len(self.rows))
        torch.manual_seed(options.seed)
        self.objectives = self._objectives(mixture, labelled, second)
        self.trained = nn.ModuleDict(
            {"student": student, **{name: objective for name, (objective, _) in self.objectives.items()}}
        ).to(self.device)
        self.average = AveragedModel(student, multi_avg_fn=self._mix) if options.averaging else None
        table = student.embedding.weight
        self.table_optimizer = LazyAdamW(table, betas=BETAS, weight_decay=WEIGHT_DECAY)
        # Pass a group, because a list of parameters must not be empty: some encoders have only their table.
        others = [parameter for parameter in self.trained.parameters() if parameter is not table]
        self.optimizer = torch.optim.AdamW([{"params": others}], betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)

    @torch.no_grad()
    def _mix(self, averaged: Sequence[Tensor], current: Sequence[Tensor], count: Tensor | int) -> None:
        """Update the moving average. Its decay is smaller in the first steps."""
        periods = self.averaging_steps / self.decay_steps
        decay = min(self.options.averaging, (1 + int(count) * periods) / (10 + int(count) * periods)) ** periods
        for average, weights in zip(averaged, current, strict=True):
            average.lerp_(weights, 1 - decay)

    def _objectives(
        self,
        mixture: Mixture,
        labelled: tuple[Sequence[str], Sequence[str]] | None,
        second: tuple[NDArray[np.float16], NDArray[np.float32]] | None,
    ) -> dict[str, tuple[objectives.Objective, float]]:
        """Return the terms of the loss apart from the teacher's embeddings and relations, and their weights."""
        options, dimension = self.options, self.student.get_embedding_dimension()
        read = options.label_dimensions(dimension, int((~self.rotation.any(0)).sum()))
        terms: dict[str, tuple[objectives.Objective, float]] = {}
        if labelled is not None and options.label_weight + options.taught_label_weight > 0:
            labels = objectives.Labels(read, self.student.text_tokenizer, *labelled, options.seed)
            terms["labels"] = labels, options.label_weight
            # What each teacher knows of the labels is read by the same head.
            taught = {"taught_labels": (self.teacher[mixture.taught_rows], mixture.taught_rows)}
            if second is not None:
                taught["second_taught_labels"] = second[0], mixture.second_rows
            for name, (embeddings, rows) in taught.items() if options.taught_label_weight > 0 else ():
                found = objectives.taught_labels(embeddings, [mixture.texts[row] for row in rows], *labelled)
                places = objectives.places_of(rows, len(mixture.texts))
                terms[name] = objectives.TaughtLabels(labels.head, places, found), options.taught_label_weight
        if options.word_weight > 0:
            counts = np.bincount(self.packed.ids, minlength=self.student.entries)
            terms["words"] = objectives.Words(dimension, counts), options.word_weight
        if options.genre_weight > 0:
            terms["genres"] = objectives.Genres(read, mixture.genres), options.genre_weight
        if options.pair_weight > 0:
            absent = np.flatnonzero(np.isin(self.same, self.same[self.held_out_rows]) | ~mixture.shown)
            of_pairs = self.packed, mixture.pairs, absent, self.teacher, self.same
            partners = objectives.Partners(*of_pairs, options.pair_batch, options.seed, mixture.genres)
            terms["partners"] = partners, options.pair_weight
        if options.contrast_weight > 0:
            shown = mixture.pairs[mixture.shown[mixture.pairs].all(1)]
            contrasts = objectives.triples(mixture.texts, shown, mixture.opposed)
            opposed = objectives.Contrasts(self.student.text_tokenizer, contrasts, options.contrast_batch, options.seed)
            terms["contrasts"] = opposed, options.contrast_weight
        if second is not None and options.second_weight > 0:
            pulled = objectives.SecondTeacher(
                self.packed, mixture.second_rows, *second, self.held_out_rows, options.relation_weight
            )
            terms["second"] = pulled, options.second_weight
        return terms

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.student.state_dict().items()}

    def _teacher_rows(self, rows: NDArray[np.int64]) -> Tensor:
        return F.normalize(torch.from_numpy(self.teacher[rows].astype(np.float32)).to(self.device), dim=1)

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the student's embeddings of packed texts."""
        return self.student.embed(ids.to(self.device), lengths)

    @torch.no_grad()
    def held_out_distance(self) -> float:
        """Return the mean of 1 - cos to the rotated teacher over the held-out texts."""
        self.student.eval()
        rows = self.held_out_rows
        parts = [self.embed(*self.packed.batch(rows[start : start + 1024])) for start in range(0, len(rows), 1024)]
        return float(objectives.similarity_loss(torch.cat(parts), self._teacher_rows(rows) @ self.rotation))

    @torch.no_grad()
    def measures(self) -> dict[str, float]:
        """Return the held-out distance, the objectives' metrics and Spearman's correlation of the validation pairs."""
        self.table_optimizer.catch_up()
        with self.composition.folded():
            measured = {"held_out_distance": self.held_out_distance()}
            for objective, _ in self.objectives.values():
                measured.update(objective.measures(self.embed))
            if self.pairs is not None:
                packed, lengths = self.student.text_tokenizer([*self.pairs.first, *self.pairs.second])
                embedded = self.embed(torch.from_numpy(packed.astype(np.int64)), lengths.tolist())
                first, second = embedded.chunk(2)
                cosines = F.cosine_similarity(first, second, dim=1)
                measured["pairs_spearman"] = float(spearmanr(self.pairs.scores, cosines.cpu().numpy()).statistic)
        return measured

    def _save(self) -> None:
        # This brings the table up to date. Do so even if nothing is saved, so that saving does not change the result.
        table_optimizer = self.table_optimizer.state_dict()
        if self.checkpoint is not None:
            state: dict[str, Any] = {
                "trained": self.trained.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "table_optimizer": table_optimizer,
                "step": self.step,
                "history": self.history,
                "losses": self.losses,
                "kept_epoch": self.kept_epoch,
                "kept": self.kept,
            }
            if self.average is not None:
                state["average"] = self.average.state_dict()
            self.checkpoint.save(state)

    def train_batch(self, rows: NDArray[np.int64], total: int) -> dict[str, float]:
        """Take one step of the optimizer; return the loss, and the loss of each objective."""
        rate = self.options.learning_rate_at(self.step, total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # Seeded by the step, so that a resumed run of an encoder with dropout equals an uninterrupted one.
        torch.manual_seed(self.options.seed + self.step)
        teacher = self._teacher_rows(rows)
        ids, lengths = self.packed.batch(rows)
        ids = ids.to(self.device)
        batch = objectives.Batch(self.step, rows, ids, lengths, teacher, teacher @ self.rotation)
        # Embed all texts of the step in one pass: rows of entries that several texts share are then computed once.
        more = {name: texts for name, (term, _) in self.objectives.items() if (texts := term.more_texts(batch))}
        ids = torch.cat([ids, *(ids.to(self.device) for ids, _ in more.values())])
        used = self.composition.used(ids)
        own = self.table_optimizer.rows(used)
        embeddings = self.composition.embed(
            ids, [*lengths, *(length for _, lengths in more.values() for length in lengths)], used, own
        )
        parts = embeddings.split([len(lengths), *(len(lengths) for _, lengths in more.values())])
        of_term = dict(zip(more, parts[1:], strict=True))
        losses = {"similarity": objectives.similarity_loss(parts[0], batch.target)}
        if self.options.relation_weight > 0:
            losses["relations"] = self.options.relation_weight * objectives.relation_loss(parts[0], batch.teacher)
        for name, (term, weight) in self.objectives.items():
            losses[name] = weight * term.loss(batch, parts[0], of_term.get(name, parts[0]))
        loss = torch.stack(list(losses.values())).sum() + self.student.regularizer()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.table_optimizer.step(used, torch.zeros_like(own) if own.grad is None else own.grad, rate)
        self.step += 1
        if self.average is not None and (self.step % self.averaging_steps == 0 or self.step == total):
            self.table_optimizer.catch_up()
            self.average.update_parameters(self.student)
        return {"loss": loss.item(), **{name: value.item() for name, value in losses.items()}}

    def _end_epoch(self, epoch: int, progress: bool) -> None:
        self.table_optimizer.catch_up()
        trained = self._weights()
        mean = {
            name: tensor.lerp(self.start[name], self.start_share) if tensor.is_floating_point() else tensor
            for name, tensor in trained.items()
        }
        self.student.load_state_dict(mean)
        measured = self.measures()
        require_finite(measured["held_out_distance"], self.step)
        # The distance to the teacher does not measure what the student learns from labels, pairs, genres and words.
        if self.objectives or all(measured["held_out_distance"] < seen["held_out_distance"] for seen in self.history):
            self.kept_epoch, self.kept = epoch, mean
        self.history.append({"epoch": epoch, "step": self.step, **measured})
        if progress and epoch:
            figures = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in measured.items())
            say(f"epoch {epoch}: {figures}")
        self.student.load_state_dict(trained)

    def run(self, *, progress: bool = True) -> list[dict[str, float]]:
        """Train to the end, from the checkpoint if there is one; return a dict of metrics for each epoch.

        Epoch 0 is the student before training; with ``averaging``, the last epoch measures the averaged weights. The
        student ends with the weights of ``kept_epoch``: the epoch with the smallest held-out distance or, if it also
        learns labels, pairs, genres, words or a second teacher, the last epoch.
        """
        state = None if self.checkpoint is None else self.checkpoint.load()
        if state is not None:
            self.trained.load_state_dict(state["trained"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.table_optimizer.load_state_dict(state["table_optimizer"])
            self.step, self.history, self.losses = state["step"], state["history"], state["losses"]
            self.kept_epoch, self.kept = state["kept_epoch"], state["kept"]
            if self.average is not None:
                self.average.load_state_dict(state["average"])
        if not self.history:
            self._end_epoch(0, progress)
        options = self.options
        per_epoch = len(list(seeded_batches(len(self.rows), options.batch_size, options.seed, 0)))
        total = per_epoch * options.epochs
        log_steps = min(self.log_steps, max(1, total // FEWEST_LOGGED))
        with Meter("distilling", total, "batches", done=self.step, shown=progress) as meter:
            for epoch in range(self.step // per_epoch, options.epochs):
                self.student.train()
                done = self.step - epoch * per_epoch
                batches = seeded_batches(len(self.rows), options.batch_size, options.seed, epoch)
                for index, places in enumerate(batches):
                    if index < done:
                        continue
                    losses = self.train_batch(self.rows[places], total)
                    require_finite(losses["loss"], self.step)
                    meter.update()
                    if self.step % log_steps == 0:
                        self.losses.append({"step": self.step, **losses})
                    if self.step % self.checkpoint_steps == 0 and self.step < total:
                        self._save()
                        meter.note(f"loss {losses['loss']:.4f}")
                if self.average is not None and self.step == total:
                    self.student.load_state_dict(self.average.module.state_dict())
                self._end_epoch(epoch + 1, progress)
                self._save()
        self.student.load_state_dict(self.kept)
        self.student.eval()
        self.composition.fold()
        return self.history


class LazyAdamW:
    r"""AdamW (Loshchilov and Hutter 2019) over the rows of a table. Each row is brought up to date when it is read.

    AdamW also moves rows without a gradient: they decay, and their fading moments still move them. A row with
    moments m and v that is read again after k steps catches up on these moves at once. With the steps' rates
    :math:`\eta_j`, weight decay w and :math:`r = \beta_1 / \sqrt{\beta_2}`, they are

    .. math:: p \leftarrow D p - C \frac{m}{\sqrt v + \epsilon}, \quad m \leftarrow \beta_1^k m, \quad
              v \leftarrow \beta_2^k v

    where for each step j in turn :math:`D \leftarrow (1 - \eta_j w) D` and :math:`C \leftarrow (1 - \eta_j w) C +
    \eta_j r^j \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)`, t being the number of the step. The result is that of AdamW over
    the whole table (rows, m) in float32, except for rounding and :math:`\epsilon` (1e-8), which does not fade with v.
    """

    def __init__(self, table: Tensor, *, betas: tuple[float, float], weight_decay: float) -> None:
        self.table = table.detach()
        self.betas = betas
        self.weight_decay = weight_decay
        self.first = torch.zeros_like(self.table)
        self.second = torch.zeros_like(self.table)
        self.steps = 0
        # ``_decay`` and ``_carry`` hold D and C above for each step since all rows were up to date; ``_place`` holds
        # the place of each row in them.
        self._place = torch.zeros(len(self.table), dtype=torch.int64, device=self.table.device)
        self._decay = torch.ones(1, dtype=torch.float64)
        self._carry = torch.zeros(1, dtype=torch.float64)

    def _up_to_date(self, table: Tensor, first: Tensor, second: Tensor, place: Tensor) -> None:
        """Make the moves that rows have missed since their ``place``; this changes the rows themselves."""
        missed = (len(self._decay) - 1 - torch.arange(len(self._decay))).double()
        factors = [self._decay, self._carry, self.betas[0] ** missed, self.betas[1] ** missed]
        decay, carry, fade_first, fade_second = (
            factor.to(table)[place][:, None] for factor in (f.to(table.device) for f in factors)
        )
        table.mul_(decay).sub_(carry * first / (second.sqrt() + EPSILON))
        first.mul_(fade_first)
        second.mul_(fade_second)

    @torch.no_grad()
    def rows(self, indices: Tensor) -> Tensor:
        """Return the rows (k, m) of distinct ``indices``, up to date, as a leaf that takes a gradient."""
        table, first, second = (whole.index_select(0, indices) for whole in (self.table, self.first, self.second))
        self._up_to_date(table, first, second, self._place[indices])
        self._read = table, first, second
        return table.clone().requires_grad_()

    @torch.no_grad()
    def step(self, indices: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Take a step with the gradient (k, m) of the rows that :meth:`rows` last returned; others have gradient 0."""
        self.steps += 1
        table, first, second = self._read
        beta, beta_second = self.betas
        correction = (1 - beta_second**self.steps) ** 0.5
        rate = learning_rate / (1 - beta**self.steps)
        first.lerp_(gradient, 1 - beta)
        second.mul_(beta_second).addcmul_(gradient, gradient, value=1 - beta_second)
        kept = 1 - learning_rate * self.weight_decay
        table.mul_(kept).addcdiv_(first, (second.sqrt() / correction).add_(EPSILON), value=-rate)
        for tensor, read in zip((self.table, self.first, self.second), self._read, strict=True):
            tensor.index_copy_(0, indices, read)
        # Rows absent from this batch fall one step further behind.
        missed = torch.arange(len(self._decay), 0, -1).double()
        fade = (beta / beta_second**0.5) ** missed
        self._carry = torch.cat([self._carry * kept + rate * correction * fade, torch.zeros(1, dtype=torch.float64)])
        self._decay = torch.cat([self._decay * kept, torch.ones(1, dtype=torch.float64)])
        self._place[indices] = len(self._decay) - 1

    @torch.no_grad()
    def catch_up(self) -> None:
        """Bring all rows up to date."""
        for start in range(0, len(self.table), 4096):
            part = slice(start, start + 4096)
            self._up_to_date(self.table[part], self.first[part], self.second[part], self._place[part])
        self._place.zero_()
        self._decay, self._carry = self._decay[-1:], self._carry[-1:]

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs to resume, apart from the table, which is brought up to date."""
        self.catch_up()
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The table must be the one it was saved with."""
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.steps = state["steps"]
        self._place.zero_()
        self._decay, self._carry = self._decay[-1:], self._carry[-1:]
