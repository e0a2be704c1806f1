"""A distillation from files to a model folder: checked, read, trained and saved, each in a function of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tokenizers import Tokenizer

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_folder
from ctx_embed.fingerprint import fingerprint, identity
from ctx_embed.loading import load, model_folder, require_device
from ctx_embed.model_card import CARD, versions
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.progress import say
from ctx_embed.systems import option_defaults, system
from ctx_embed.training.card import distilled_card
from ctx_embed.training.checkpoint import Checkpoint
from ctx_embed.training.distillation.loop.log import TrainingLog
from ctx_embed.training.distillation.loop.trainer import Distillation
from ctx_embed.training.distillation.options import DistillationOptions
from ctx_embed.training.distillation.student.initial import (
    entry_texts,
    new_student,
    require_encoder,
    require_spare,
    started_student,
    student_options,
)
from ctx_embed.training.distillation.student.rotation import require_dimension, rotation_like
from ctx_embed.training.distillation.student.teacher import TeacherCache
from ctx_embed.training.distillation.texts.corpus import Block
from ctx_embed.training.distillation.texts.exclusion import read_excluded
from ctx_embed.training.distillation.texts.labelled import read_labelled_files, read_skipped
from ctx_embed.training.distillation.texts.mixture import Mixture, Source, read_mixture
from ctx_embed.training.distillation.texts.phrases import learn_phrases, more_phrases
from ctx_embed.training.distillation.texts.scored_pairs import Pairs, read_pairs
from ctx_embed.training.labelled_texts import hashes_of, joined
from ctx_embed.training.record import RECORD, content_hash, file_hashes, finished
from ctx_embed.training.vocabulary import learn_vocabulary, read_tokenizer

# Options of the architecture that only the Contextualizer has.
CONTEXTUALIZER_OPTIONS = ("steps", "rank", "positions", "scale", "initial_context")
STORES = ("float32", "float16", "int8")
LOG = "training.jsonl"
SUMMARY = ("texts", "trained_texts", "held_out_texts", "held_out_distance")


@dataclass(frozen=True, kw_only=True)
class DistillationJob:
    """A distillation as it was asked for.

    Args:
        sources: text, CSV, TSV, JSONL or Parquet, plain or gzip, a sentence per line or row.
        output: the model folder; ``OUTPUT.partial`` next to it holds the state of an interrupted run.
        teacher: a path or name for :func:`ctx_embed.load`.
        options: how to train.
        second_teacher: another one, which embeds the ``second_texts`` of each source.
        start: a path or name of a model of this project that the student is initialised as, with its vocabulary and
            sizes; ``dimension``, ``vocabulary_size`` and the system's options are then ignored. None: from scratch.
        cache: the folder of the teachers' embeddings, ``OUTPUT.teacher`` unless given.
        exclude: files whose lines, or columns, are texts that must not be trained on. They still count for the
            vocabulary, the phrases and the rotation; labelled texts are not compared with them.
        labelled: files of labelled texts to learn as well, see :func:`read_labelled_files`.
        skip: a file for :func:`read_skipped`: lines of the labelled files to leave out.
        validation: a file for :func:`read_pairs`, measured after each epoch.
        encoder: the system's name.
        encoder_options: of the system.
        tokenizer: path of a ``tokenizer.json``; None learns one of ``vocabulary_size`` entries from the texts.
        phrases: number of frequent phrases that become additional entries; with ``start``, on top of the model's own.
        dimension: m.
        spare_dimensions: number of dimensions that the teacher's targets leave free for other objectives.
        teacher_dtype: dtype in which the teacher computes.
        device: device of teachers and student, as in sentence-transformers. None: the student is on the CPU.
        store: dtype of the saved token table: float32, float16 or int8.
        text_field, label_field: the columns of corpora and labelled files that are tables.
        overwrite: replace an existing model; otherwise only one made by the same job is accepted.
        progress: show progress bars and the number of excluded texts on stderr.

    Raises:
        InputError: an unknown store, or sizes that do not fit together.
    """

    sources: Sequence[Source]
    output: Path
    teacher: str
    options: DistillationOptions = field(default_factory=DistillationOptions)
    second_teacher: str | None = None
    start: str | None = None
    cache: Path | None = None
    exclude: Sequence[Path] = ()
    labelled: Sequence[Path] = ()
    skip: str | None = None
    validation: str | None = None
    encoder: str = "contextualizer"
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None
    vocabulary_size: int = 32_000
    phrases: int = 0
    dimension: int = 256
    spare_dimensions: int = 0
    teacher_dtype: str = "float32"
    device: str | None = None
    store: str = "float32"
    text_field: str | None = None
    label_field: str | None = None
    overwrite: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.store not in STORES:
            raise unknown_name("store", self.store, STORES)
        if self.device is not None:
            require_device(self.device)
        require_spare(self.spare_dimensions, self.dimension)
        if self.start is not None and self.tokenizer is not None:
            raise InputError("--from and --tokenizer exclude each other: the model has its own vocabulary")
        if self.second_teacher is not None and not any(source.second_texts for source in self.sources):
            raise InputError("a second teacher needs texts; set second_texts for a source of the recipe")
        if self.options.second_label_weight > 0 and (self.second_teacher is None or not self.labelled):
            raise InputError("second_label_weight needs a second teacher and labelled files; give both or leave it out")
        self.options.label_dimensions(self.dimension, self.spare_dimensions)

    @property
    def architecture(self) -> dict[str, Any]:
        """All options of the student's architecture except its dimension."""
        return student_options(self.encoder, self.dimension, dict(self.encoder_options))

    @property
    def identity(self) -> str:
        """A hash of everything that the model depends on, including the contents of the files."""
        return identity(
            {"encoder": self.encoder, "architecture": self.architecture},
            {"dimension": self.dimension, "spare": self.spare_dimensions},
            {"vocabulary_size": self.vocabulary_size, "phrases": self.phrases},
            {"teacher_dtype": self.teacher_dtype, "store": self.store},
            {"text_field": self.text_field, "label_field": self.label_field},
            asdict(self.options),
            [
                content_hash(model_folder(model)) if model else None
                for model in (self.teacher, self.second_teacher, self.start)
            ],
            [{**asdict(source), "files": [content_hash(file) for file in source.files]} for source in self.sources],
            [
                [content_hash(file) for file in files]
                for files in (self.exclude, self.labelled, (self.skip, self.validation, self.tokenizer))
            ],
        )


