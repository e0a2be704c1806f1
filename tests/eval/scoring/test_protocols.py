"""The senteval protocols against plain implementations of what SentEval documents."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier

from ctx_embed.eval.scoring.mlp import mlp
from ctx_embed.eval.scoring.probes import frozen
from ctx_embed.eval.scoring.protocols import (
    PROTOCOL_NAMES,
    PROTOCOLS,
    ProtocolName,
    best_rounded_mean,
    scaled_logistic,
    title_of,
)

GENERATOR = np.random.default_rng(11)


def test_senteval_chooses_among_the_published_penalties():
    logistic, adam, layers = (PROTOCOLS[name] for name in ("senteval", "senteval-adam", "senteval-mlp"))
    assert logistic.grid == (0.25, 0.5, 1, 2, 4, 8)
    assert logistic.test_grid == (0.5, 1, 2, 4, 8, 16, 32)
    for network in (adam, layers):
        assert network.grid == network.test_grid == pytest.approx((1e-5, 1e-4, 1e-3, 1e-2))


def test_our_protocols_choose_among_powers_of_ten():
    standard, quick = PROTOCOLS["standard"], PROTOCOLS["quick"]
    assert standard.grid == standard.test_grid == (1e-4, 1e-3, 0.01, 0.1, 1, 10)
    assert quick.grid == quick.test_grid == (0.01,)
    for protocol, folds in ((standard, 10), (quick, 5)):
        assert (protocol.folds, protocol.inner_folds, protocol.fold_seed, protocol.by_length) == (folds, 5, None, False)


def problem(y: list[str], dimension: int = 10) -> np.ndarray:
    means = {label: GENERATOR.normal(size=dimension) for label in sorted(set(y))}
    X = np.stack([0.25 * means[label] for label in y]) + 0.6 * GENERATOR.normal(size=(len(y), dimension))
    return X / np.linalg.norm(X, axis=1, keepdims=True) + 0.1


def liblinear(C: float, X, y):
    return OneVsRestClassifier(LogisticRegression(C=C, solver="liblinear", tol=1e-8, max_iter=10_000)).fit(X, y)


def nested(X, labels, folds: int) -> tuple[list[float], list[float]]:
    """Return accuracies and C of stratified nested cross-validation, C of 2^-2..2^3 by the rounded mean accuracy."""
    accuracies, chosen = [], []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=1111).split(X, labels):
        means = []
        for t in range(-2, 4):
            scores = [
                liblinear(2.0**t, X[train][inner], labels[train][inner]).score(
                    X[train][held_out], labels[train][held_out]
                )
                for inner, held_out in StratifiedKFold(folds, shuffle=True, random_state=1111).split(
                    X[train], labels[train]
                )
            ]
            means.append(round(100 * np.mean(scores), 2))
        chosen.append(2.0 ** (int(np.argmax(means)) - 2))
        accuracies.append(100 * liblinear(chosen[-1], X[train], labels[train]).score(X[test], labels[test]))
    return accuracies, chosen


@pytest.mark.parametrize("y", [["0", "1"] * 70, ["a", "b", "c"] * 40], ids=["two", "three"])
def test_senteval_cross_validation(y):
    X = problem(y)
    protocol = PROTOCOLS["senteval"]
    assert protocol.folds == protocol.inner_folds == 10
    accuracies, chosen = nested(X, np.array(y), 4)
    score = replace(protocol, folds=4, inner_folds=4).score(frozen(X), y, 5)
    assert score.folds == pytest.approx(accuracies)
    assert score.Cs == tuple(chosen)
    assert len(set(chosen)) > 1


def test_senteval_with_a_test_part_chooses_from_another_grid():
    y = ["0", "1"] * 80
    X, labels = problem(y), np.array(y)
    means = []
    for t in range(-1, 6):
        folds = StratifiedKFold(10, shuffle=True, random_state=1111).split(X[:120], labels[:120])
        scores = [liblinear(2.0**t, X[i], labels[i]).score(X[o], labels[o]) for i, o in folds]
        means.append(round(100 * np.mean(scores), 2))
    best = 2.0 ** (int(np.argmax(means)) - 1)
    score = PROTOCOLS["senteval"].score(frozen(X), y, 0, {"train": np.arange(120), "test": np.arange(120, 160)})
    assert score.Cs == (best,)
    assert score.mean == pytest.approx(100 * liblinear(best, X[:120], labels[:120]).score(X[120:], labels[120:]))


def test_senteval_with_a_development_part():
    y = ["0", "1"] * 80
    X, labels = problem(y), np.array(y)
    parts = {"train": np.arange(100), "dev": np.arange(100, 130), "test": np.arange(130, 160)}
    accuracies = [liblinear(2.0**t, X[:100], labels[:100]).score(X[100:130], labels[100:130]) for t in range(-2, 4)]
    assert PROTOCOLS["senteval"].score(frozen(X), y, 0, parts).Cs == (2.0 ** (int(np.argmax(accuracies)) - 2),)


def test_the_mean_over_folds_of_other_sizes_is_not_that_over_rows():
    right, sizes = np.array([[9.0, 10.0], [3.0, 2.0]]), np.array([10.0, 3.0])
    assert best_rounded_mean(right, sizes) == 0
    # Alike in two digits: the first.
    assert best_rounded_mean(np.array([[0.999999, 1.0]]), np.array([1.0])) == 0
    assert best_rounded_mean(np.array([[0.5, 0.50004999]]), np.array([1.0])) == 0
    assert best_rounded_mean(np.array([[0.5, 0.5000501]]), np.array([1.0])) == 1


def plain_network(X, y, n_classes, decay, valid, valid_y, hidden, generator):
    """One network by torch's own layers and Adam: 4 passes a look, 6 looks in vain, 200 passes."""
    layers = [torch.nn.Linear(X.shape[1], hidden), torch.nn.Sigmoid()] if hidden else []
    model = torch.nn.Sequential(*layers, torch.nn.Linear(hidden or X.shape[1], n_classes))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                bound = layer.in_features**-0.5
                layer.weight.copy_(torch.empty(layer.weight.T.shape).uniform_(-bound, bound, generator=generator).T)
                layer.bias.copy_(torch.empty(1, len(layer.bias)).uniform_(-bound, bound, generator=generator)[0])
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=decay)
    best, best_accuracy, in_vain, passes, stop = None, -1.0, 0, 0, False
    while not stop and passes <= 200:
        for _ in range(4):
            for rows in torch.randperm(len(X), generator=generator).split(64):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(X[rows]), y[rows], reduction="sum").backward()
                optimizer.step()
        passes += 4
        accuracy = (model(valid).argmax(1) == valid_y).float().mean().item()
        if accuracy > best_accuracy:
            best, best_accuracy = copy.deepcopy(model), accuracy
        else:
            stop = in_vain >= 5
            in_vain += 1
    return best


