"""The score of one encoder on one task: by a probe, by MTEB's or the paper's protocol, or by cosines; and as JSON."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from ctx_embed.classify.fitting import fitted_head
from ctx_embed.classify.labelled import Labelled
from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import EmbeddingCache, Encoder
from ctx_embed.eval.scoring.probes import (
    DIGITS,
    Features,
    Fit,
    Indices,
    Matrix,
    Parts,
    ProbeScore,
    Protocol,
    frozen,
    majority_floor,
    of_pairs,
    score_of,
    splits_of,
)
from ctx_embed.eval.scoring.ranking import RetrievalScore, SimilarityScore, paired, score_retrieval, spearman
from ctx_embed.eval.scoring.statistics import Difference, mcnemar, paired_correlations, paired_means
from ctx_embed.eval.tasks import Row, TaskData
from ctx_embed.progress import Meter
from ctx_embed.training.options import FINE_TUNING, SupervisedOptions

# MTEB's protocol: its draws of training rows, its seed, and the iterations after which its regressions stop.
DRAWS, SEED, MAX_ITERATIONS = 10, 42, 100
# Long test parts are embedded, and their embeddings stored, in blocks of this many texts.
BLOCK_TEXTS = 2500
# The outer folds of the paper's protocol.
FOLDS = 10
# Takes a fold's number and a function that computes its outcome; returns the outcome, stored or computed.
Keep = Callable[[int, Callable[[], dict[str, Any]]], dict[str, Any]]

Score = ProbeScore | SimilarityScore | RetrievalScore
SCORE_TYPES: dict[str, type[Any]] = {"probe": ProbeScore, "similarity": SimilarityScore, "retrieval": RetrievalScore}


def from_json(kind: str, fields: dict[str, Any]) -> Score:
    """Return the score of a task of that kind from its fields (``dataclasses.asdict``), read back from JSON."""

    def frozen(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: frozen(part) for name, part in value.items()}
        return tuple(value) if isinstance(value, list) else value

    score: Score = SCORE_TYPES[kind](**frozen(fields))
    return score


@dataclass(frozen=True)
class Examples:
    """The rows of a probe task: labels, texts (one or two a row), and the rows of its parts if it has parts."""

    labels: list[str]
    texts: list[Row]
    parts: Parts | None

    @classmethod
    def from_data(cls, data: TaskData) -> Examples:
        """Return the rows of a probe task's data."""
        rows = [row for subset in data.subsets.values() for row in subset]
        labels, texts = [row[0] for row in rows], [row[1:] for row in rows]
        if "train" not in data.subsets:
            return cls(labels, texts, None)
        parts, start = {}, 0
        for name, subset in data.subsets.items():
            parts[name] = np.arange(start, start + len(subset))
            start += len(subset)
        return cls(labels, texts, parts)

    def by_length(self) -> tuple[Examples, Indices]:
        """Return the rows sorted by length in words, then by label, within each part; and that order."""
        keys = [
            (*(len(text.split()) for text in texts), label)
            for texts, label in zip(self.texts, self.labels, strict=True)
        ]
        groups = [np.arange(len(self.labels))] if self.parts is None else list(self.parts.values())
        order = np.array([row for rows in groups for row in sorted(rows.tolist(), key=keys.__getitem__)], np.intp)
        return replace(self, labels=[self.labels[i] for i in order], texts=[self.texts[i] for i in order]), order

    @property
    def repeated(self) -> int:
        """The number of test texts that also occur in the training rows (in cross-validated data: in another row)."""
        if self.parts is not None:
            train = {self.texts[row] for row in self.parts["train"]}
            return sum(self.texts[row] in train for row in self.parts["test"])
        return len(self.texts) - sum(count == 1 for count in Counter(self.texts).values())


def difference(score: Score, other: Score, gold: Mapping[str, Sequence[float]]) -> Difference:
    """Return ``score`` minus ``other`` on the same rows.

    Accuracies with one seed each are compared by McNemar's test, all others by permutation; ``gold`` holds the
    judgements of a similarity task by subset.
    """
    if isinstance(score, ProbeScore) and isinstance(other, ProbeScore) and len(score.right) == len(other.right) > 0:
        if score.seeds == other.seeds == 1:
            return mcnemar(score.hits, other.hits)
        return paired_means(100 * score.hits, 100 * other.hits)
    if isinstance(score, SimilarityScore) and isinstance(other, SimilarityScore):
        sizes, others = ({name: len(values) for name, values in each.cosines.items()} for each in (score, other))
        if sizes == others:
            return paired_correlations(score.cosines, other.cosines, gold)
    if (
        isinstance(score, RetrievalScore)
        and isinstance(other, RetrievalScore)
        and len(score.ndcg) == len(other.ndcg) > 0
    ):
        return paired_means(score.ndcg, other.ndcg)
    raise InputError("the two scores must cover the same rows, got different ones")