@dataclass(frozen=True)
class _Material:
    """What a distillation reads before it trains."""

    teacher: SentenceTransformer
    mixture: Mixture
    options: DistillationOptions
    labelled: tuple[list[str], list[str]] | None
    pairs: Pairs | None
    tokenizer: Tokenizer
    phrases: NDArray[np.int32] | None
    second_teacher: SentenceTransformer | None = None
    start: SentenceTransformer | None = None


def distill(
    sources: Sequence[Source | str | Path], output: str | Path, *, teacher: str, **options: Any
) -> dict[str, Any]:
    """Train a student on text files and save it with ``training.json``, the record of how it was made.

    ``training.jsonl`` in the model folder is the log of the training. An interrupted call resumes when it is repeated.

    Args:
        sources: files, each a whole source, or sources with sizes and weights.
        output: the model folder.
        teacher: a path or name for :func:`ctx_embed.load`; ``minilm`` is all-MiniLM-L6-v2.
        **options: of :class:`DistillationJob`, :class:`.DistillationOptions` and the Contextualizer.

    Returns:
        The record's summary: texts, trained_texts, held_out_texts and held_out_distance.

    Raises:
        InputError: a file, name or size that cannot be used, or another model is there.
    """
    job = _job(sources, Path(output), teacher, options)
    asked = job.identity
    if (record := finished(job.output, asked, overwrite=job.overwrite)) is not None:
        return {name: record[name] for name in SUMMARY}
    material = _read(job)
    record = {"asked": asked, **_record(job, material)}
    checkpoint = Checkpoint(
        job.output,
        identity(
            record,
            material.tokenizer.to_str(),
            [block.key for block in material.mixture.blocks],
            material.labelled,
            material.pairs and asdict(material.pairs),
        ),
    )
    log = checkpoint.folder / LOG
    run = _run(job, material, checkpoint, TrainingLog(log))
    try:
        history = run.run(progress=job.progress)
    except InputError:
        # A training that diverged is not taken up again.
        log.unlink(missing_ok=True)
        checkpoint.remove()
        raise
    values = (len(material.mixture.texts), run.trained_texts, len(run.held_out_rows), history[-1]["held_out_distance"])
    summary = dict(zip(SUMMARY, values, strict=True))
    _save(job, material, run.student, {**record, "history": history, **summary}, log)
    log.unlink(missing_ok=True)
    checkpoint.remove()
    return summary


