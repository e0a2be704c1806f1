"""The classification protocol of MTEB: logistic regressions on a few examples of each label, tested on all test rows.

Source: ``AbsTaskClassification`` of mteb 2.26, with its seed and its order of the draws.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.eval.cache import EmbeddingCache
from ctx_embed.eval.scoring.probes import DIGITS, Features, Fit, Indices, Matrix, ProbeScore, majority_floor
from ctx_embed.eval.scoring.score import Examples, reading_words, rows_alone

DRAWS, SEED, MAX_ITERATIONS = 10, 42, 100
# Long test parts are embedded, and their embeddings stored, in blocks of this many texts.
BLOCK_TEXTS = 2500


def draws(labels: Sequence[str], per_label: int) -> list[list[int]]:
    """Return the rows of each draw: the first ``per_label`` of each label, in an order shuffled again each time."""
    order = list(range(len(labels)))
    found = []
    for _ in range(DRAWS):
        # The generator starts anew, as in MTEB; the order does not.
        np.random.RandomState(SEED).shuffle(order)
        seen: Counter[str] = Counter()
        drawn = []
        for row in order:
            if seen[labels[row]] < per_label:
                seen[labels[row]] += 1
                drawn.append(row)
        found.append(drawn)
    return found


def embedded(
    texts: Sequence[str],
    train: Sequence[int],
    test: Sequence[int],
    embed: Callable[[Sequence[str]], NDArray[np.float32]],
) -> Features:
    """Return the features of the training rows that a draw holds, and of the test rows."""
    rows = [*train, *test]
    place = {row: at for at, row in enumerate(rows)}
    wanted = [texts[row] for row in rows]
    X = np.concatenate([embed(wanted[start : start + BLOCK_TEXTS]) for start in range(0, len(wanted), BLOCK_TEXTS)])

    def features(train: Indices, other: Indices) -> tuple[Matrix, Matrix]:
        return X[[place[row] for row in train.tolist()]], X[[place[row] for row in other.tolist()]]

    return features


def regression(X: Matrix, y: Indices, n_classes: int, Cs: Sequence[float], X_test: Matrix) -> list[Indices]:
    """Fit MTEB's logistic regressions, which may stop before they converge."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [LogisticRegression(C=C, max_iter=MAX_ITERATIONS, random_state=SEED).fit(X, y) for C in Cs]
    return [fit.predict(X_test) for fit in fits]


def score_few_shot(examples: Examples, embed: EmbeddingCache, per_label: int) -> ProbeScore:
    """Return the accuracy on the test part of a classifier for each draw, with the draws as folds and as seeds."""
    if examples.parts is None:
        raise InputError("MTEB's protocol needs a training and a test part, got one part")
    parts, texts = examples.parts, [row[0] for row in examples.texts]
    drawn = draws([examples.labels[row] for row in parts["train"]], per_label)
    if embed.encoder.fit is None:
        features = embedded(texts, sorted({row for rows in drawn for row in rows}), parts["test"].tolist(), embed)
    else:
        features = embed.encoder.fit(texts)
    fit: Fit = regression
    if embed.encoder.words:
        fit, features = reading_words(features, examples.texts), rows_alone
    names, classes = np.unique(np.asarray(examples.labels), return_inverse=True)
    test = parts["test"]
    hits = []
    for rows in drawn:
        train = np.array(rows, np.intp)
        X, X_test = features(train, test)
        hits.append(fit(X, classes[train], len(names), (1.0,), X_test)[0] == classes[test])
    return ProbeScore(
        tuple(100.0 * float(hit.mean()) for hit in hits),
        (1.0,) * len(hits),
        majority_floor(classes, (parts["train"], test)),
        "".join(DIGITS[count] for count in np.sum(hits, axis=0)),
        len(hits),
    )
