"""A training from labelled files to a model folder: read the texts, open the encoder, train, measure, save."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ctx_embed.classify.encoder import SavedEncoder, TorchEncoder, open_encoder
from ctx_embed.classify.head import FEW_TEXTS
from ctx_embed.classify.labelled import Labelled, label_accuracy
from ctx_embed.classify.predictor import Predictor, fitted_predictor
from ctx_embed.classify.report import report
from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.fingerprint import fingerprint, identity
from ctx_embed.loading import model_folder
from ctx_embed.model_card import CARD, versions
from ctx_embed.progress import say
from ctx_embed.training.card import classifier_card
from ctx_embed.training.checkpoint import Checkpoint
from ctx_embed.training.labelled_texts import are_known, warning
from ctx_embed.training.options import takes
from ctx_embed.training.record import MODEL, RECORD, content_hash, finished
from ctx_embed.training.supervised.options import SupervisedOptions, TrainingJob
from ctx_embed.training.supervised.train import architecture_of, best_epochs, new_encoder, train_classifier

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@takes(TrainingJob)
def train(
    file: str | Path, output: str | Path, options: SupervisedOptions | None = None, **settings: Any
) -> dict[str, Any]:
    """Train an encoder and a linear head on labelled texts, or only the head; ``training.json`` is the record.

    It starts from the default model unless ``start`` names another one, or ``scratch``.

    Args:
        file: labelled texts to train on.
        output: the model folder.
        options: how to train; their seed is also that of the random weights of a model from scratch. None: from a
            model, 5 runs of 4 epochs; from scratch, the paper's options.
        **settings: fields of :class:`.TrainingJob`.

    Returns:
        ``best_epochs``, one for each run; ``valid_accuracy``, which without ``valid`` is the runs' mean accuracy on the
        texts that each held out; and ``valid_floor``, that of always answering the most frequent training label.
        A frozen encoder has no ``best_epochs``, and the other two only if ``valid`` is given. With ``test`` also
        ``test_accuracy``, ``test_floor`` and ``test``, see :func:`ctx_embed.classify.report.report`.

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
    start = _open(job, data)
    learned, measured = data.train, data.valid
    if measured is None and start.frozen is None:
        learned, measured = data.train.split(start.options.valid_share, start.options.seed)
    _warn_of_known_texts(job, start.model, {"validation": measured, "test": data.test})
    trained = _trained(job, data, start) if start.frozen is None else _fitted(job, data, start.frozen)
    result = {**trained.result, **_measured(trained.predictor, learned, measured, data.test)}
    _save(job, data, start, trained, {"asked": asked, "result": result})
    start.checkpoint.remove()
    return result


@dataclass(frozen=True)
class _Data:
    """The labelled texts of a job."""

    train: Labelled
    valid: Labelled | None
    test: Labelled | None


@dataclass(frozen=True)
class _Start:
    """The start of a training; ``frozen`` is the encoder if only a head over it is trained."""

    model: SentenceTransformer
    frozen: SavedEncoder | TorchEncoder | None
    options: SupervisedOptions
    settings: Mapping[str, Any]
    fingerprint: str
    checkpoint: Checkpoint


@dataclass(frozen=True)
class _Trained:
    """The outcome of a training."""

    predictor: Predictor
    history: list[dict[str, float]]
    result: dict[str, Any]


def _read(job: TrainingJob) -> _Data:
    """Return the texts; those of validation and test have labels of the training texts."""
    train, valid, test = (
        Labelled.read(str(path), job.text_field, job.label_field, job.multi_label, job.encoding) if path else None
        for path in (job.file, job.valid, job.test)
    )
    assert train is not None
    for part, name in ((valid, "validation"), (test, "test")):
        if part is not None:
            part.require_labels_of(train, name)
    return _Data(train, valid, test)


def _identity(job: TrainingJob, data: _Data) -> str:
    """Return a hash of everything that the model depends on."""
    return identity(
        {
            **vars(job.training),
            "encoder": job.encoder or "contextualizer",
            "architecture": job.scratch_options if job.origin is None else job.architecture,
            "vocabulary_size": job.vocabulary_size,
            **({} if job.frozen is None else {"frozen": job.frozen}),
            **({} if job.class_weight is None else {"class_weight": job.class_weight}),
        },
        content_hash(None if job.origin is None else model_folder(job.origin)),
        content_hash(job.tokenizer),
        {name: part and asdict(part) for name, part in vars(data).items()},
    )