def _job(
    sources: Sequence[Source | str | Path], output: Path, teacher: str, options: Mapping[str, Any]
) -> DistillationJob:
    """Return the job with these options by name."""
    if isinstance(sources, str | Path):
        sources = [sources]
    of_job = {known.name for known in fields(DistillationJob)} & set(options)
    of_contextualizer = set(CONTEXTUALIZER_OPTIONS) & set(options)
    settings = {name: value for name, value in options.items() if name not in of_job | of_contextualizer}
    known = {option.name for option in fields(DistillationOptions)}
    for name in settings:
        if name not in known:
            names = {*known, *(option.name for option in fields(DistillationJob)), *CONTEXTUALIZER_OPTIONS}
            raise unknown_name("option", name, names - {"sources", "output", "teacher", "options"})
    encoder_options = dict(options.get("encoder_options") or {})
    if options.get("encoder", "contextualizer") == "contextualizer":
        # Defaults count as given, so that the command, which gives them all, asks for the same.
        defaults = option_defaults("contextualizer")
        encoder_options = {name: options.get(name, defaults[name]) for name in CONTEXTUALIZER_OPTIONS} | encoder_options
    return DistillationJob(
        sources=[source if isinstance(source, Source) else Source([Path(source)]) for source in sources],
        output=output,
        teacher=teacher,
        options=DistillationOptions(**settings),
        **{name: options[name] for name in of_job if name != "encoder_options"},
        encoder_options=encoder_options,
    )


def _read(job: DistillationJob) -> _Material:
    """Return texts, teacher and vocabulary; every quick check comes before the long work."""
    tokenizer = read_tokenizer(job.tokenizer) if job.tokenizer else None
    pairs = read_pairs(job.validation) if job.validation else None
    teacher = load(job.teacher, job.device, dtype=job.teacher_dtype)
    second_teacher = load(job.second_teacher, job.device, dtype=job.teacher_dtype) if job.second_teacher else None
    start = load(job.start, job.device or "cpu") if job.start else None
    dimension = job.dimension if start is None else require_encoder(start).dimension
    require_spare(job.spare_dimensions, dimension)
    for model in (teacher, second_teacher):
        if model is not None:
            require_dimension(dimension - job.spare_dimensions, model.get_embedding_dimension() or dimension)
    mixture = read_mixture(job.sources, job.options.seed, read_excluded(job.exclude), job.text_field)
    taught = len(mixture.taught_rows)
    options = job.options.of_texts(taught)
    options.trained_on(taught, mixture.excluded)
    for option, weight in (("--pair-weight", options.pair_weight), ("--contrast-weight", options.contrast_weight)):
        if weight > 0 and not len(mixture.pairs):
            raise InputError(f"{option} needs pairs; give a recipe with a fair source of pairs (.jsonl)")
    if job.exclude and job.progress:
        # Shown because 0 may be a sign of a wrong file.
        say(f"{mixture.excluded:,} of {len(mixture.texts):,} texts are excluded")
    labelled = None
    if job.labelled:
        skipped = read_skipped(job.skip) if job.skip else None
        labelled = read_labelled_files(job.labelled, skipped, job.text_field, job.label_field)
    phrases = None
    if start is not None:
        module = require_encoder(start)
        tokenizer = module.backend_tokenizer
        if job.phrases:
            known = None if module.phrases is None else module.phrases.numpy()
            phrases = more_phrases(mixture.texts, tokenizer, known, job.phrases)
    else:
        tokenizer = tokenizer or learn_vocabulary(mixture.texts, job.vocabulary_size, progress=job.progress)
        phrases = learn_phrases(mixture.texts, tokenizer, job.phrases)
    return _Material(teacher, mixture, options, labelled, pairs, tokenizer, phrases, second_teacher, start)


