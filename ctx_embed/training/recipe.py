"""A distillation from files to a model folder, and the recipes (TOML) that hold its options."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tokenizers import Tokenizer

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.fingerprint import fingerprint
from ctx_embed.loading import load
from ctx_embed.systems import system
from ctx_embed.training.checkpoint import Checkpoint, identity
from ctx_embed.training.corpus import Block, read_blocks
from ctx_embed.training.distillation import Distillation, DistillationOptions
from ctx_embed.training.objectives import read_labelled_files, read_skipped
from ctx_embed.training.student import entry_texts, new_student, require_dimension
from ctx_embed.training.teacher import TeacherCache
from ctx_embed.training.vocabulary import learn_vocabulary, read_tokenizer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Options of an architecture that the Contextualizer alone has.
CONTEXTUALIZER_OPTIONS = ("steps", "rank", "positions", "scale", "initial_context")


def read_recipe(path: Path, names: set[str]) -> dict[str, Any]:
    """The options of a recipe.

    Args:
        path: a TOML file of ``name = value`` lines.
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
        if name in ("corpus", "labelled"):
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise InputError(f"{path}: {name} is {value!r}, a list of strings is needed")
        elif not isinstance(value, str | int | float) or isinstance(value, bool):
            raise InputError(f"{path}: {name} is {value!r}, a string or a number is needed")
    return recipe


def _file_hashes(files: Sequence[Path]) -> dict[str, str]:
    """The sha256 by file name, with the folder's name before it where two files are called alike."""
    alike = Counter(path.name for path in files)
    names = [path.name if alike[path.name] == 1 else f"{path.absolute().parent.name}/{path.name}" for path in files]
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in zip(names, files, strict=True)}


def _versions() -> dict[str, str]:
    packages = ("ctx-embed", "sentence-transformers", "tokenizers", "torch")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def distill_from_files(
    corpus: Sequence[Path],
    output: Path,
    *,
    teacher: str,
    cache: Path | None = None,
    sentences: int | None = None,
    labelled: Sequence[Path] = (),
    skip: str | None = None,
    encoder: str = "contextualizer",
    tokenizer: str | None = None,
    vocabulary_size: int = 32_000,
    dimension: int = 256,
    teacher_dtype: str = "float32",
    store: str = "float32",
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Train a student on text files and write it with ``training.json``, the record of how it was made.

    Args:
        corpus: text files, plain or gzip, a sentence a line.
        output: the model folder; ``OUTPUT.partial`` beside it holds the state of an interrupted run.
        teacher: a path or name for :func:`ctx_embed.load`.
        cache: the folder of the teacher's embeddings, ``OUTPUT.teacher`` unless given.
        sentences: read about so many, spread over all files; None reads all.
        labelled: files of labelled texts to learn beside the teacher, see :func:`read_labelled_files`.
        skip: a file for :func:`read_skipped`: lines of them to leave out.
        encoder: the system's name.
        tokenizer: path of a ``tokenizer.json``; None learns one of ``vocabulary_size`` entries from the sentences.
        dimension: m.
        teacher_dtype: in which the teacher computes.
        store: dtype of the saved parameters.
        progress: show bars on stderr.
        **options: of :class:`DistillationOptions` and of the system.

    Returns:
        The record's summary: sentences and held_out_distance.

    Raises:
        InputError: a file, name or size that cannot be used.
    """
    require_replaceable(output, "modules.json")
    student_class = system(encoder)
    architecture = {name: options.pop(name) for name in CONTEXTUALIZER_OPTIONS if name in options}
    if encoder != "contextualizer":
        architecture = {}
    settings = DistillationOptions(**options)
    # All that can be found wrong at once is looked at before the long work.
    own_tokenizer: Tokenizer | None = read_tokenizer(tokenizer) if tokenizer else None
    teacher_model = load(teacher, dtype=teacher_dtype)
    require_dimension(dimension, teacher_model.get_embedding_dimension() or dimension)
    blocks = read_blocks(corpus, sentences, settings.seed)
    texts = [text for block in blocks for text in block.texts]
    settings.trained_on(len(texts))
    labels_and_texts = read_labelled_files(labelled, read_skipped(skip) if skip else None) if labelled else None
    if own_tokenizer is None:
        own_tokenizer = learn_vocabulary(texts, vocabulary_size, progress=progress)
    record = {
        "encoder": encoder,
        "architecture": {"dimension": dimension, **architecture},
        "options": asdict(settings),
        "teacher": {"name": teacher, "dtype": teacher_dtype, "fingerprint": fingerprint(teacher_model)},
        "corpus": _file_hashes(corpus),
        "labelled": _file_hashes(labelled),
        "sentences": len(texts),
    }
    checkpoint = Checkpoint(
        output, identity(record, own_tokenizer.to_str(), [block.key for block in blocks], labels_and_texts)
    )
    teacher_cache = TeacherCache(cache or output.with_name(output.name + ".teacher"), teacher_model)
    entries = teacher_cache.embeddings([Block("vocabulary", tuple(entry_texts(own_tokenizer)))], progress=False)
    embeddings = teacher_cache.embeddings(blocks, progress=progress)
    student, rotation = new_student(
        student_class,
        own_tokenizer,
        texts,
        embeddings,
        entries.astype(np.float32),
        dimension,
        settings.seed,
        **architecture,
    )
    run = Distillation(student, texts, embeddings, rotation, settings, checkpoint, labels_and_texts)
    history = run.run(progress=progress)
    model = SentenceTransformer(modules=[student.to(getattr(torch, store)), Normalize()], device="cpu")
    summary = {"sentences": len(texts), "held_out_distance": history[-1]["held_out_distance"]}
    with replaced_folder(output) as beside:
        model.save_pretrained(str(beside))
        record = {**record, "versions": _versions(), "history": history, **summary}
        (beside / "training.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    checkpoint.remove()
    return summary