def _open(job: TrainingJob, data: _Data) -> _Start:
    """Return the encoder to train, or the saved one that only gets a head."""
    frozen: SavedEncoder | TorchEncoder | None = None
    if job.origin is not None and (job.frozen or (job.frozen is None and len(data.train.texts) < FEW_TEXTS)):
        if doubt := data.train.doubt():
            raise InputError(doubt)
        frozen = open_encoder(job.origin, job.device)
        model = frozen.model
    else:
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
    options = job.training.of_encoder(model)
    settings: dict[str, Any] = {"frozen": True} if frozen else {}
    settings |= {} if job.class_weight is None else {"class_weight": job.class_weight}
    settings |= {**({} if frozen else vars(options)), "from": job.origin, "modules": architecture_of(model)}
    of_model = fingerprint(model)
    run = identity(settings, of_model, asdict(data.train), data.valid and asdict(data.valid))
    return _Start(model, frozen, options, settings, of_model, Checkpoint(job.output, run))


def _trained(job: TrainingJob, data: _Data, start: _Start) -> _Trained:
    """Train the encoder and the head."""
    network, history = train_classifier(
        start.model, data.train, data.valid, start.options, start.checkpoint, class_weight=job.class_weight
    )
    best = best_epochs(history)
    # Without validation texts, average the accuracies of the runs: the averaged weights cannot be measured on the texts
    # that one run held out, since the other runs were trained on them.
    accuracy = fmean(epoch["valid_accuracy"] for epoch in best) if data.valid is None else network.accuracy(data.valid)
    return _Trained(
        Predictor(TorchEncoder(network.encoder), network.trained_head()),
        history,
        {"best_epochs": [epoch["epoch"] for epoch in best], "valid_accuracy": accuracy},
    )


def _fitted(job: TrainingJob, data: _Data, encoder: SavedEncoder | TorchEncoder) -> _Trained:
    """Train only the head."""
    predictor = fitted_predictor(encoder, data.train, job.class_weight)
    return _Trained(predictor, [], {} if data.valid is None else {"valid_accuracy": predictor.accuracy(data.valid)})


def _measured(
    predictor: Predictor, learned: Labelled, measured: Labelled | None, test: Labelled | None
) -> dict[str, Any]:
    """Return the floor of the validation accuracy and the scores on the test texts."""
    result: dict[str, Any] = {}
    if measured is not None:
        result["valid_floor"] = majority_floor(learned, measured)
    if test is not None:
        compared = report(predictor.predict(test.texts), test, predictor.head.labels)
        result["test_accuracy"] = compared["accuracy"]
        result |= {"test_floor": majority_floor(learned, test), "test": compared}
    return result


def majority_floor(learned: Labelled, measured: Labelled) -> float:
    """Return the share of ``measured`` whose label is the most frequent one of ``learned``."""
    ((label, _),) = Counter(learned.labels).most_common(1)
    return label_accuracy([label] * len(measured.texts), measured)


def _warn_of_known_texts(job: TrainingJob, model: SentenceTransformer, parts: Mapping[str, Labelled | None]) -> None:
    """Warn about texts to measure on that the encoder was trained on."""
    known = getattr(model[0], "labelled_texts", None)
    for name, part in parts.items():
        if known is not None and part and (count := int(are_known(part.texts, known).sum())):
            say(warning(str(job.origin), name, count, len(part.texts)))


def _save(job: TrainingJob, data: _Data, start: _Start, trained: _Trained, record: dict[str, Any]) -> None:
    """Write the model folder, whole or not at all."""
    files = {"train": (job.file, data.train), "valid": (job.valid, data.valid), "test": (job.test, data.test)}
    record |= {
        "options": dict(start.settings),
        "start": start.fingerprint,
        "data": {
            name: {"file": Path(path).name, "sha256": content_hash(path), "rows": len(part.texts)}
            for name, (path, part) in files.items()
            if path and part
        },
        "versions": versions(),
        "history": trained.history,
    }
    origin = None if job.origin is None else model_folder(job.origin)
    with replaced_folder(job.output) as beside:
        trained.predictor.save(beside)
        (beside / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        card = classifier_card(job.output.name, start.model, trained.predictor.head.labels, record, origin)
        (beside / CARD).write_text(card, encoding="utf-8")
