"""A training from labelled files to a model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.fingerprint import fingerprint
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.reading import read_labelled
from ctx_embed.training.checkpoint import Checkpoint, identity
from ctx_embed.training.labelled_texts import hashes_of, joined
from ctx_embed.training.supervised.classifier import Labelled
from ctx_embed.training.supervised.train import SupervisedOptions, architecture_of, new_encoder, train_classifier


def train_from_files(
    train: str,
    output: Path,
    options: SupervisedOptions,
    *,
    valid: str | None = None,
    test: str | None = None,
    start: str | None = None,
    tokenizer: str | None = None,
    vocabulary_size: int = 16_000,
    device: str | None = None,
    encoder: str = "contextualizer",
    architecture: Mapping[str, Any] | None = None,
    text_field: str | None = None,
    label_field: str | None = None,
) -> dict[str, Any]:
    """Train an encoder and a linear head on labelled texts; ``training.json`` in the folder is the record.

    Args:
        train: the file to train on.
        output: the model folder; ``OUTPUT.partial`` beside it holds the state of an interrupted run.
        options: how to train; its seed also draws the weights of a model from scratch.
        valid: the file that chooses the epoch; None holds out a part of ``train``.
        test: a file to report the accuracy on.
        start, tokenizer, vocabulary_size, device, encoder: of :func:`new_encoder`.
        architecture: the encoder's options.
        text_field, label_field: the columns of files that are tables, see
            :func:`ctx_embed.reading.read_labelled_rows`.

    Returns:
        ``best_epoch``, ``valid_accuracy`` and, with ``test``, ``test_accuracy``.

    Raises:
        InputError: a file, name or size that cannot be used.
    """
    require_replaceable(output, "modules.json")
    data = Labelled(*read_labelled(train, text_field, label_field))
    valid_data = Labelled(*read_labelled(valid, text_field, label_field)) if valid else None
    test_data = Labelled(*read_labelled(test, text_field, label_field)) if test else None
    if test_data is not None:
        test_data.require_labels_of(data, "test")
    model = new_encoder(
        start, data.texts, tokenizer, vocabulary_size, options.seed, device, encoder, **(architecture or {})
    )
    options = options.of_encoder(model)
    settings = {**vars(options), "from": start, "modules": architecture_of(model)}
    run = identity(settings, fingerprint(model), asdict(data), valid_data and asdict(valid_data))
    checkpoint = Checkpoint(output, run)
    classifier, history = train_classifier(model, data, valid_data, options, checkpoint)
    best = max(history, key=lambda epoch: epoch["valid_accuracy"])
    result = {"best_epoch": best["epoch"], "valid_accuracy": best["valid_accuracy"]}
    if test_data is not None:
        result["test_accuracy"] = classifier.accuracy(test_data)
    if isinstance(encoder_module := model[0], TokenEncoder):
        learned_from = [*data.texts, *(valid_data.texts if valid_data is not None else ())]
        encoder_module.labelled_texts = joined(encoder_module.labelled_texts, hashes_of(learned_from))
    with replaced_folder(output) as beside:
        classifier.save(beside)
        record = {"options": settings, "result": result, "history": history}
        (beside / "training.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    checkpoint.remove()
    return result
