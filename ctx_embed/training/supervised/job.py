"""A training from labelled files to a model folder: read the texts, open the encoder, train, measure, save."""

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ctx_embed.classify.labelled import Labelled, label_accuracy, report
from ctx_embed.classify.predictor import Predictor, fitted_predictor, open_encoder
from ctx_embed.errors import InputError, UnknownTextsWarning, examples, unknown_name
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.fingerprint import identity
from ctx_embed.loading import model_folder
from ctx_embed.model import Model
from ctx_embed.model_card import CARD, versions
from ctx_embed.options import takes
from ctx_embed.progress import say
from ctx_embed.reading.opening import Held, opened
from ctx_embed.reading.rows import titled
from ctx_embed.training.labelled_texts import are_known, warning
from ctx_embed.training.options import OF_TRAINING, SupervisedOptions, TrainingJob
from ctx_embed.training.run import MODEL, RECORD, Checkpoint, classifier_card, contents_hash, finished


@takes(TrainingJob)
def train(
    file: str | Path, output: str | Path, options: SupervisedOptions | None = None, **settings: Any
) -> dict[str, Any]:
    """Fit a classifier on labelled texts, or train its encoder too; ``training.json`` is the record.

    The head reads words, and the embeddings of the default model, of the model ``start`` or of one from scratch.

    Args:
        file: labelled texts to train on.
        output: the model folder.
        options: how to train the encoder; their seed also sets the random weights of a model from scratch. With None,
            a model to start from is left as it is, or trained in 5 runs of 4 epochs if ``frozen`` is False; a model
            from scratch is trained with the paper's options.
        **settings: fields of :class:`.TrainingJob`.

    Returns:
        ``words``, the number of words and pairs that the head reads; ``best_epochs``, one for each run;
        ``valid_accuracy`` (without ``valid``: each run's accuracy, without words, on the texts that it held out,
        averaged); and ``valid_floor``, the accuracy of always answering the most frequent training label. With a frozen
        encoder, ``best_epochs`` is missing, and the last two need ``valid``. ``test`` adds ``test_accuracy``,
        ``test_floor`` and ``test``, see :func:`ctx_embed.classify.labelled.report`. ``cv`` is such a report on the
        training texts, each predicted from the other folds, with ``folds``, ``seed`` and ``floor``.

    Raises:
        InputError: a file, name or value cannot be used, or the output holds another model.
    """
    known = {field.name for field in fields(TrainingJob)} - {"file", "output", "options"}
    for name in settings:
        if name not in known:
            raise unknown_name("option", name, known)
    job = TrainingJob(file=file, output=Path(output), options=options, **settings)
    require_replaceable(job.output, MODEL)
    files = {"train": job.file, "valid": job.valid, "test": job.test}
    data, hashes = {}, {}
    for name, path in files.items():
        if path:
            data[name], hashes[name] = _read(str(path), job)
    # Texts for validation and test may only have labels that the training texts have.
    classes = sorted(data["train"].label_set())
    for name, part in list(data.items())[1:]:
        data[name] = part.matched(classes)
        data[name].require_labels_of(data["train"], {"valid": "validation"}.get(name, name))
    # A hash of everything that the model depends on.
    asked = identity(
        {
            "training": vars(job.training) if job.trains_encoder else None,
            "encoder": job.encoder or "contextualizer",
            "architecture": job.scratch_options if job.origin is None else None,
            "vocabulary_size": job.vocabulary_size,
            "words": job.reads_words,
            "class_weight": job.class_weight,
            "cv": job.cv,
            "store": job.store,
        },
        contents_hash(None if job.origin is None else model_folder(job.origin)),
        contents_hash(job.tokenizer),
        {name: asdict(data[name]) if name in data else None for name in files},
    )
    if (earlier := finished(job.output, asked, overwrite=job.overwrite)) is not None:
        found: dict[str, Any] = earlier["result"]
        return found
    validated = {} if job.cv is None else {"cv": _cross_validated(job, data["train"])}
    predictor, made = _made(job, data)
    result = {"words": len(predictor.head.words or ()), **made.pop("result"), **validated}
    if "test" in data:
        compared = report(predictor.predict(data["test"].texts), data["test"], predictor.head.labels)
        result["test_accuracy"] = compared["accuracy"]
        result |= {"test_floor": majority_floor(data["train"], data["test"]), "test": compared}
    history = made.pop("history")
    record = {
        "asked": asked,
        "result": result,
        **made,
        "fields": {"text": titled(job.text_field).text, "label": job.label_field},
        "data": {
            name: {"file": Path(files[name] or "").name, "sha256": hashes[name], "rows": len(part.texts)}
            for name, part in data.items()
        },
        "versions": versions(),
        "history": history,
    }
    origin = None if job.origin is None else model_folder(job.origin)
    with replaced_folder(job.output) as beside:
        predictor.save(beside)
        (beside / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        card = classifier_card(job.output.name, predictor, record, origin)
        (beside / CARD).write_text(card, encoding="utf-8")
    if job.trains_encoder:
        for output in (job.output, *(_fold_output(job, fold) for fold in range(job.cv or 0))):
            Checkpoint(output, asked).remove()
    return result


def _read(path: str, job: TrainingJob) -> tuple[Labelled, str]:
    """Return the rows of a labelled file, and its sha256; rows without a label are left out and listed, or an error."""
    skipped: list[str] = []
    how: dict[str, Any] = {"several": job.multi_label, "encoding": job.encoding, "skipped": skipped}
    with opened(path) as stream:
        held = Held(path, stream.read())
    data = Labelled.read(held, job.text_field, job.label_field, **how)
    if skipped:
        several = f"{len(skipped):,} rows have" if len(skipped) > 1 else "a row has"
        listed = "; ".join([*skipped[:5], *["..."] * (len(skipped) > 5)])
        if not job.skip_empty:
            raise InputError(
                f"{several} an empty label ({listed}); give labels, or leave such rows out by --skip-empty"
            )
        say(f"{several} an empty label and {'is' if len(skipped) == 1 else 'are'} left out: {listed}")
    return data, hashlib.sha256(held.content).hexdigest()


def _fold_output(job: TrainingJob, fold: int) -> Path:
    return job.output.with_name(f"{job.output.name}.fold{fold + 1}")


def _cross_validated(job: TrainingJob, data: Labelled) -> dict[str, Any]:
    """Return the report on texts that classifiers of the other folds predict."""
    assert job.cv is not None
    seed = job.training.seed
    found: list[Any] = [None] * len(data.texts)
    for number, rows in enumerate(folds := data.folds(job.cv, seed)):
        learned = data.rows(row for fold in folds if fold is not rows for row in fold)
        given, known = job.class_weight, learned.label_set()
        weights = {k: given[k] for k in given if k in known} if isinstance(given, Mapping) else given
        fold_job = replace(job, cv=None, output=_fold_output(job, number), class_weight=weights)
        # The classifier of all texts tells which of them the encoder cannot read.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownTextsWarning)
            predictor, _ = _made(fold_job, {"train": learned})
            for row, labels in zip(rows, predictor.predict(data.rows(rows).texts), strict=True):
                found[row] = labels
    return {"folds": job.cv, "seed": seed, "floor": majority_floor(data, data), **report(found, data, data.classes())}


def _made(job: TrainingJob, data: dict[str, Labelled]) -> tuple[Predictor, dict[str, Any]]:
    """Return a classifier (of a frozen encoder only the head is fitted), and its record's parts about the training."""
    train, valid = data["train"], data.get("valid")
    options: SupervisedOptions | None = None
    if job.trains_encoder:
        from ctx_embed.training.supervised.train import best_epochs, new_encoder, train_classifier

        train.classes()
        vocabulary = job.tokenizer, job.vocabulary_size
        system = job.encoder or "contextualizer"
        model = new_encoder(
            job.origin, train.texts, *vocabulary, job.training.seed, job.device, system, **job.scratch_options
        )
        options, encoder = job.training.of_encoder(model), Model(model)
    else:
        if doubt := train.doubt():
            raise InputError(doubt)
        encoder = open_encoder(str(job.origin), job.device)
    learned, measured = train, valid
    if options is not None and valid is None:
        learned, measured = train.split(options.valid_share, options.seed)
        if repeated := len(train.texts) - len(set(train.texts)):
            named = examples((text for text, count in Counter(train.texts).items() if count > 1), repeated)
            say(f"{repeated:,} of {len(train.texts):,} texts equal another one ({named}); they are held out together")
    known = encoder.labelled_texts
    parts = {"validation": measured, "test": data.get("test"), "cross-validation": train if job.cv else None}
    for name, part in parts.items():
        if known is not None and part and (count := int(are_known(part.texts, known).sum())):
            say(warning(str(job.origin), name, count, len(part.texts)))
    weights = {} if job.class_weight is None else {"class_weight": job.class_weight}
    chosen = {"frozen": True} if options is None else vars(options)
    recorded = {"from": job.origin, "words": job.reads_words, **weights, **chosen, "modules": encoder.modules()}
    start = encoder.fingerprint
    params: dict[str, Any] = {"words": job.reads_words, **({} if job.origin is None else {"model": str(job.origin)})}
    params["class_weight"] = list(job.class_weight.items()) if isinstance(job.class_weight, dict) else job.class_weight
    result: dict[str, Any] = {}
    history: list[dict[str, float]] = []
    if options is None:
        predictor = fitted_predictor(encoder, train, job.class_weight, job.reads_words)
    else:
        checkpoint = Checkpoint(job.output, identity(recorded, start, asdict(train), valid and asdict(valid)))
        how: dict[str, Any] = {"class_weight": job.class_weight, "words": job.reads_words, "store": job.store}
        predictor, history = train_classifier(model, train, valid, options, checkpoint, **how)
        best = best_epochs(history)
        # Without validation texts, average the accuracies of the runs: the averaged weights cannot be measured on the
        # texts that one run held out, since the other runs were trained on them.
        mean = fmean(epoch["valid_accuracy"] for epoch in best)
        result = {"best_epochs": [epoch["epoch"] for epoch in best], "valid_accuracy": mean}
        params |= {"frozen": False, "random_state": options.seed, "valid_share": options.valid_share}
        params |= {name: getattr(options, name) for name in OF_TRAINING}
    if valid is not None:
        result["valid_accuracy"] = predictor.accuracy(valid)
    if measured is not None:
        result["valid_floor"] = majority_floor(learned, measured)
    predictor = replace(predictor, head=replace(predictor.head, params=params))
    return predictor, {"result": result, "options": recorded, "start": start, "history": history}


def majority_floor(learned: Labelled, measured: Labelled) -> float:
    """Return the share of ``measured`` whose label is the most frequent one of ``learned``."""
    ((label, _),) = Counter(learned.labels).most_common(1)
    return label_accuracy([label] * len(measured.texts), measured)
