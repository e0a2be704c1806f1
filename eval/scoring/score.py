"""The score of one encoder on one task, and its JSON form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctx_embed.classify.fitting import fitted_head
from ctx_embed.classify.labelled import Labelled
from ctx_embed.errors import InputError
from ctx_embed.eval.cache import EmbeddingCache
from ctx_embed.eval.scoring.probes import Features, Fit, Indices, Parts, ProbeScore, Protocol, frozen, of_pairs
from ctx_embed.eval.scoring.ranking import RetrievalScore, SimilarityScore, paired, score_retrieval, spearman
from ctx_embed.eval.scoring.statistics import Difference, mcnemar, paired_correlations, paired_means
from ctx_embed.eval.tasks.data import TaskData
from ctx_embed.eval.tasks.formats import Row

Score = ProbeScore | SimilarityScore | RetrievalScore
SCORE_TYPES: dict[str, type[Any]] = {
    "probe": ProbeScore,
    "similarity": SimilarityScore,
    "retrieval": RetrievalScore,
}


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
    """The rows of a probe task: labels, texts (one or two a row), and the rows of its parts, if any."""

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

        def key(row: int) -> tuple[Any, ...]:
            return *(len(text.split()) for text in self.texts[row]), self.labels[row]

        groups = [np.arange(len(self.labels))] if self.parts is None else list(self.parts.values())
        order = np.array([row for rows in groups for row in sorted(rows.tolist(), key=key)], np.intp)
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
    if isinstance(score, SimilarityScore) and isinstance(other, SimilarityScore) and _sizes(score) == _sizes(other):
        return paired_correlations(score.cosines, other.cosines, gold)
    if (
        isinstance(score, RetrievalScore)
        and isinstance(other, RetrievalScore)
        and len(score.ndcg) == len(other.ndcg) > 0
    ):
        return paired_means(score.ndcg, other.ndcg)
    raise InputError("the two scores must cover the same rows, got different ones")


def _sizes(score: SimilarityScore) -> dict[str, int]:
    return {name: len(values) for name, values in score.cosines.items()}


def rows_alone(train: Indices, other: Indices) -> tuple[Indices, Indices]:
    """Return the rows themselves as features, for a classifier that finds their texts."""
    return train, other


def reading_words(features: Features, texts: Sequence[Sequence[str]]) -> Fit:
    """Return the fit of a classifier of embeddings and words, which chooses its own options, not a penalty.

    Its features are those of :func:`rows_alone`; ``features`` are those of the embeddings, ``texts`` one of each row.
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
    """Return the score of a probe with one seed; raises as :meth:`Protocol.score` and as the encoder."""
    order = np.arange(len(examples.labels))
    if protocol.by_length:
        examples, order = examples.by_length()
    columns = list(zip(*examples.texts, strict=True))
    texts = [text for column in columns for text in column]
    fit = embed.encoder.fit
    features: Features = frozen(embed(texts)) if fit is None else fit(texts)
    if embed.encoder.words:
        fit_words = reading_words(features, examples.texts)
        protocol, features = replace(protocol, fit=fit_words, grid=(1.0,), test_grid=(1.0,)), rows_alone
    elif len(columns) == 2:
        features = of_pairs(features, len(examples.texts))
    score = protocol.score(features, examples.labels, seed, examples.parts)
    if not protocol.by_length:
        return score
    tested = order if examples.parts is None else order[examples.parts["test"]]
    right = "".join(digit for _, digit in sorted(zip(tested.tolist(), score.right, strict=True)))
    return replace(score, right=right)


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