def _record(job: DistillationJob, material: _Material) -> dict[str, Any]:
    """Return the part of training.json that is known before the training."""
    if material.start is None:
        sizes = {"dimension": job.dimension, "spare_dimensions": job.spare_dimensions}
        student = {
            "encoder": job.encoder,
            "architecture": {**sizes, **job.architecture},
            "phrases": 0 if material.phrases is None else len(material.phrases),
        }
    else:
        module = require_encoder(material.start)
        phrases = module.phrases if material.phrases is None else material.phrases
        sizes = {"dimension": module.dimension, "spare_dimensions": job.spare_dimensions}
        student = {
            "from": {"name": job.start, "fingerprint": fingerprint(material.start)},
            "architecture": sizes,
            "phrases": 0 if phrases is None else len(phrases),
        }
    if material.second_teacher is not None:
        student["second_teacher"] = {
            "name": job.second_teacher,
            "dtype": job.teacher_dtype,
            "fingerprint": fingerprint(material.second_teacher),
        }
    return {
        **student,
        "options": asdict(material.options),
        "teacher": {"name": job.teacher, "dtype": job.teacher_dtype, "fingerprint": fingerprint(material.teacher)},
        "sources": [{**asdict(source), "files": file_hashes(source.files)} for source in job.sources],
        "exclude": file_hashes(job.exclude),
        "excluded_texts": material.mixture.excluded,
        "labelled": file_hashes(job.labelled),
        "texts": len(material.mixture.texts),
        "store": job.store,
    }


def _run(job: DistillationJob, material: _Material, checkpoint: Checkpoint, log: TrainingLog) -> Distillation:
    """Return the training, ready to run: the teacher's embeddings computed, the student initialised from them."""
    cache = TeacherCache(job.cache or job.output.with_name(job.output.name + ".teacher"), material.teacher)
    mixture = material.mixture
    rows = mixture.taught_rows
    taught = cache.embeddings([mixture.blocks[number] for number in mixture.taught_blocks], progress=job.progress)
    texts = [mixture.texts[row] for row in rows]
    embeddings = np.zeros((len(mixture.texts), taught.shape[1]), np.float16)
    embeddings[rows] = taught
    if material.start is not None:
        student, rotation = started_student(
            material.start, texts, taught, job.spare_dimensions, phrases=material.phrases
        )
    else:
        entries = cache.embeddings([Block("vocabulary", tuple(entry_texts(material.tokenizer)))], progress=False)
        student, rotation = new_student(
            system(job.encoder),
            material.tokenizer,
            texts,
            taught,
            entries.astype(np.float32),
            job.dimension,
            material.options.seed,
            phrases=material.phrases,
            spare_dimensions=job.spare_dimensions,
            **job.architecture,
        )
    second = None
    if material.second_teacher is not None:
        blocks = [mixture.blocks[number] for number in mixture.second_blocks]
        others = TeacherCache(cache.folder.parent, material.second_teacher).embeddings(blocks, progress=job.progress)
        # Its rotation maps into the space of the first teacher's targets.
        second = others, rotation_like(others, embeddings[mixture.second_rows], rotation)
    return Distillation(
        student.to(job.device or "cpu"),
        material.mixture,
        embeddings,
        rotation,
        material.options,
        checkpoint,
        second=second,
        labelled=material.labelled,
        pairs=material.pairs,
        log=log,
    )


def _save(job: DistillationJob, material: _Material, student: TokenEncoder, record: dict[str, Any], log: Path) -> None:
    """Write the model folder, whole or not at all."""
    student.cpu()
    # A student inherits the labelled texts of its teachers and of the model that it starts from.
    own = hashes_of(material.labelled[1]) if material.labelled else None
    taught_by = [model for model in (material.teacher, material.second_teacher, material.start) if model is not None]
    student.labelled_texts = joined(*(getattr(model[0], "labelled_texts", None) for model in taught_by), own)
    if job.store == "int8":
        student.float().round_table()
    else:
        student.to(getattr(torch, job.store))
    model = SentenceTransformer(modules=[student, Normalize()], device="cpu")
    with replaced_folder(job.output) as beside:
        model.save_pretrained(str(beside), create_model_card=False)
        record = {**record, "versions": versions()}
        (beside / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        card = distilled_card(job.output.name, model, record, model_folder(job.teacher))
        (beside / CARD).write_text(card, encoding="utf-8")
        if log.exists():
            shutil.copyfile(log, beside / LOG)
