import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from ctx_embed.classify.fitting import INTERCEPT, Regression, fitted_head
from ctx_embed.classify.head import Head
from ctx_embed.classify.labelled import Labelled
from ctx_embed.vectors import unit_rows

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(200, 8)) * np.array([3, 3, 3, 3, 3, 3, 3, 0.001])).astype(np.float32)
NO_WORDS = [""] * 200


def accuracy(head: Head, X, data: Labelled) -> float:
    found = head.chosen(head.logits(X, data.texts))
    return float(np.mean([a == b for a, b in zip(found, data.labels, strict=True)]))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_regression_is_scikit_learns(classes, weighted):
    y = np.digitize(X[:, 0], [0] if classes == 2 else [-2, 2])
    weights = np.array([1.0, 3.0, 2.0][:classes]) if weighted else None
    fit = Regression(X, None, y, classes, weights)
    weight, _, bias = fit.weights(fit.coefficients(np.arange(200), 0.3, 0.0, effort=(1e-9, 1000)))
    Z = (X - X.mean(0)) / X.std(0)
    of_class = None if weights is None else dict(enumerate(weights))
    expected = LogisticRegression(C=0.09, class_weight=of_class, max_iter=1000).fit(Z, y)
    logits = X @ weight.T + bias
    odds = np.exp(logits - logits.max(1, keepdims=True))
    # Intercepts have a weak prior here, none in scikit-learn.
    assert odds / odds.sum(1, keepdims=True) == pytest.approx(expected.predict_proba(Z), abs=5e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_several_labels_are_regressions_of_scikit_learn(weighted):
    y = (X[:, :3] + RNG.normal(size=(200, 3)) > [0, 1, 2]).astype(np.float32)
    weights = np.array([1.0, 3.0, 0.5]) if weighted else None
    fit = Regression(X.astype(np.float64), None, y, 3, weights)
    weight, of_words, bias = fit.weights(fit.coefficients(np.arange(200), 0.3, 0.0, effort=(1e-15, 1000)))
    assert of_words.shape == (0, 3)
    Z = (X.astype(np.float64) - X.mean(0, dtype=np.float64)) / X.std(0, dtype=np.float64)
    for label in range(3):
        of_label = None if weights is None else {1: weights[label]}
        # An intercept with the same prior: a feature whose weight is as free as ours.
        free = np.column_stack([Z, np.full(200, INTERCEPT / 0.3)])
        expected = LogisticRegression(C=0.09, class_weight=of_label, fit_intercept=False, tol=1e-10, max_iter=10_000)
        expected.fit(free, y[:, label])
        logits = X.astype(np.float64) @ weight[label].astype(np.float64) + bias[label]
        assert 1 / (1 + np.exp(-logits)) == pytest.approx(expected.predict_proba(free)[:, 1], abs=1e-6)


def test_features_that_are_scaled_together_are_a_regression_of_scikit_learn():
    y = (X[:, 0] + RNG.normal(size=200) > 0).astype(int)
    large = 1000 * X.astype(np.float64)
    fit = Regression(large, None, y, 2, separately=False)
    weight, _, bias = fit.weights(fit.coefficients(np.arange(200), 0.3, 0.0, effort=(1e-15, 1000)))
    centred = large - large.mean(0)
    Z = np.column_stack([centred / np.sqrt(centred.var(0).mean()), np.full(200, INTERCEPT / 0.3)])
    expected = LogisticRegression(C=0.09, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(Z, y)
    logits = large @ weight.T.astype(np.float64) + bias
    assert 1 / (1 + np.exp(logits[:, 0] - logits[:, 1])) == pytest.approx(expected.predict_proba(Z)[:, 1], abs=1e-6)


def test_words_with_a_larger_log_ratio_may_weigh_more():
    texts = [("good" if row % 2 else "bad") + (" the" if row % 3 else " it") + f" {row}" for row in range(200)]
    data = Labelled(["+" if row % 2 else "-" for row in range(200)], texts)
    head = fitted_head(X, data, ["+", "-"])
    names = map(head.words.vocabulary.name, range(len(head.words)))
    weights = dict(zip(names, head.words.weight[:, 0], strict=True))
    assert weights["good"] > 0.2 > abs(weights.get("the", 0))
    assert weights["bad"] < -0.2
    assert accuracy(head, X, data) == 1
    alone = fitted_head(X, data, ["+", "-"], words=False)
    assert alone.words is None
    assert accuracy(alone, X, data) < 0.7


def test_words_that_say_nothing_are_not_read():
    data = Labelled([str(value) for value in X[:, 0] > 0], [f"word {row % 7} of many" for row in range(200)])
    assert fitted_head(X, data, ["False", "True"]).words is None


def test_the_faint_feature_is_found_where_it_is_the_one_that_tells():
    faint = Labelled([str(value) for value in unit_rows(X)[:, 7] > 0], NO_WORDS)
    texts = [str(row) for row in range(200)]
    assert accuracy(fitted_head(X, Labelled(faint.labels, texts), ["False", "True"]), X, faint) > 0.8


def test_probabilities_are_calibrated():
    rng = np.random.default_rng(1)
    Y = rng.normal(size=(6000, 8)).astype(np.float32)
    truth = rng.random(6000) < 1 / (1 + np.exp(-3 * unit_rows(Y)[:, 0]))
    texts = [str(row) for row in range(6000)]
    head = fitted_head(Y[:1000], Labelled(truth[:1000].tolist(), texts[:1000]), [False, True])
    found = head.probabilities(head.logits(Y[1000:], texts[1000:]))[:, 1]
    for low in (0.1, 0.3, 0.5, 0.7):
        inside = (found >= low) & (found < low + 0.2)
        assert truth[1000:][inside].mean() == pytest.approx(found[inside].mean(), abs=0.06)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("several", [False, True])
def test_few_texts_are_never_sure(classes, several):
    """All held-out texts are right, which of ten texts a class says that about one in twelve is wrong."""
    rng = np.random.default_rng(2)
    y = np.arange(10 * classes) % classes
    rows = (np.eye(classes, 20)[y] + 0.05 * rng.normal(size=(len(y), 20))).astype(np.float32)
    texts = [str(row) for row in range(len(y))]
    labels = [(row,) if several else row for row in y.tolist()]
    head = fitted_head(rows, Labelled(labels, texts), list(range(classes)))
    found = head.probabilities(head.logits(rows, texts))
    assert (found.argmax(1) == y).all()
    assert 0.8 < found.max(1).mean() < 0.96


@pytest.mark.parametrize("classes", [2, 40])
def test_one_text_a_class_is_enough(classes):
    labels = [f"{row:02}" for row in range(classes)]
    data = Labelled(labels, [f"text {row}" for row in range(classes)])
    rows = np.eye(classes, 50, dtype=np.float32)
    assert accuracy(fitted_head(rows, data, labels), rows, data) == 1


def test_few_texts_do_not_choose_a_small_weight_of_the_meaning():
    """Eight held-out texts may all be wrong by chance, which must not make the classifier say nothing."""
    rng = np.random.default_rng(0)
    y = np.arange(8) % 2
    found = []
    for _ in range(6):
        rows = (rng.normal(size=(8, 30)) + np.outer(2 * y - 1, np.eye(30)[0])).astype(np.float32)
        texts = [str(row) for row in range(8)]
        head = fitted_head(rows, Labelled(y.tolist(), texts), [0, 1])
        found.append(np.ptp(head.logits(rows, texts)[:, 1]))
    assert min(found) > 0.2


def test_equal_texts_do_not_choose_the_strength():
    """Four copies of texts with random labels: what memorises them must not look good on held-out texts."""
    labels = RNG.integers(0, 2, 100).tolist() * 4
    texts = [f"word{row} and word{row}x" for row in range(100)] * 4
    rows = np.tile(RNG.normal(size=(100, 30)).astype(np.float32), (4, 1))
    head = fitted_head(rows, Labelled(labels, texts), [0, 1])
    assert head.probabilities(head.logits(rows, texts)).max(1).mean() < 0.8
