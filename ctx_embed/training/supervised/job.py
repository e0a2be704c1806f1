"""A training from labelled files to a model folder: read the texts, open the encoder, train, measure, save."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from ctx_embed.classify.labelled import Labelled, label_accuracy, report
from ctx_embed.classify.predictor import Predictor, TorchEncoder, fitted_predictor, open_encoder
from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.fingerprint import identity
from ctx_embed.loading import model_folder
from ctx_embed.model_card import CARD, versions
from ctx_embed.options import takes
from ctx_embed.progress import say
from ctx_embed.training.labelled_texts import Hashes, are_known, warning
from ctx_embed.training.options import SupervisedOptions, TrainingJob
from ctx_embed.training.run import MODEL, RECORD, classifier_card, content_hash, finished

if TYPE_CHECKING:
    from ctx_embed.training.run import Checkpoint


@takes(TrainingJob)
def train(
    file: str | Path, output: str | Path, options: SupervisedOptions | None = None, **settings: Any
) -> dict[str, Any]:
    """Fit a classifier on labelled texts, or train its encoder too; ``training.json`` is the record.

    The head reads the embeddings of the default model, unless ``start`` names another one or ``scratch``, and words.

    Args:
        file: labelled texts to train on.
        output: the model folder.
        options: how to train the encoder; their seed is also that of the random weights of a model from scratch. None
            leaves a model as it is, unless ``frozen`` is False (then 5 runs of 4 epochs), and trains one from scratch
            by the paper's options.
        **settings: fields of :class:`.TrainingJob`.

    Returns:
        ``words``, the number of words and pairs that are read; ``best_epochs``, one for each run; ``valid_accuracy``,
        which without ``valid`` is the runs' mean accuracy on the texts that each held out, without words; and
        ``valid_floor``, that of always answering the most frequent training label. A frozen encoder has no
        ``best_epochs``, and the other two only if ``valid`` is given. With ``test`` also ``test_accuracy``,
        ``test_floor`` and ``test``, see :func:`ctx_embed.classify.labelled.report`.

    Raises:
        InputError: a file, name or value that cannot be used, or another model is there.
    """
    known = {field.name for field in fields(TrainingJob)} - {"file", "output", "options"}
    for name in settings:
        if name not in known:
            raise unknown_name("option", name, known)
    job = TrainingJob(file=file, output=Path(output), options=options, **settings)
    require_replaceable(job.output, MODEL)
    data = _read(job)
    asked = _identity(job, data)
    if (earlier := finished(job.output, asked, overwrite=job.overwrite)) is not None:
        found: dict[str, Any] = earlier["result"]
        return found
    made = _trained(job, data) if job.trains_encoder else _fitted(job, data)
    predictor = made.predictor
    result = {"words": len(predictor.head.words or ()), **made.result}
    if data.test is not None:
        compared = report(predictor.predict(data.test.texts), data.test, predictor.head.labels)
        result["test_accuracy"] = compared["accuracy"]
        result |= {"test_floor": majority_floor(data.train, data.test), "test": compared}
    files = {"train": (job.file, data.train), "valid": (job.valid, data.valid), "test": (job.test, data.test)}
    record = {
        "asked": asked,
        "result": result,
        "options": made.settings,
        "start": made.fingerprint,
        "data": {
            name: {"file": Path(path).name, "sha256": content_hash(path), "rows": len(part.texts)}
            for name, (path, part) in files.items()
            if path and part
        },
        "versions": versions(),
        "history": made.history,
    }
    origin = None if job.origin is None else model_folder(job.origin)
    with replaced_folder(job.output) as beside:
        predictor.save(beside)
        (beside / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        card = classifier_card(job.output.name, predictor.encoder.about(), predictor.head.labels, record, origin)
        (beside / CARD).write_text(card, encoding="utf-8")
    if made.checkpoint is not None:
        made.checkpoint.remove()
    return result


class _Data(NamedTuple):
    """The labelled texts of a job."""

    train: Labelled
    valid: Labelled | None
    test: Labelled | None


class _Made(NamedTuple):
    """A classifier, and of its training the options, the encoder's fingerprint before, the result and the epochs."""

    predictor: Predictor
    settings: dict[str, Any]
    fingerprint: str
    result: dict[str, Any]
    history: list[dict[str, float]]
    checkpoint: Checkpoint | None


