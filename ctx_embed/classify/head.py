"""A linear head over sentence embeddings and words, and the words that it reads. Without torch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.classify.labelled import Classes, Labelled, require_labels
from ctx_embed.errors import InputError, quoted
from ctx_embed.vectors import unit_rows

Floats = NDArray[Any]
ClassWeight = Mapping[Any, float] | str | None

# With several labels per text, labels with at least this probability are predicted.
THRESHOLD = 0.5
FORMAT = 1
FLAGS = ("multi_label", "normalized", "indicators")
# The files of a head in a model folder: its weights, its labels and flags, and the words that it reads.
FILES = TENSORS, DESCRIPTION, WORDS = "classifier.safetensors", "classifier.json", "words.txt"
# A word, or one character that is neither part of a word nor white space.
WORD = re.compile(r"\w+|[^\w\s]")
# A word or pair must occur in this many training texts to be a feature.
LEAST_TEXTS = 2
Integers = NDArray[np.int64]


class Vocabulary:
    """Words in lower case and pairs of neighbouring words: feature i is word i, and the pairs follow the words.

    In a text of n words, the value of a feature is its count / sqrt(2 n). So a long text does not outweigh a short one,
    and the value does not depend on which other words are known. Pairs (pairs, 2) are places of words, ascending.
    """

    def __init__(self, words: Sequence[str], pairs: NDArray[Any]) -> None:
        self.words = list(words)
        self.pairs = pairs.astype(np.int64)

    def __len__(self) -> int:
        return len(self.words) + len(self.pairs)

    @classmethod
    def learn(cls, texts: Sequence[str], most: int) -> Vocabulary:
        """Return the ``most`` frequent words and pairs, among those that occur in at least two different texts."""
        texts = list(dict.fromkeys(texts))
        # A dict keeps the order of first occurrence; the order of a set differs from process to process.
        counts = Counter(chain.from_iterable(dict.fromkeys(words_of(text)) for text in texts))
        words, frequency = zip(*counts.most_common(most), strict=True) if counts else ((), ())
        common = cls(words[: sum(count >= LEAST_TEXTS for count in frequency)], np.empty((0, 2)))
        _, rows, keys, _ = common._tokens(texts)
        # A pair counts once for each text.
        squared = max(1, len(common)) ** 2
        keys, texts_with = np.unique(np.unique(rows * squared + keys) % squared, return_counts=True)
        keys, texts_with = keys[texts_with >= LEAST_TEXTS], texts_with[texts_with >= LEAST_TEXTS]
        whole = cls(common.words, np.stack(np.divmod(keys, max(1, len(common))), axis=1))
        order = np.argsort(-np.concatenate([frequency[: len(common)], texts_with]), kind="stable")
        return whole.part(np.sort(order[:most]))[0]

    def part(self, features: Integers) -> tuple[Vocabulary, Integers]:
        """Return a vocabulary of ``features``, ascending, and the words of their pairs; and its places in this one."""
        words = len(self.words)
        pairs = self.pairs[features[features >= words] - words]
        needed = np.union1d(features[features < words], pairs)
        part = Vocabulary([self.words[place] for place in needed], np.searchsorted(needed, pairs))
        return part, np.concatenate([needed, features[features >= words]])

    def name(self, feature: int) -> str:
        """Return a feature as text: a word, or two."""
        words = len(self.words)
        return " ".join(self.words[place] for place in ([feature] if feature < words else self.pairs[feature - words]))

    def occurrences(self, texts: Sequence[str]) -> tuple[Integers, Integers, NDArray[np.float64]]:
        """Return each occurrence of a feature in the texts: the text's number, the feature's, and 1 / sqrt(2 n)."""
        words, rows, keys, lengths = self._tokens(texts)
        known = words >= 0
        pairs = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        paired = self.keys[pairs] == keys if len(self.keys) else np.zeros(len(keys), bool)
        rows = np.concatenate([np.repeat(np.arange(len(texts)), lengths)[known], rows[paired]])
        features = np.concatenate([words[known], len(self.words) + pairs[paired]])
        return rows, features, 1 / np.sqrt(2.0 * lengths[rows])

    def matrix(self, texts: Sequence[str]) -> Any:
        """Return the features of the texts as a scipy.sparse CSR array (texts, features) of float32."""
        from scipy.sparse import coo_array

        rows, features, values = self.occurrences(texts)
        return coo_array((values.astype(np.float32), (rows, features)), (len(texts), len(self))).tocsr()

    def _tokens(self, texts: Sequence[str]) -> tuple[Integers, Integers, Integers, Integers]:
        """Return each word's place (-1: unknown), each known pair's text and key, and each text's number of words."""
        found = [words_of(text) for text in texts]
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        words = np.fromiter(map(self._place.get, chain.from_iterable(found), repeat(-1)), np.int64, lengths.sum())
        rows = np.repeat(np.arange(len(texts)), lengths)
        paired = np.flatnonzero((words[:-1] >= 0) & (words[1:] >= 0) & (rows[:-1] == rows[1:]))
        return words, rows[paired], words[paired] * len(self.words) + words[paired + 1], lengths

    @cached_property
    def _place(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def keys(self) -> Integers:
        """The pairs as numbers, in ascending order."""
        keys: Integers = self.pairs[:, 0] * len(self.words) + self.pairs[:, 1]
        return keys


@dataclass(frozen=True, eq=False)
class Words:
    """Words and pairs with their weights (features of the vocabulary, classes)."""

    vocabulary: Vocabulary
    weight: NDArray[Any]

    def __len__(self) -> int:
        return len(self.vocabulary)

    def logits(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return what the words add to the outputs, (texts, classes)."""
        rows, features, values = self.vocabulary.occurrences(texts)
        columns = [np.bincount(rows, of_class[features] * values, len(texts)) for of_class in self.weight.T]
        return np.stack(columns, axis=1)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, and its punctuation marks."""
    found: list[str] = WORD.findall(text.lower())
    return found


@dataclass(frozen=True, eq=False)
class Head:
    """A linear function of the embedding, and of words if it reads any, for each class.

    Args:
        weight, bias, labels: (classes, m), (classes,) and the classes' names: strings, numbers or booleans.
        multi_label: whether a text may have any number of labels; each output is then a binary decision.
        normalized: whether it reads embeddings scaled to unit length, or as they are before normalisation.
        indicators: whether it was fitted on an array (texts, classes) of 0 and 1.
        words: the words and pairs that it reads, with their weights; None if it reads no words.
        neutral: (classes,) the outputs, apart from words, for an embedding of zeros, which a text has that the encoder
            cannot read; None means the bias, as in older models.
        params: arguments of :class:`ctx_embed.TextClassifier` that make such a head again, as JSON values; weights of
            classes are a list of pairs.
    """

    weight: Floats
    bias: Floats
    labels: list[Any]
    multi_label: bool = False
    normalized: bool = False
    indicators: bool = False
    words: Words | None = None
    neutral: Floats | None = None
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def constant(self) -> Floats:
        """The part of the outputs that is the same for all texts, (classes,)."""
        return self.bias if self.neutral is None else self.neutral

    def logits(self, embeddings: Floats, texts: Sequence[str]) -> Floats:
        """Return the outputs (texts, classes) for texts and their embeddings (texts, m) before any normalisation."""
        logits = self.of_meaning(embeddings) + self.constant
        if self.words is not None:
            logits = logits + self.words.logits(texts)
        if not np.isfinite(logits).all():
            raise InputError("the classifier's outputs are not finite; train it with a lower learning rate")
        return np.asarray(logits)

    def of_meaning(self, embeddings: Floats) -> Floats:
        """Return what the embeddings add to the outputs, (texts, classes); an embedding of zeros adds nothing."""
        outputs = (unit_rows(embeddings) if self.normalized else embeddings) @ self.weight.T
        return np.where(embeddings.any(1, keepdims=True), outputs + (self.bias - self.constant), 0)

    def probabilities(self, logits: Floats) -> Floats:
        """Return probabilities (texts, classes); each row sums to 1, unless a text may have several labels."""
        logits = logits.astype(np.float64)
        if self.multi_label:
            return np.asarray(1 / (1 + np.exp(-np.clip(logits, -500, 500))))
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(odds / odds.sum(1, keepdims=True))

    def chosen(self, logits: Floats) -> list[Any]:
        """Return the most likely label of each text, or with several labels a tuple of labels of probability >= 0.5."""
        if self.multi_label:
            given = self.probabilities(logits) >= THRESHOLD
            return [tuple(self.labels[place] for place in np.flatnonzero(row)) for row in given]
        return [self.labels[place] for place in logits.argmax(1).tolist()]

    def for_indicators(self, columns: int, texts: int) -> Head:
        """Return the head that predicts arrays of ``columns`` columns; its labels are numbers of columns.

        A column that was 0 in all training ``texts`` is predicted to be 0.
        """
        weight = np.zeros((columns, self.weight.shape[1]), np.float32)
        bias = np.full(columns, np.log(0.5 / (texts + 0.5)), np.float32)
        neutral = bias.copy()
        weight[self.labels], bias[self.labels], neutral[self.labels] = self.weight, self.bias, self.constant
        words = self.words
        if words is not None:
            of_words = np.zeros((len(words), columns), np.float32)
            of_words[:, self.labels] = words.weight
            words = Words(words.vocabulary, of_words)
        labels = list(range(columns))
        return replace(self, weight=weight, bias=bias, labels=labels, indicators=True, words=words, neutral=neutral)

    def save(self, folder: Path) -> None:
        """Write its :data:`FILES`; the file of words only if it reads any."""
        from safetensors.numpy import save_file

        tensors: dict[str, Any] = {"weight": self.weight.astype(np.float32), "bias": self.bias.astype(np.float32)}
        if self.neutral is not None:
            tensors["neutral"] = self.neutral.astype(np.float32)
        if self.words is not None:
            vocabulary = self.words.vocabulary
            tensors |= {"words": self.words.weight.astype(np.float16), "pairs": vocabulary.pairs.astype(np.int32)}
            (folder / WORDS).write_text("\n".join(vocabulary.words), encoding="utf-8", newline="\n")
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / TENSORS)
        described: dict[str, Any] = {"format": FORMAT, "labels": self.labels}
        described |= {name: True for name in FLAGS if getattr(self, name)}
        described |= {"params": self.params} if self.params else {}
        (folder / DESCRIPTION).write_text(json.dumps(described, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Head:
        """Read a head written by :meth:`save`; raise an InputError if there is none or its files do not match."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        for name in (TENSORS, DESCRIPTION):
            if not (folder / name).is_file():
                raise InputError(f"{folder}: not a classifier (no {name}); make one with ctx-embed train")
        try:
            tensors, words = load_file(folder / TENSORS), None
            described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            if isinstance(described, dict) and described.pop("format", None) != FORMAT:
                raise InputError("made by another development version; make it again with ctx-embed train")
            if "pairs" in tensors:
                known = (folder / WORDS).read_text(encoding="utf-8").split("\n")
                vocabulary = Vocabulary(known if known != [""] else [], tensors["pairs"])
                words = Words(vocabulary, tensors["words"].astype(np.float32))
            head = cls(tensors["weight"], tensors["bias"], words=words, neutral=tensors.get("neutral"), **described)
            if not isinstance(head.labels, list):
                raise ValueError("labels must be a list")
            require_labels(head.labels)
            if len({(type(label), label) for label in head.labels}) < len(head.labels):
                raise ValueError("labels must differ")
            count = len(head.labels)
            shapes = {head.weight.shape[:1], head.bias.shape, head.constant.shape}
            if head.weight.ndim != 2 or shapes != {(count,)} or not count:
                raise ValueError(f"{count} labels for weights of shape {head.weight.shape}")
            parts = [head.weight, head.bias, head.constant]
            if words is not None:
                vocabulary, of_words = words.vocabulary, words.weight
                pairs, count_of_words = vocabulary.pairs, len(vocabulary.words)
                if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs < 0).any() or (pairs >= count_of_words).any():
                    raise ValueError(f"pairs of shape {pairs.shape} for {count_of_words} words")
                if len(set(vocabulary.words)) < count_of_words or (np.diff(vocabulary.keys) <= 0).any():
                    raise ValueError("words and pairs must differ, and pairs must be in order")
                if of_words.shape != (len(vocabulary), count):
                    raise ValueError(f"{len(vocabulary)} words for weights of shape {of_words.shape}")
                parts.append(of_words)
            if not all(np.isfinite(part).all() for part in parts):
                raise ValueError("weights must be finite")
            if not isinstance(head.params, dict):
                raise ValueError("params must be an object")
            if not all(isinstance(getattr(head, flag), bool) for flag in FLAGS):
                raise ValueError(f"{', '.join(FLAGS)} must be true or false")
        except InputError as error:
            raise InputError(f"{folder}: {error}") from None
        except (OSError, ValueError, LookupError, TypeError, SafetensorError, RecursionError) as error:
            reason, *_ = str(error).split("\n")
            raise InputError(f"{folder}: the head cannot be loaded ({type(error).__name__}: {reason})") from None
        return head


def class_weights(wanted: ClassWeight, data: Labelled, labels: Sequence[Any]) -> NDArray[np.float64] | None:
    """Return the weight of each class in the loss, (classes,); None: all are 1.

    ``wanted`` is ``balanced``, or weights by label (other labels have weight 1). The balanced weight of a label is
    n / (classes * n_label); with several labels per text, the number of texts without it / the number with it.
    """
    if wanted is None:
        return None
    if wanted == "balanced":
        targets = data.targets(labels)
        if data.multi_label:
            positive = targets.sum(0, dtype=np.float64)
            return np.asarray(np.maximum(len(targets) - positive, 1) / np.maximum(positive, 1))
        counts = np.bincount(targets, minlength=len(labels))
        return np.asarray(len(targets) / (len(labels) * np.maximum(counts, 1)))
    if not isinstance(wanted, Mapping):
        raise InputError(f"class_weight must be 'balanced', a dict of label: weight or None, got {quoted(wanted)}")
    classes, found = Classes(labels), np.ones(len(labels))
    for label, weight in wanted.items():
        if (meant := classes.meant(label)) is None:
            raise InputError(f"class_weight names {quoted(label)}, but no training text has that label")
        if isinstance(weight, str) or not 0 < weight < np.inf:
            raise InputError(
                f"the class weight of {quoted(label)} must be a finite number above 0, got {quoted(weight)}"
            )
        found[labels.index(meant)] = weight
    return found


def neutral_logits(data: Labelled, labels: Sequence[Any], weights: NDArray[np.float64] | None) -> Floats:
    """Return the logits (classes,) of the classes' shares of the training texts, adding half a text to each class."""
    targets = data.targets(labels)
    texts = targets.sum(0) if data.multi_label else np.bincount(targets, minlength=len(labels))
    others = len(targets) - texts if data.multi_label else len(targets)
    weighted = texts if weights is None else texts * weights
    return np.log((weighted + 0.5) / (others + 0.5)).astype(np.float32)
