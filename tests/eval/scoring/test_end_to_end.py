from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from ctx_embed.classify.labelled import Labelled
from ctx_embed.encoders import Encoder, as_encoder
from ctx_embed.eval.evaluation import EvaluationOptions, evaluate
from ctx_embed.eval.scoring import score as module
from ctx_embed.eval.scoring.probes import folds_of
from ctx_embed.eval.scoring.score import Examples, end_to_end, training_options
from ctx_embed.eval.tasks.catalogue import find_tasks
from ctx_embed.eval.tasks.data import DataReader
from ctx_embed.fingerprint import fingerprint
from ctx_embed.systems import untrained
from ctx_embed.training.options import FINE_TUNING, SupervisedOptions
from ctx_embed.training.supervised.train import train_classifier
from tests.conftest import make_model
from tests.helpers.errors import error

ONCE = [("the good cat", "1"), ("a dull film", "0"), ("a good book", "1"), ("rain fell all night", "0")]
TEXTS = [(f"{text} {number}", label) for number in range(10) for text, label in ONCE]
EXAMPLES = Examples([label for _, label in TEXTS], [(text,) for text, _ in TEXTS], None)


@pytest.fixture
def encoder(tokenizer) -> Encoder:
    return as_encoder(make_model(tokenizer), "tiny")


def test_each_fold_is_trained_anew_from_the_same_encoder(encoder):
    before = fingerprint(encoder.model)
    score = end_to_end(encoder, EXAMPLES, 3, 2)
    assert fingerprint(encoder.model) == before
    assert len(score.folds) == 2
    classes = np.array([int(label) for label in EXAMPLES.labels])
    for (train, test), accuracy in zip(folds_of(np.arange(40), classes, 2, 3), score.folds, strict=True):
        data = Labelled([EXAMPLES.labels[i] for i in train], [EXAMPLES.texts[i][0] for i in train])
        options = replace(FINE_TUNING, seed=3)
        classifier, _ = train_classifier(copy.deepcopy(encoder.model), data, None, options, progress=False)
        held_out = Labelled([EXAMPLES.labels[i] for i in test], [EXAMPLES.texts[i][0] for i in test])
        assert accuracy == pytest.approx(100 * classifier.accuracy(held_out))
        assert np.mean([int(score.right[i]) for i in test]) * 100 == pytest.approx(accuracy)
    assert score.mean > 80


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["1"] * 40}, "all 40 rows are of the class '1'; a probe needs at least two classes"),
        ({"labels": ["0"] + ["1"] * 39}, "the class '0' has 1 row; 2-fold cross-validation needs at least 2 of each"),
        ({"texts": [("a", "b")] * 40}, "with the protocol paper a task must have one text a row, got pairs of texts"),
        ({}, "with the protocol paper an encoder must be a SentenceTransformer, got 'drawn'"),
    ],
)
def test_what_cannot_be_trained(encoder, drawn, changes, message):
    assert error(end_to_end, encoder if changes else drawn, replace(EXAMPLES, **changes), 3, 2).startswith(message)


@pytest.mark.parametrize(("name", "head"), [("contextualizer", "zeros"), ("mean", "random")])
def test_random_weights_are_trained_as_the_paper_does_and_trained_ones_tuned(encoder, tokenizer, name, head):
    assert training_options(encoder) is FINE_TUNING
    assert training_options(replace(encoder, name="contextualizer")) == SupervisedOptions(head="zeros")
    # The initial head is among the options that key a fold.
    assert training_options(as_encoder(untrained(name, tokenizer, 8), name)).head == head


def test_an_interrupted_run_resumes_after_its_last_fold(encoder, tmp_path, monkeypatch):
    mine = tmp_path / "mine.tsv"
    mine.write_text("".join(f"{label}\t{text}\n" for text, label in TEXTS))
    tasks, options, trained = find_tasks([str(mine)]), EvaluationOptions("paper", folds=3), []
    train = module.train_classifier

    def counted(*arguments, **named):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(1)
        return train(*arguments, **named)

    monkeypatch.setattr(module, "train_classifier", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate([encoder], tasks, DataReader(None), options, cache=tmp_path / "cache")
    trained.clear()
    again = evaluate([encoder], tasks, DataReader(None), options, cache=tmp_path / "cache")
    assert len(trained) == 1
    monkeypatch.setattr(module, "train_classifier", train)
    assert again.scores == evaluate([encoder], tasks, DataReader(None), options).scores


def test_a_development_part_chooses_the_epoch(encoder, monkeypatch):
    rows = {"train": np.arange(20), "dev": np.arange(20, 30), "test": np.arange(30, 40)}
    seen = []

    def watched(model, train, valid, *rest, **named):
        seen.append((len(train.texts), len(valid.texts)))
        return train_classifier(model, train, valid, *rest, **named)

    monkeypatch.setattr(module, "train_classifier", watched)
    score = end_to_end(encoder, Examples(EXAMPLES.labels, EXAMPLES.texts, rows), 0)
    assert seen == [(20, 10)]
    assert (len(score.folds), len(score.right)) == (1, 10)