def _read(job: TrainingJob) -> _Data:
    """Return the texts. Those of validation and test have labels of the training texts."""
    train, valid, test = (
        Labelled.read(str(path), job.text_field, job.label_field, job.multi_label, job.encoding) if path else None
        for path in (job.file, job.valid, job.test)
    )
    assert train is not None
    classes = sorted(train.label_set())
    valid, test = (part and part.matched(classes) for part in (valid, test))
    for part, name in ((valid, "validation"), (test, "test")):
        if part is not None:
            part.require_labels_of(train, name)
    return _Data(train, valid, test)


def _identity(job: TrainingJob, data: _Data) -> str:
    """Return a hash of everything that the model depends on."""
    return identity(
        {
            "training": vars(job.training) if job.trains_encoder else None,
            "encoder": job.encoder or "contextualizer",
            "architecture": job.scratch_options if job.origin is None else None,
            "vocabulary_size": job.vocabulary_size,
            "words": job.reads_words,
            "class_weight": job.class_weight,
        },
        content_hash(None if job.origin is None else model_folder(job.origin)),
        content_hash(job.tokenizer),
        {name: part and asdict(part) for name, part in data._asdict().items()},
    )


def _fitted(job: TrainingJob, data: _Data) -> _Made:
    """Fit a head over the encoder as it is, without torch if the encoder allows it."""
    assert job.origin is not None
    if doubt := data.train.doubt():
        raise InputError(doubt)
    encoder = open_encoder(job.origin, job.device)
    _warn_of_known_texts(job, encoder.labelled_texts, data.valid, data.test)
    predictor = fitted_predictor(encoder, data.train, job.class_weight, job.reads_words)
    result = {}
    if data.valid is not None:
        floor = majority_floor(data.train, data.valid)
        result = {"valid_accuracy": predictor.accuracy(data.valid), "valid_floor": floor}
    settings = {**_settings(job), "frozen": True, "modules": encoder.modules()}
    return _Made(predictor, settings, encoder.fingerprint, result, [], None)


def _trained(job: TrainingJob, data: _Data) -> _Made:
    """Train the encoder and the head."""
    from ctx_embed.training.run import Checkpoint
    from ctx_embed.training.supervised.train import best_epochs, new_encoder, train_classifier

    data.train.classes()
    model = new_encoder(
        job.origin,
        data.train.texts,
        job.tokenizer,
        job.vocabulary_size,
        job.training.seed,
        job.device,
        job.encoder or "contextualizer",
        **job.scratch_options,
    )
    options, encoder = job.training.of_encoder(model), TorchEncoder(model)
    learned, measured = data.train, data.valid
    if measured is None:
        learned, measured = data.train.split(options.valid_share, options.seed)
        if repeated := len(data.train.texts) - len(set(data.train.texts)):
            say(f"{repeated:,} of {len(data.train.texts):,} texts equal another one; equal texts are held out together")
    _warn_of_known_texts(job, encoder.labelled_texts, measured, data.test)
    settings, of_model = {**_settings(job), **vars(options), "modules": encoder.modules()}, encoder.fingerprint
    run = identity(settings, of_model, asdict(data.train), data.valid and asdict(data.valid))
    checkpoint = Checkpoint(job.output, run)
    network, history = train_classifier(
        model, data.train, data.valid, options, checkpoint, class_weight=job.class_weight, words=job.reads_words
    )
    best = best_epochs(history)
    result = {
        "best_epochs": [epoch["epoch"] for epoch in best],
        # Without validation texts, average the accuracies of the runs: the averaged weights cannot be measured on the
        # texts that one run held out, since the other runs were trained on them.
        "valid_accuracy": fmean(epoch["valid_accuracy"] for epoch in best),
        "valid_floor": majority_floor(learned, measured),
    }
    predictor = network.predictor()
    if data.valid is not None:
        result["valid_accuracy"] = network.accuracy(data.valid)
    return _Made(predictor, settings, of_model, result, history, checkpoint)


def _settings(job: TrainingJob) -> dict[str, Any]:
    """Return the options that every kind of training records."""
    weights = {} if job.class_weight is None else {"class_weight": job.class_weight}
    return {"from": job.origin, "words": job.reads_words, **weights}


def majority_floor(learned: Labelled, measured: Labelled) -> float:
    """Return the share of ``measured`` whose label is the most frequent one of ``learned``."""
    ((label, _),) = Counter(learned.labels).most_common(1)
    return label_accuracy([label] * len(measured.texts), measured)


def _warn_of_known_texts(job: TrainingJob, known: Hashes | None, valid: Labelled | None, test: Labelled | None) -> None:
    """Warn about texts to measure on that the encoder was trained on."""
    for name, part in (("validation", valid), ("test", test)):
        if known is not None and part and (count := int(are_known(part.texts, known).sum())):
            say(warning(str(job.origin), name, count, len(part.texts)))