def reading_words(features: Features, texts: Sequence[Sequence[str]]) -> Fit:
    """Return the fit of a classifier over embeddings and words. It chooses its own options and ignores the penalties.

    Its inputs are numbers of rows: it gets the rows' embeddings from ``features``, and their texts from ``texts``.
    """
    if len(texts[0]) != 1:
        raise InputError("an encoder named NAME+words needs a task with one text a row, got pairs of texts")

    def fit(train: Indices, y: Indices, classes: int, penalties: Sequence[float], other: Indices) -> list[Indices]:
        X, X_other = features(train, other)
        data = Labelled(y.tolist(), [texts[row][0] for row in train])
        head = fitted_head(X, data, data.classes())
        return [np.array(head.chosen(head.logits(X_other, [texts[row][0] for row in other])), np.intp)]

    return fit


def score_probe(examples: Examples, embed: EmbeddingCache, protocol: Protocol, seed: int) -> ProbeScore:
    """Return the score of a probe with one seed."""
    order = np.arange(len(examples.labels))
    if protocol.by_length:
        examples, order = examples.by_length()
    columns = list(zip(*examples.texts, strict=True))
    texts = [text for column in columns for text in column]
    fit = embed.encoder.fit
    features: Features = frozen(embed(texts)) if fit is None else fit(texts)
    if embed.encoder.words:
        fit_words = reading_words(features, examples.texts)
        # The rows themselves are the features: the classifier finds their embeddings and texts.
        protocol, features = (
            replace(protocol, fit=fit_words, grid=(1.0,), test_grid=(1.0,)),
            lambda train, other: (train, other),
        )
    elif len(columns) == 2:
        features = of_pairs(features, len(examples.texts))
    score = protocol.score(features, examples.labels, seed, examples.parts)
    if not protocol.by_length:
        return score
    tested = order if examples.parts is None else order[examples.parts["test"]]
    right = "".join(digit for _, digit in sorted(zip(tested.tolist(), score.right, strict=True)))
    return replace(score, right=right)


def draws(labels: Sequence[str], per_label: int) -> list[list[int]]:
    """Return the rows of each draw of MTEB: the first ``per_label`` of each label, after shuffling all rows again."""
    order = list(range(len(labels)))
    found = []
    for _ in range(DRAWS):
        # As in MTEB, each draw resets the generator but not the order of the rows.
        np.random.RandomState(SEED).shuffle(order)
        seen: Counter[str] = Counter()
        drawn = []
        for row in order:
            if seen[labels[row]] < per_label:
                seen[labels[row]] += 1
                drawn.append(row)
        found.append(drawn)
    return found


def score_few_shot(examples: Examples, embed: EmbeddingCache, per_label: int) -> ProbeScore:
    """Return the accuracy of logistic regressions on a few examples of each label, tested on all test rows.

    The draws count as folds and as seeds. The regressions may stop before they converge.

    Source: ``AbsTaskClassification`` of mteb 2.26, with its seed and its order of the draws.
    """
    if examples.parts is None:
        raise InputError("MTEB's protocol needs a training and a test part, got one part")
    parts, texts, test = examples.parts, [row[0] for row in examples.texts], examples.parts["test"]
    drawn = draws([examples.labels[row] for row in parts["train"]], per_label)
    if embed.encoder.fit is None:
        wanted = [*sorted({row for rows in drawn for row in rows}), *test.tolist()]
        blocks = [wanted[start : start + BLOCK_TEXTS] for start in range(0, len(wanted), BLOCK_TEXTS)]
        found = np.concatenate([embed([texts[row] for row in block]) for block in blocks])
        embeddings = np.zeros((len(texts), found.shape[1]), found.dtype)
        embeddings[wanted] = found

        def features(train: Indices, other: Indices) -> tuple[Matrix, Matrix]:
            return embeddings[train], embeddings[other]

    else:
        features = embed.encoder.fit(texts)

    names, classes = np.unique(np.asarray(examples.labels), return_inverse=True)
    hits = []
    for rows in drawn:
        train = np.array(rows, np.intp)
        if embed.encoder.words:
            (predicted,) = reading_words(features, examples.texts)(train, classes[train], len(names), (1.0,), test)
        else:
            X, X_test = features(train, test)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                regression = LogisticRegression(max_iter=MAX_ITERATIONS, random_state=SEED).fit(X, classes[train])
            predicted = regression.predict(X_test)
        hits.append(predicted == classes[test])
    return ProbeScore(
        tuple(100.0 * float(hit.mean()) for hit in hits),
        (1.0,) * len(hits),
        majority_floor(classes, (parts["train"], test)),
        "".join(DIGITS[count] for count in np.sum(hits, axis=0)),
        len(hits),
    )


