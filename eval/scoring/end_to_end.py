"""The paper's protocol: encoder and linear head trained end to end, from the start in each outer fold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ctx_embed.classify.labelled import Labelled
from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import Encoder
from ctx_embed.eval.scoring.probes import ProbeScore, check_classes, folds_of, majority_floor
from ctx_embed.eval.scoring.score import Examples
from ctx_embed.progress import Meter
from ctx_embed.systems import SYSTEMS
from ctx_embed.training.supervised.options import FINE_TUNING, SupervisedOptions
from ctx_embed.training.supervised.train import train_classifier

FOLDS = 10
# Returns the outcome of a fold: takes the fold's number and a function that computes the outcome, which may be stored.
Keep = Callable[[int, Callable[[], dict[str, Any]]], dict[str, Any]]


def end_to_end(
    encoder: Encoder, examples: Examples, seed: int, folds: int = FOLDS, keep: Keep = lambda fold, make: make()
) -> ProbeScore:
    """Return the accuracy of encoders trained by :func:`ctx_embed.training.supervised.train.train_classifier`.

    Each fold starts from a copy of the encoder. The ``dev`` part chooses the epoch, else a tenth of the training part.

    Args:
        encoder: an encoder based on a SentenceTransformer.
        examples: rows of one text each.
        seed: seed of the folds and of the training.
        folds: number of outer folds, if the data have no test part.
        keep: called for each fold; it may store outcomes, so that a long run can be resumed.
    """
    model = encoder.model
    if model is None:
        raise InputError(f"with the protocol paper an encoder must be a SentenceTransformer, got {encoder.name!r}")
    if len(examples.texts[0]) != 1:
        raise InputError("with the protocol paper a task must have one text a row, got pairs of texts")
    check_classes(examples.labels, folds if examples.parts is None else 1)
    classes = np.unique(np.asarray(examples.labels), return_inverse=True)[1]
    splits = (
        folds_of(np.arange(len(classes)), classes, folds, seed)
        if examples.parts is None
        else [(examples.parts["train"], examples.parts["test"])]
    )

    def rows(places: Any) -> Labelled:
        return Labelled([examples.labels[i] for i in places], [examples.texts[i][0] for i in places])

    def train(number: int) -> dict[str, Any]:
        train_rows, test_rows = splits[number]
        valid = rows(examples.parts["dev"]) if examples.parts is not None and "dev" in examples.parts else None
        options = replace(training_options(encoder), seed=seed)
        classifier, _ = train_classifier(
            copy.deepcopy(model), rows(train_rows), valid, options, words=encoder.words, progress=False
        )
        test = rows(test_rows)
        predicted = classifier.predict(test.texts)
        return {"right": [int(a == b) for a, b in zip(predicted, test.labels, strict=True)]}

    hits = np.zeros(len(classes), np.intp)
    accuracies = []
    meter = Meter("training", len(splits), "folds", leave=False)
    for number, (_, test_rows) in enumerate(meter.each(splits)):
        right = keep(number, lambda number=number: train(number))["right"]  # type: ignore[misc]
        hits[test_rows] = right
        accuracies.append(100.0 * float(np.mean(right)))
    tested = np.sort(np.concatenate([test for _, test in splits]))
    return ProbeScore(
        tuple(accuracies),
        (),
        majority_floor(classes, None if examples.parts is None else splits[0]),
        "".join(map(str, hits[tested])),
    )


def training_options(encoder: Encoder) -> SupervisedOptions:
    """Return the training options: the paper's for randomly initialised weights, fine-tuning for a trained encoder.

    They name the encoder's head, since stored folds are looked up by these options.
    """
    options = SupervisedOptions() if encoder.name in SYSTEMS else FINE_TUNING
    return options if encoder.model is None else options.of_encoder(encoder.model)
