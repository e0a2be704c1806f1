"""A distillation from files to a model folder, and the recipes (TOML) that hold its options."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tokenizers import Tokenizer
from tqdm import tqdm

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_folder
from ctx_embed.fingerprint import fingerprint
from ctx_embed.loading import load, model_folder
from ctx_embed.model_card import CARD, versions
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.systems import system
from ctx_embed.training.card import distilled_card
from ctx_embed.training.checkpoint import Checkpoint, identity
from ctx_embed.training.distillation.corpus import Block
from ctx_embed.training.distillation.exclusion import read_excluded
from ctx_embed.training.distillation.labelled import read_labelled_files, read_skipped
from ctx_embed.training.distillation.log import TrainingLog
from ctx_embed.training.distillation.mixture import Source, read_mixture
from ctx_embed.training.distillation.options import DistillationOptions
from ctx_embed.training.distillation.phrases import learn_phrases
from ctx_embed.training.distillation.student import (
    entry_texts,
    new_student,
    require_dimension,
    require_spare,
    student_options,
)
from ctx_embed.training.distillation.teacher import TeacherCache
from ctx_embed.training.distillation.trainer import Distillation
from ctx_embed.training.distillation.validation import read_pairs
from ctx_embed.training.labelled_texts import hashes_of, joined
from ctx_embed.training.record import RECORD, content_hash, file_hashes, finished
from ctx_embed.training.vocabulary import learn_vocabulary, read_tokenizer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Options of an architecture that the Contextualizer alone has.
CONTEXTUALIZER_OPTIONS = ("steps", "rank", "positions", "scale", "initial_context")
LISTS = ("corpus", "exclude", "labelled")
SOURCE_OPTIONS = ("files", "texts", "passage_lines", "span_words", "weight")
STORES = ("float32", "float16", "int8")
LOG = "training.jsonl"
SUMMARY = ("texts", "trained_texts", "held_out_texts", "held_out_distance")


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_recipe(path: Path, names: set[str]) -> dict[str, Any]:
    """The options of a recipe.

    Args:
        path: a TOML file of ``name = value`` lines, and of ``[[sources]]`` tables with ``files`` and optionally
            ``texts``, ``passage_lines``, ``span_words`` and ``weight``, see
            :class:`.Source`; those of the table ``[encoder_options]`` are the system's own.
        names: the options there are.

    Raises:
        InputError: no such file, not TOML, an unknown option, or a value of another kind than the option's.
    """
    try:
        recipe: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not TOML ({error})") from None
    for name, value in recipe.items():
        if name not in names:
            raise unknown_name(f"option of {path}", name, names)
        if name == "sources":
            _check_sources(path, value)
        elif name in LISTS:
            if not _is_list_of_strings(value):
                raise InputError(f"{path}: {name} is {value!r}, a list of strings is needed")
        elif name == "encoder_options":
            if not isinstance(value, Mapping):
                raise InputError(f"{path}: {name} is {value!r}, a table is needed: [encoder_options]")
        elif not isinstance(value, str) and not _is_number(value):
            raise InputError(f"{path}: {name} is {value!r}, a string or a number is needed")
    return recipe


def _check_sources(path: Path, sources: Any) -> None:
    if not isinstance(sources, list) or not all(isinstance(source, Mapping) for source in sources):
        raise InputError(f"{path}: sources is {sources!r}, tables are needed: [[sources]]")
    for source in sources:
        for name, value in source.items():
            if name not in SOURCE_OPTIONS:
                raise unknown_name(f"option of a source in {path}", name, SOURCE_OPTIONS)
            if name == "files" and not _is_list_of_strings(value):
                raise InputError(f"{path}: files of a source is {value!r}, a list of strings is needed")
            whole = name in ("texts", "passage_lines", "span_words")
            if name != "files" and (not _is_number(value) or (whole and not isinstance(value, int))):
                kind = "a whole number" if whole else "a number"
                raise InputError(f"{path}: {name} of a source is {value!r}, {kind} is needed")
        if "files" not in source:
            raise InputError(f"{path}: a source has no files, name them: files = [...]")


def _stored(student: TokenEncoder, store: str) -> TokenEncoder:
    """The student with parameters as they are to be saved."""
    if store == "int8":
        student.float().round_table()
        return student
    return student.to(getattr(torch, store))


def distill_from_files(
    sources: Sequence[Source],
    output: Path,
    *,
    teacher: str,
    cache: Path | None = None,
    exclude: Sequence[Path] = (),
    labelled: Sequence[Path] = (),
    skip: str | None = None,
    validation: str | None = None,
    encoder: str = "contextualizer",
    encoder_options: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    vocabulary_size: int = 32_000,
    phrases: int = 0,
    dimension: int = 256,
    spare_dimensions: int = 0,
    teacher_dtype: str = "float32",
    store: str = "float32",
    text_field: str | None = None,
    label_field: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Train a student on text files and write it with ``training.json``, the record of how it was made.

    ``training.jsonl`` in the model folder is the log of the training.

    Args:
        sources: text, CSV, TSV, JSONL or Parquet, plain or gzip, a sentence a line or row.
        output: the model folder; ``OUTPUT.partial`` beside it holds the state of an interrupted run.
        teacher: a path or name for :func:`ctx_embed.load`.
        cache: the folder of the teacher's embeddings, ``OUTPUT.teacher`` unless given.
        exclude: files whose lines, or their columns, are texts that must not be trained on. They still count for the
            vocabulary, the phrases and the rotation; labelled texts are not compared with them.
        labelled: files of labelled texts to learn beside the teacher, see :func:`read_labelled_files`.
        skip: a file for :func:`read_skipped`: lines of them to leave out.
        validation: a file for :func:`read_pairs`, measured after each epoch.
        encoder: the system's name.
        encoder_options: of the system; those of the Contextualizer may also stand among ``options``.
        tokenizer: path of a ``tokenizer.json``; None learns one of ``vocabulary_size`` entries from the texts.
        phrases: so many frequent phrases become entries beside the tokenizer's.
        dimension: m.
        spare_dimensions: so many of them are left to what is learned beside the teacher.
        teacher_dtype: in which the teacher computes.
        store: how the token table is saved: float32, float16 or int8.
        text_field, label_field: the columns of corpora and labelled files that are tables.
        overwrite: replace a model that is there; else only one that the same call has made is accepted.
        progress: show bars, and how many texts are excluded, on stderr.
        **options: of :class:`DistillationOptions` and of the system.

    Returns:
        The record's summary: texts, trained_texts, held_out_texts and held_out_distance.

    Raises:
        InputError: a file, name or size that cannot be used, or another model is there.
    """
    if store not in STORES:
        raise unknown_name("store", store, STORES)
    student_class = system(encoder)
    architecture = {name: options.pop(name) for name in CONTEXTUALIZER_OPTIONS if name in options}
    if encoder != "contextualizer":
        architecture = {}
    architecture = student_options(encoder, dimension, {**architecture, **(encoder_options or {})})
    settings = DistillationOptions(**options)
    asked = identity(
        {"encoder": encoder, "architecture": architecture, "dimension": dimension, "spare": spare_dimensions},
        {"vocabulary_size": vocabulary_size, "phrases": phrases, "teacher_dtype": teacher_dtype, "store": store},
        {"text_field": text_field, "label_field": label_field},
        asdict(settings),
        content_hash(model_folder(teacher)),
        [{**asdict(source), "files": [content_hash(file) for file in source.files]} for source in sources],
        [[content_hash(file) for file in files] for files in (exclude, labelled, (skip, validation, tokenizer))],
    )
    if (record := finished(output, asked, overwrite=overwrite)) is not None:
        return {name: record[name] for name in SUMMARY}
    # All that can be found wrong at once is looked at before the long work.
    own_tokenizer: Tokenizer | None = read_tokenizer(tokenizer) if tokenizer else None
    pairs = read_pairs(validation) if validation else None
    teacher_model = load(teacher, dtype=teacher_dtype)
    require_spare(spare_dimensions, dimension)
    settings.label_dimensions(dimension, spare_dimensions)
    require_dimension(dimension - spare_dimensions, teacher_model.get_embedding_dimension() or dimension)
    mixture = read_mixture(sources, settings.seed, read_excluded(exclude), text_field)
    settings = settings.of_texts(len(mixture.texts))
    settings.trained_on(len(mixture.texts), mixture.excluded)
    if exclude and progress:
        # None is worth a look at the files: a wrong one leaves out nothing.
        tqdm.write(f"{mixture.excluded:,} of {len(mixture.texts):,} texts are excluded", file=sys.stderr)
    labels_and_texts = None
    if labelled:
        labels_and_texts = read_labelled_files(labelled, read_skipped(skip) if skip else None, text_field, label_field)
    if own_tokenizer is None:
        own_tokenizer = learn_vocabulary(mixture.texts, vocabulary_size, progress=progress)
    phrase_pairs = learn_phrases(mixture.texts, own_tokenizer, phrases)
    record = {
        "encoder": encoder,
        "architecture": {"dimension": dimension, "spare_dimensions": spare_dimensions, **architecture},
        "phrases": 0 if phrase_pairs is None else len(phrase_pairs),
        "options": asdict(settings),
        "teacher": {"name": teacher, "dtype": teacher_dtype, "fingerprint": fingerprint(teacher_model)},
        "sources": [{**asdict(source), "files": file_hashes(source.files)} for source in sources],
        "exclude": file_hashes(exclude),
        "excluded_texts": mixture.excluded,
        "labelled": file_hashes(labelled),
        "texts": len(mixture.texts),
    }
    checkpoint = Checkpoint(
        output,
        identity(
            record,
            own_tokenizer.to_str(),
            [block.key for block in mixture.blocks],
            labels_and_texts,
            pairs and asdict(pairs),
        ),
    )
    teacher_cache = TeacherCache(cache or output.with_name(output.name + ".teacher"), teacher_model)
    entries = teacher_cache.embeddings([Block("vocabulary", tuple(entry_texts(own_tokenizer)))], progress=False)
    embeddings = teacher_cache.embeddings(mixture.blocks, progress=progress)
    student, rotation = new_student(
        student_class,
        own_tokenizer,
        mixture.texts,
        embeddings,
        entries.astype(np.float32),
        dimension,
        settings.seed,
        phrases=phrase_pairs,
        spare_dimensions=spare_dimensions,
        **architecture,
    )
    log = checkpoint.folder / LOG
    run = Distillation(
        student,
        mixture,
        embeddings,
        rotation,
        settings,
        checkpoint,
        labelled=labels_and_texts,
        pairs=pairs,
        log=TrainingLog(log),
    )
    try:
        history = run.run(progress=progress)
    except InputError:
        # A training that diverged is not taken up again.
        log.unlink(missing_ok=True)
        checkpoint.remove()
        raise
    # What a teacher learned from labels, its student learns of it.
    student.labelled_texts = joined(
        getattr(teacher_model[0], "labelled_texts", None), hashes_of(labels_and_texts[1]) if labels_and_texts else None
    )
    model = SentenceTransformer(modules=[_stored(student, store), Normalize()], device="cpu")
    values = (len(mixture.texts), run.trained_texts, len(run.held_out_rows), history[-1]["held_out_distance"])
    summary = dict(zip(SUMMARY, values, strict=True))
    with replaced_folder(output) as beside:
        model.save_pretrained(str(beside), create_model_card=False)
        record = {**record, "asked": asked, "store": store, "versions": versions(), "history": history, **summary}
        (beside / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        card = distilled_card(output.name, model, record, model_folder(teacher))
        (beside / CARD).write_text(card, encoding="utf-8")
        if log.exists():
            shutil.copyfile(log, beside / LOG)
    log.unlink(missing_ok=True)
    checkpoint.remove()
    return summary