def training_options(encoder: Encoder) -> SupervisedOptions:
    """Return the training options: the paper's for randomly initialised weights, fine-tuning for a trained encoder.

    They name the encoder's head, since stored folds are looked up by these options.
    """
    from ctx_embed.systems import SYSTEMS

    options = SupervisedOptions() if encoder.name in SYSTEMS else FINE_TUNING
    return options if encoder.transformer is None else options.of_encoder(encoder.transformer)


def end_to_end(
    encoder: Encoder, examples: Examples, seed: int, folds: int = FOLDS, keep: Keep = lambda fold, make: make()
) -> ProbeScore:
    """Return the accuracy of encoders trained by :func:`ctx_embed.training.supervised.train.train_classifier`.

    The paper's protocol: encoder and linear head are trained end to end, each fold from a copy of the encoder. The
    ``dev`` part chooses the epoch, else a tenth of the training part. Without a test part there are ``folds`` outer
    folds. ``keep`` may store the outcome of a fold, so that a long run can be resumed.
    """
    from ctx_embed.training.supervised.train import train_classifier

    model = encoder.transformer
    if model is None:
        raise InputError(f"with the protocol paper an encoder must be a SentenceTransformer, got {encoder.name!r}")
    if len(examples.texts[0]) != 1:
        raise InputError("with the protocol paper a task must have one text a row, got pairs of texts")
    parts = examples.parts
    _, classes, splits = splits_of(examples.labels, parts, folds, seed)

    def rows(places: Any) -> Labelled:
        return Labelled([examples.labels[i] for i in places], [examples.texts[i][0] for i in places])

    def train(number: int) -> dict[str, Any]:
        train_rows, test_rows = splits[number]
        valid = rows(parts["dev"]) if parts is not None and "dev" in parts else None
        options = replace(training_options(encoder), seed=seed)
        classifier, _ = train_classifier(
            copy.deepcopy(model), rows(train_rows), valid, options, words=encoder.words, progress=False
        )
        test = rows(test_rows)
        predicted = classifier.predict(test.texts)
        return {"right": [int(a == b) for a, b in zip(predicted, test.labels, strict=True)]}

    folds_done = Meter("training", len(splits), "folds", leave=False).each(range(len(splits)))
    hits = [keep(number, partial(train, number))["right"] for number in folds_done]
    return score_of(hits, classes, parts, splits)


def score_similarity(data: TaskData, embed: EmbeddingCache) -> SimilarityScore:
    """Return the correlation of each subset."""
    pairs = [row for rows in data.subsets.values() for row in rows]
    # Encode both columns in one call, so that batches hold texts of both.
    both = embed([first for _, first, _ in pairs] + [second for _, _, second in pairs])
    cosines = paired(both[: len(pairs)], both[len(pairs) :]).tolist()
    of_subset: dict[str, tuple[float, ...]] = {}
    for name, rows in data.subsets.items():
        of_subset[name], cosines = tuple(cosines[: len(rows)]), cosines[len(rows) :]
    correlations = {
        name: spearman(of_subset[name], [float(score) for score, _, _ in rows]) for name, rows in data.subsets.items()
    }
    return SimilarityScore(correlations, of_subset)


def score_collection(data: TaskData, embed: EmbeddingCache) -> RetrievalScore:
    """Return the metrics of a retrieval collection."""
    queries, documents = data.subsets["queries"], data.subsets["corpus"]
    embeddings = embed([text for _, text in queries + documents])
    return score_retrieval(
        [name for name, _ in queries],
        embeddings[: len(queries)],
        [name for name, _ in documents],
        embeddings[len(queries) :],
        data.subsets["qrels"],
        data.own,
    )
