"""The training of an encoder and a linear head over it from labels, end to end."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn
from torch.nn import functional as F

from ctx_embed.classify.fitting import Regression, fitted_head, sigmoid_loss, softmax_loss
from ctx_embed.classify.head import ClassWeight, Floats, Head, Words, class_weights, neutral_logits
from ctx_embed.classify.labelled import Labelled
from ctx_embed.classify.predictor import Predictor
from ctx_embed.loading import load, require_device
from ctx_embed.model import Model
from ctx_embed.modules.sentence_transformer import raw_embeddings
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.progress import Meter, say
from ctx_embed.systems import require_options, system
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import like_length_batches, seeded_batches
from ctx_embed.training.labelled_texts import hashes_of, joined
from ctx_embed.training.options import SupervisedOptions
from ctx_embed.training.run import Checkpoint, require_finite
from ctx_embed.training.vocabulary import learn_vocabulary, read_vocabulary

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]
# Adam with its usual moments.
adam: MakeOptimizer = partial(torch.optim.Adam, fused=True)
# Standard deviation of the prior on the weights of a linear probe, which may be the initial head.
PROBE_DEVIATION = 0.1


@dataclass(frozen=True, eq=False)
class _Renumbered:
    """A text tokenizer whose ids are positions in a list of entries."""

    tokenizer: TextTokenizer
    entries: NDArray[np.int32]

    def read(
        self, texts: Sequence[str], prompt: str | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        ids, lengths = self.tokenizer.read(texts, prompt, limit)
        return np.searchsorted(self.entries, ids).astype(np.int32), lengths


@contextmanager
def compact_tables(encoder: SentenceTransformer, texts: Sequence[str]) -> Iterator[None]:
    """Reduce token tables to the entries of ``texts`` within a ``with`` block, and then put the trained rows back.

    No other texts may be encoded inside. Rows that no text uses would have no gradient, and Adam does not change such
    rows: the result is that of training the whole table.
    """
    changed: list[tuple[Any, nn.Embedding, TextTokenizer, NDArray[np.int32]]] = []
    for module in encoder.children():
        if isinstance(module, TokenEncoder) and module.ids_may_be_renumbered:
            entries = np.unique(module.text_tokenizer(texts)[0])
            if len(entries):
                changed.append((module, module.embedding, module.text_tokenizer, entries))
                rows = module.embedding.weight.detach()[torch.from_numpy(entries).long()]
                trained = module.embedding.weight.requires_grad
                module.embedding = nn.Embedding(len(rows), rows.shape[1], _weight=rows).requires_grad_(trained)
                module.text_tokenizer = _Renumbered(module.text_tokenizer, entries)  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, embedding, tokenizer, entries in changed:
            with torch.no_grad():
                embedding.weight[torch.from_numpy(entries).long()] = module.embedding.weight
            module.embedding, module.text_tokenizer = embedding, tokenizer


def new_encoder(
    start: str | None,
    texts: Sequence[str],
    tokenizer: str | None = None,
    vocabulary_size: int = 16_000,
    seed: int = 0,
    device: str | None = None,
    encoder: str = "contextualizer",
    **architecture: Any,
) -> SentenceTransformer:
    """Return the encoder that a training starts from: a model by its path, or ``default``.

    If ``start`` is None, initialise the system ``encoder`` randomly, with its dimension and options
    (``architecture``), over the ``tokenizer``'s vocabulary or else over one that is learned from ``texts``.
    """
    require_device(device)
    if start is not None:
        return load(start, device)
    require_options(encoder, architecture.keys() - {"dimension"})
    own = read_vocabulary(tokenizer) if tokenizer else learn_vocabulary(texts, vocabulary_size, progress=False)
    torch.manual_seed(seed)
    module = system(encoder)(own, **architecture)
    return SentenceTransformer(modules=[module, Normalize()], device=device)


def train_classifier(
    encoder: SentenceTransformer,
    train: Labelled,
    valid: Labelled | None = None,
    options: SupervisedOptions | None = None,
    checkpoint: Checkpoint | None = None,
    *,
    class_weight: ClassWeight = None,
    words: bool = False,
    store: Literal["int8", "float32"] | None = None,
    progress: bool = True,
    optimizer: MakeOptimizer = adam,
) -> tuple[Predictor, list[dict[str, float]]]:
    """Train an encoder and a linear head end to end by cross-entropy, and keep the best epoch of each run.

    The accuracy on ``valid`` chooses the epoch; without it, each run holds out another stratified part of ``train``.
    With ``words``, the classifier reads words too, if that improves its predictions for the held-out texts. ``store``
    is how the token table will be saved: for int8 it is rounded after the training; None leaves it as it is.

    Return the classifier, whose encoder is trained in place, with the weights of the best epoch averaged over the runs;
    and a dict for each epoch of each run with ``run`` and ``epoch`` (from 1), ``train_loss``, ``cross_entropy`` (the
    loss without the encoder's penalty) and ``valid_accuracy``.
    """
    training = _Training(encoder, train, valid, options or SupervisedOptions(), class_weight)
    texts = [*train.texts, *(() if valid is None else valid.texts)]
    before = Model(encoder).raw(train.texts) if words else None
    with compact_tables(encoder, texts):
        history, held_out = training.run(checkpoint, optimizer, progress)
    predictor = training.predictor()
    if before is not None:
        predictor = replace(predictor, head=training.reading_words(predictor.head, before, held_out))
    if isinstance(module := encoder[0], TokenEncoder):
        module.labelled_texts = joined(module.labelled_texts, hashes_of(texts))
        module.store = store or module.store
        if store == "int8":
            module.round_table()
    return predictor, history


def best_epochs(history: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Return the epoch of best validation accuracy in each run, the first one if several are equal."""
    by_run = groupby(history, key=lambda entry: entry["run"])
    return [max(entries, key=lambda entry: entry["valid_accuracy"]) for _, entries in by_run]


class _Training(nn.Module):
    """An encoder with a linear head over its embeddings before any normalisation, and how both are trained."""

    def __init__(
        self,
        encoder: SentenceTransformer,
        data: Labelled,
        valid: Labelled | None,
        options: SupervisedOptions,
        class_weight: ClassWeight,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.data = data
        self.options = options = options.of_encoder(encoder)
        self.labels = data.classes()
        self.weights = class_weights(class_weight, data, self.labels)
        self.neutral = neutral_logits(data, self.labels, self.weights)
        if valid is not None:
            valid.require_labels_of(data, "validation")
        # The texts that each run learns from, and those that choose its epoch.
        self.parts = [
            (data, valid) if valid is not None else data.split(options.valid_share, options.seed_of(run))
            for run in range(options.runs)
        ]

    def predictor(self) -> Predictor:
        """Return the classifier as it is now, with a copy of the head."""
        self.eval()
        weight, bias = (tensor.detach().float().cpu().numpy().copy() for tensor in (self.head.weight, self.head.bias))
        head = Head(weight, bias, self.labels, self.data.multi_label, neutral=self.neutral)
        return Predictor(Model(self.encoder), head)

    @torch.no_grad()
    def probe(self, data: Labelled) -> None:
        """Set the head to a logistic regression on the encoder's current embeddings."""
        embeddings, targets = Model(self.encoder).raw(data.texts), data.targets(self.labels)
        regression = Regression(embeddings, None, targets, len(self.labels), self.weights)
        coefficients = regression.coefficients(np.arange(len(targets)), PROBE_DEVIATION, 0.0)
        weight, _, bias = regression.weights(coefficients)
        self.head.weight.copy_(torch.from_numpy(weight))
        self.head.bias.copy_(torch.from_numpy(bias))

    def run(
        self, checkpoint: Checkpoint | None, make_optimizer: MakeOptimizer, progress: bool
    ) -> tuple[list[dict[str, float]], list[Tensor]]:
        """Train; return the history, and each run's logits for its held-out texts, as of its best epoch."""
        options = self.options
        torch.manual_seed(options.seed)
        self.head = nn.Linear(Model(self.encoder).raw_dimension, len(self.labels)).to(self.encoder.device)
        if options.head == "zeros":
            # The encoder's gradients are then zero at first, so the head learns first.
            for parameter in self.head.parameters():
                torch.nn.init.zeros_(parameter)
        # Take the initial weights from the checkpoint too: the encoder may have been trained further since.
        state: dict[str, Any] = {"history": [], "total": {}, "held_out": [], "first": copy.deepcopy(self.state_dict())}
        state |= (checkpoint.load() if checkpoint is not None else None) or {}
        history, held_out = state["history"], state["held_out"]
        for run in range(len(history) // options.epochs, options.runs):
            learned, measured = self.parts[run]
            done = len(history) % options.epochs
            self.load_state_dict(state["classifier"] if done else state["first"])
            if options.head == "probe" and not done:
                self.probe(learned)
            optimizer = make_optimizer(self.parameters(), options.learning_rate)
            if done:
                optimizer.load_state_dict(state["optimizer"])
            for epoch in range(done, options.epochs):
                name = f"epoch {epoch + 1}"
                if options.runs > 1:
                    name = f"run {run + 1} of {options.runs}, {name}"
                losses = self._epoch(optimizer, learned, options.seed_of(run), epoch, name if progress else None)
                accuracy = self.predictor().accuracy(measured)
                if all(accuracy > earlier["valid_accuracy"] for earlier in history[run * options.epochs :]):
                    state["best"] = copy.deepcopy(self.state_dict())
                history.append({"run": run + 1, "epoch": epoch + 1, **losses, "valid_accuracy": accuracy})
                if progress:
                    say(f"{name}: loss {losses['train_loss']:.4f}, validation accuracy {accuracy:.4f}")
                if epoch + 1 == options.epochs:
                    total = state["total"]
                    # Sum in float64, so that averaging equal weights changes nothing; on the CPU: some devices lack it.
                    for key, tensor in state["best"].items():
                        weight = tensor.cpu()
                        if weight.is_floating_point():
                            weight = weight.double() + total[key] if key in total else weight.double()
                        total[key] = weight
                    self.load_state_dict(state["best"])
                    held_out.append(torch.from_numpy(self.predictor().logits(measured.texts)))
                if checkpoint is not None:
                    checkpoint.save({**state, "classifier": self.state_dict(), "optimizer": optimizer.state_dict()})
        averaged = {
            name: total / options.runs if total.is_floating_point() else total for name, total in state["total"].items()
        }
        self.load_state_dict(averaged)
        return history, held_out

    def reading_words(self, trained: Head, before: Floats, held_out: Sequence[Tensor]) -> Head:
        """Return the trained head, with words if these make the labels of held-out texts more likely.

        The words' weights are fitted with the embeddings ``before`` (n, m) of the encoder before the training: those of
        the trained encoder fit its training texts too well and would leave words nothing to add. One factor of the
        logits and one of the words' weights are fitted on the held-out texts, so probabilities are calibrated, too.
        ``held_out`` has each run's logits for its held-out texts.
        """
        data, labels = self.data, self.labels
        rows = {text: row for row, text in enumerate(data.texts)}
        logits, words, targets = [], [], []
        learned = None
        for of_run, (part, measured) in zip(held_out, self.parts, strict=True):
            if part is not learned:
                learned = part
                head = fitted_head(before[[rows[text] for text in part.texts]], part, labels, self.weights)
            if head.words is None:
                continue
            logits.append(of_run.numpy())
            words.append(head.words.logits(measured.texts))
            truth = measured.targets(labels)
            targets.append(truth if data.multi_label else np.eye(len(labels))[truth])
        if not logits:
            return trained
        parts, truths = [np.concatenate(logits), np.concatenate(words)], np.concatenate(targets)
        loss_of = sigmoid_loss if data.multi_label else softmax_loss

        def loss(factors: Floats) -> tuple[float, Floats]:
            value, residual = loss_of(factors[0] * parts[0] + factors[1] * parts[1], truths)
            return value, np.array([(residual * part).sum() for part in parts]) / len(truths)

        alone, together = (
            minimize(loss, (1.0, 0.0), jac=True, bounds=[(0.05, 20.0), (0.0, most)], method="L-BFGS-B")
            for most in (0.0, 20.0)
        )
        # Akaike's criterion: each further factor must increase the log-likelihood by more than 1.
        if len(truths) * (alone.fun - together.fun) <= 1:
            return trained
        found = fitted_head(before, data, labels, self.weights).words
        if found is None:
            return trained
        factor, of_words = np.float32(together.x[0]), together.x[1]
        weight = (of_words * found.weight).astype(np.float16).astype(np.float32)
        words_of_all = Words(found.vocabulary, weight)
        return replace(trained, weight=factor * trained.weight, bias=factor * trained.bias, words=words_of_all)

    def _epoch(
        self, optimizer: torch.optim.Optimizer, train: Labelled, seed: int, epoch: int, shown: str | None
    ) -> dict[str, float]:
        """Train for an epoch (counted from 0); return its mean loss and cross-entropy. ``shown`` names it on stderr."""
        options, device = self.options, self.head.weight.device
        targets = torch.from_numpy(train.targets(self.labels)).to(device)
        in_loss = None if self.weights is None else torch.from_numpy(self.weights).float().to(device)
        # Seeded by the epoch, so that a resumed run of an encoder with dropout equals an uninterrupted one.
        torch.manual_seed(seed + epoch)
        self.train()
        batches = list(
            like_length_batches(np.array([len(text) for text in train.texts]), options.batch_size, seed, epoch)
            if options.like_length
            else seeded_batches(len(train.texts), options.batch_size, seed, epoch)
        )
        total = total_entropy = 0.0
        meter = Meter(shown or "", len(batches), "batches", shown=shown is not None, leave=False)
        for number, rows in enumerate(meter.each(batches), 1):
            texts = [train.texts[row] for row in rows]
            embeddings = raw_embeddings(self.encoder, texts, options.token_dropout)
            logits = self.head(embeddings.to(self.head.weight.dtype))
            entropy = (
                F.binary_cross_entropy_with_logits(logits, targets[rows], pos_weight=in_loss)
                if train.multi_label
                else F.cross_entropy(logits, targets[rows], in_loss)
            )
            # The encoder's own loss term for these texts.
            own = sum((each.regularizer() for each in self.encoder if isinstance(each, TokenEncoder)), 0.0)
            loss = entropy + own
            require_finite(loss.item(), epoch * len(batches) + number)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
            total_entropy += entropy.item() * len(rows)
        return {"train_loss": total / len(train.texts), "cross_entropy": total_entropy / len(train.texts)}