@pytest.mark.parametrize(("hidden", "n_classes"), [(0, 2), (7, 3)])
def test_networks_side_by_side_are_those_trained_alone(hidden, n_classes):
    y = np.arange(150) % n_classes
    X = problem([str(label) for label in y])
    decays = (1e-5, 1e-2, 3.0)
    found = mlp(hidden)(X[:110], y[:110], n_classes, decays, X[110:], y[110:], 4)
    tensor = torch.from_numpy(X.astype(np.float32))
    for decay, predicted in zip(decays, found, strict=True):
        generator = torch.Generator().manual_seed(4)
        truth = torch.from_numpy(y)
        network = plain_network(
            tensor[:110], truth[:110], n_classes, decay, tensor[110:], truth[110:], hidden, generator
        )
        np.testing.assert_array_equal(predicted, network(tensor[110:]).argmax(1).numpy())


def test_without_labels_a_twentieth_is_held_out():
    y = np.arange(200) % 2
    X = problem([str(label) for label in y])
    (predicted,) = mlp(0)(X[:160], y[:160], 2, (1e-4,), X[160:], None, 9)
    generator = torch.Generator().manual_seed(9)
    order = torch.randperm(160, generator=generator)
    tensor, truth = torch.from_numpy(X.astype(np.float32)), torch.from_numpy(y)
    held_out, rest = order[:8], order[8:]
    network = plain_network(tensor[rest], truth[rest], 2, 1e-4, tensor[held_out], truth[held_out], 0, generator)
    np.testing.assert_array_equal(predicted, network(tensor[160:]).argmax(1).numpy())


def test_a_development_part_stops_the_final_network_too():
    y = ["0", "1"] * 80
    X, classes = problem(y), np.arange(160) % 2
    parts = {"train": np.arange(100), "dev": np.arange(100, 130), "test": np.arange(130, 160)}
    score = PROTOCOLS["senteval-adam"].score(frozen(X), y, 4, parts)
    found = mlp(0)(X[:100], classes[:100], 2, score.Cs, X[100:], classes[100:130], 4)[0]
    assert score.right == "".join("01"[int(hit)] for hit in found[30:] == classes[130:])
    tensor, truth, generator = torch.from_numpy(X.astype(np.float32)), torch.from_numpy(classes), torch.Generator()
    network = plain_network(
        tensor[:100], truth[:100], 2, score.Cs[0], tensor[100:130], truth[100:130], 0, generator.manual_seed(4)
    )
    np.testing.assert_array_equal(found, network(tensor[100:]).argmax(1).numpy())


@pytest.mark.parametrize(("name", "hidden"), [("senteval-adam", 0), ("senteval-mlp", 50)])
def test_networks_learn_separable_classes(name, hidden):
    protocol = replace(PROTOCOLS[name], fit=mlp(hidden, max_passes=8), inner_folds=2)
    y = ["no", "yes"] * 50
    X = np.array([[3.0, 1.0] if label == "yes" else [-3.0, 1.0] for label in y])
    score = protocol.score(frozen(X), y, 0)
    assert score.mean == 100.0
    assert score == protocol.score(frozen(X), y, 0)


def test_every_protocol_has_a_title():
    assert set(PROTOCOL_NAMES) == {"standard", "quick", "senteval", "senteval-adam", "senteval-mlp", "paper"}
    assert all(title_of(name) for name in PROTOCOL_NAMES)


def test_sparse_rows_are_scaled_alike_in_training_and_test():
    """As scikit-learn fits them at 16 times their length; other test rows would meet another intercept."""
    generator = np.random.default_rng(0)
    X = sparse.random_array((120, 30), density=0.2, rng=generator, format="csr")
    y = (np.asarray(X.sum(axis=1)).ravel() > 3.4).astype(np.intp)
    assert 10 < y.sum() < 50
    (found,) = scaled_logistic(X[:80], y[:80], 2, (0.01,), X[80:], None, 0)
    scaled = 16.0 * X.toarray()
    expected = LogisticRegression(C=0.01, tol=1e-8).fit(scaled[:80], y[:80])
    np.testing.assert_array_equal(found, expected.predict(scaled[80:]))
    for train, test in ((1.0, 1.0), (16.0, 1.0), (1.0, 16.0)):
        other = LogisticRegression(C=0.01, tol=1e-8).fit(train * X[:80].toarray(), y[:80])
        assert (other.predict(test * X[80:].toarray()) != found).any()


def test_the_type_names_every_protocol():
    assert get_args(ProtocolName) == PROTOCOL_NAMES
