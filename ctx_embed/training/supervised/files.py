"""Training from labelled files to a model folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.fingerprint import fingerprint, identity
from ctx_embed.loading import model_folder
from ctx_embed.model_card import CARD, versions
from ctx_embed.progress import say
from ctx_embed.training.card import classifier_card
from ctx_embed.training.checkpoint import Checkpoint
from ctx_embed.training.labelled_texts import are_known, warning
from ctx_embed.training.record import MODEL, RECORD, content_hash, finished
from ctx_embed.training.supervised.encoder import TorchEncoder, open_encoder
from ctx_embed.training.supervised.head import FEW_TEXTS, ClassWeight
from ctx_embed.training.supervised.labelled import Labelled, label_accuracy
from ctx_embed.training.supervised.predictor import Predictor, fitted_predictor
from ctx_embed.training.supervised.report import report
from ctx_embed.training.supervised.train import (
    FINE_TUNING,
    SupervisedOptions,
    architecture_of,
    best_epochs,
    new_encoder,
    train_classifier,
)


def train(
    file: str | Path,
    output: str | Path,
    options: SupervisedOptions | None = None,
    *,
    valid: str | None = None,
    test: str | None = None,
    start: str | None = None,
    frozen: bool | None = None,
    multi_label: bool = False,
    class_weight: ClassWeight = None,
    tokenizer: str | None = None,
    vocabulary_size: int = 16_000,
    device: str | None = None,
    encoder: str = "contextualizer",
    architecture: Mapping[str, Any] | None = None,
    text_field: str | None = None,
    label_field: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train an encoder and a linear head on labelled texts; ``training.json`` in the folder is the record.

    Args:
        file: labelled texts to train on.
        output: the model folder; ``OUTPUT.partial`` next to it holds the state of an interrupted run.
        options: how to train; its seed is also that of the random weights of a model from scratch. None:
            ``FINE_TUNING`` with ``start``, the defaults without.
        valid: the file that chooses the epoch; None holds out a part of ``file``.
        test: a file to report precision, recall and F1 on.
        frozen: fit only the head, over ``start`` as it is; None does so with fewer than 500 texts.
        multi_label: a text has any number of labels, with commas between them.
        class_weight: of the classes in the loss, see :func:`ctx_embed.training.supervised.head.class_weights`.
        start, tokenizer, vocabulary_size, device, encoder: of :func:`new_encoder`.
        architecture: the encoder's options.
        text_field, label_field: the columns of files that are tables, see
            :func:`ctx_embed.rows.read_labelled_rows`.
        overwrite: replace an existing model; otherwise only one made by the same call is accepted.

    Returns:
        ``best_epochs`` of the runs (not with a frozen encoder), ``valid_accuracy`` (without ``valid`` the mean of the
        runs', each on the texts that it held out) and ``valid_floor``, the accuracy of always answering the most
        frequent training label (with a frozen encoder only if ``valid`` is given); and with
        ``test``, ``test_accuracy``, ``test_floor`` and ``test``, see
        :func:`ctx_embed.training.supervised.report.report`.

    Raises:
        InputError: a file, name or size that cannot be used, or another model is there.
    """
    output, options = Path(output), options or (FINE_TUNING if start else SupervisedOptions())
    require_replaceable(output, MODEL)
    data, valid_data, test_data = (
        Labelled.read(str(given), text_field, label_field, multi_label) if given else None
        for given in (file, valid, test)
    )
    assert data is not None
    for part, name in ((valid_data, "validation"), (test_data, "test")):
        if part is not None:
            part.require_labels_of(data, name)
    parts = {"train": (file, data), "valid": (valid, valid_data), "test": (test, test_data)}
    start_folder = None if start is None else model_folder(start)
    asked = identity(
        {
            **options.described(),
            "encoder": encoder,
            "architecture": architecture,
            "vocabulary_size": vocabulary_size,
            **({} if frozen is None else {"frozen": frozen}),
            **({} if class_weight is None else {"class_weight": class_weight}),
        },
        content_hash(start_folder),
        content_hash(tokenizer),
        {name: part and asdict(part) for name, (_, part) in parts.items()},
    )
    if (earlier := finished(output, asked, overwrite=overwrite)) is not None:
        result: dict[str, Any] = earlier["result"]
        return result
    alone = start if frozen or (frozen is None and len(data.texts) < FEW_TEXTS) else None
    if frozen and alone is None:
        raise InputError("a frozen encoder must be trained; name a model with --from")
    if alone is not None and (doubt := data.doubt()):
        raise InputError(doubt)
    saved = None if alone is None else open_encoder(alone, device)
    model = (
        new_encoder(
            start, data.texts, tokenizer, vocabulary_size, options.seed, device, encoder, **(architecture or {})
        )
        if saved is None
        else saved.model
    )
    options = options.of_encoder(model)
    settings: dict[str, Any] = {} if saved is None else {"frozen": True}
    settings |= {} if class_weight is None else {"class_weight": class_weight}
    settings |= {**(vars(options) if saved is None else {}), "from": start, "modules": architecture_of(model)}
    of_start = fingerprint(model)
    known_texts = getattr(model[0], "labelled_texts", None)
    run = identity(settings, of_start, asdict(data), valid_data and asdict(valid_data))
    checkpoint = Checkpoint(output, run)
    learned, measured = (data, valid_data) if valid_data or saved else data.split(options.valid_share, options.seed)
    for name, part in (("validation", measured), ("test", test_data)):
        if known_texts is not None and part and (count := int(are_known(part.texts, known_texts).sum())):
            say(warning(str(start), name, count, len(part.texts)))
    history: list[dict[str, float]] = []
    result = {}
    if saved is not None:
        predictor = fitted_predictor(saved, data, class_weight)
        if measured is not None:
            result["valid_accuracy"] = predictor.accuracy(measured)
    else:
        network, history = train_classifier(model, data, valid_data, options, checkpoint, class_weight=class_weight)
        best = best_epochs(history)
        predictor = Predictor(TorchEncoder(network.encoder), network.trained_head())
        # The runs' mean has learned from the texts that each of them held out.
        accuracy = (
            fmean(epoch["valid_accuracy"] for epoch in best) if valid_data is None else network.accuracy(valid_data)
        )
        result = {"best_epochs": [epoch["epoch"] for epoch in best], "valid_accuracy": accuracy}
    if measured is not None:
        result["valid_floor"] = majority_floor(learned, measured)
    if test_data is not None:
        compared = report(predictor.predict(test_data.texts), test_data, predictor.head.labels)
        result["test_accuracy"] = compared["accuracy"]
        result |= {"test_floor": majority_floor(learned, test_data), "test": compared}
    with replaced_folder(output) as beside:
        predictor.save(beside)
        record = {
            "asked": asked,
            "options": settings,
            "start": of_start,
            "data": {
                name: {"file": Path(given).name, "sha256": content_hash(given), "rows": len(part.texts)}
                for name, (given, part) in parts.items()
                if given and part
            },
            "versions": versions(),
            "result": result,
            "history": history,
        }
        (beside / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        card = classifier_card(output.name, model, predictor.head.labels, record, start_folder)
        (beside / CARD).write_text(card, encoding="utf-8")
    checkpoint.remove()
    return result


def majority_floor(learned: Labelled, measured: Labelled) -> float:
    """Return the share of ``measured`` whose label is the most frequent one of ``learned``."""
    ((label, _),) = Counter(learned.labels).most_common(1)
    return label_accuracy([label] * len(measured.texts), measured)
