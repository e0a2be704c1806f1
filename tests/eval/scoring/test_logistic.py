from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from ctx_embed.eval.scoring.probes import logistic_path

CS = (1e-4, 1e-2, 1.0, 10.0)


def problem(n: int, d: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated features whose variances differ by orders of magnitude, and overlapping classes."""
    generator = np.random.default_rng(n + d + n_classes)
    X = generator.normal(size=(n, d)) @ (generator.normal(size=(d, d)) * np.exp(-np.arange(d) / 10))
    X = StandardScaler().fit_transform(X)
    logits = 0.3 * X @ generator.normal(size=(d, n_classes)) + generator.gumbel(size=(n, n_classes))
    return X, logits.argmax(axis=1)


@pytest.mark.parametrize(("n", "d", "n_classes"), [(400, 40, 2), (400, 40, 3), (60, 90, 2), (60, 90, 4)])
def test_agrees_with_scikit_learn(n, d, n_classes):
    X, y = problem(n, d, n_classes)
    for C, found in zip(CS, logistic_path(X, y, n_classes, CS), strict=True):
        reference = LogisticRegression(C=C, tol=1e-10, max_iter=100_000).fit(X, y)
        np.testing.assert_allclose(found.weights, reference.coef_.T, atol=2e-3 * np.abs(reference.coef_).max())
        np.testing.assert_array_equal(found.predict(X), reference.predict(X))


@pytest.mark.parametrize(("n", "d"), [(400, 40), (60, 90)])
def test_a_penalised_intercept_agrees_with_liblinear(n, d):
    X, y = problem(n, d, 2)
    X = X + 0.5
    for C, found in zip(CS, logistic_path(X, y, 2, CS, penalise_intercept=True), strict=True):
        reference = LogisticRegression(C=C, solver="liblinear", tol=1e-10, max_iter=100_000).fit(X, y)
        np.testing.assert_allclose(found.weights, reference.coef_.T, atol=2e-3 * np.abs(reference.coef_).max())
        np.testing.assert_allclose(found.intercept, reference.intercept_, atol=2e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_sparse_features_give_the_same(n_classes):
    X, y = problem(300, 30, n_classes)
    X[np.abs(X) < 1] = 0
    dense, thin = (list(logistic_path(of, y, n_classes, CS)) for of in (X, sparse.csr_array(X)))
    for one, other in zip(dense, thin, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-4)
        np.testing.assert_array_equal(one.predict(X), other.predict(sparse.csr_array(X)))


def test_start_intercept_and_convergence():
    X, y = problem(200, 20, 3)
    *_, after_others = logistic_path(X, y, 3, CS)
    (alone,) = logistic_path(X, y, 3, CS[-1:])
    np.testing.assert_allclose(after_others.weights, alone.weights, atol=1e-4)
    # The intercept alone gives the log odds.
    (found,) = logistic_path(np.zeros((4, 3)), np.array([0, 1, 1, 1]), 2, [1.0])
    np.testing.assert_allclose(found.intercept, np.log(3.0), atol=1e-5)
    np.testing.assert_array_equal(found.weights, 0.0)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        list(logistic_path(X, y, 3, [10.0], max_iterations=1))
