"""A distillation from text files to a model folder: read the texts, ask the teacher, train the student, save it.

The teacher's embeddings are computed once and stored in a file per block of texts, so that a killed run resumes.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tokenizers import Tokenizer

from ctx_embed.errors import InputError, examples, quoted, unknown_name
from ctx_embed.files import replaced_file, replaced_folder
from ctx_embed.fingerprint import fingerprint, identity
from ctx_embed.loading import load, model_folder, require_device
from ctx_embed.model import Model
from ctx_embed.model_card import CARD, versions
from ctx_embed.options import takes
from ctx_embed.progress import Meter, say
from ctx_embed.systems import system
from ctx_embed.texts import well_formed
from ctx_embed.training.distillation.student import (
    ALIGNED_TEXTS,
    aligned_rotation,
    entry_texts,
    learn_phrases,
    more_phrases,
    new_student,
    require_encoder,
    rotation_to,
    started_student,
    student_options,
)
from ctx_embed.training.distillation.texts import (
    Block,
    Mixture,
    Pairs,
    read_excluded,
    read_labelled_files,
    read_mixture,
    read_pairs,
)
from ctx_embed.training.distillation.trainer import Distillation
from ctx_embed.training.labelled_texts import hashes_of, joined
from ctx_embed.training.options import ContextualizerOptions, DistillationJob, Source, require_spare
from ctx_embed.training.run import RECORD, Checkpoint, contents_hash, distilled_card, file_hashes, finished
from ctx_embed.training.vocabulary import learn_vocabulary, read_vocabulary

# The rank of a new Contextualizer.
RANK = 64
# Texts per batch. On a CPU, batches that fit its caches are fastest: on one Zen 4 core, all-mpnet-base-v2 in bfloat16
# embeds 30 sentences per second in batches of 16, and 23 in batches of 64.
CPU_BATCH, DEVICE_BATCH = 16, 256
# Number of texts whose tokens are counted, to estimate how many texts the teacher truncates.
SAMPLED_TEXTS = 5000
SUMMARY = ("texts", "trained_texts", "held_out_texts", "held_out_distance", "kept_epoch")


@takes(DistillationJob, ContextualizerOptions)
def distill(
    sources: Sequence[Source | str | Path] | str | Path, output: str | Path, *, teacher: str, **options: Any
) -> dict[str, Any]:
    """Train a student on text files and save it with ``training.json``, the record of how it was made.

    To resume an interrupted call, repeat it.

    Args:
        sources: files, each a source by itself, or sources with options of their own.
        output: the model folder.
        teacher: a path or name for :func:`ctx_embed.load`; ``minilm`` is all-MiniLM-L6-v2.
        **options: fields of :class:`.DistillationOptions`, :class:`.DistillationJob` and
            :class:`.ContextualizerOptions`.

    Returns:
        The record's summary: texts, trained_texts, held_out_texts, held_out_distance and kept_epoch, which is 0 if no
        epoch came closer to the teacher than the start.

    Raises:
        InputError: a file, name or value cannot be used, or the output holds another model.
    """
    job = _job(sources, Path(output), teacher, options)
    architecture = student_options(job.encoder, job.dimension, job.encoder_options or {})
    # A hash of everything that the model depends on, including the contents of the files.
    models = (job.teacher, job.second_teacher, job.start)
    folders: dict[str | None, Path] = {model: model_folder(model) for model in models if model}
    asked = identity(
        {"encoder": job.encoder, "architecture": architecture},
        {"dimension": job.dimension, "spare": job.spare_dimensions, "start_share": job.start_share},
        {"vocabulary_size": job.vocabulary_size, "phrases": job.phrases},
        {"teacher_dtype": job.teacher_dtype, "store": job.store},
        {"text_field": job.text_field, "label_field": job.label_field},
        job.of_training(),
        [contents_hash(folders.get(model)) for model in models],
        [{**asdict(source), "files": [contents_hash(file) for file in source.files]} for source in job.sources],
        [
            [contents_hash(file) for file in files]
            for files in (job.exclude, job.labelled, (job.skip, job.validation, job.tokenizer))
        ],
    )
    if (record := finished(job.output, asked, overwrite=job.overwrite)) is not None:
        return {name: record[name] for name in SUMMARY}
    job, material = _read(job, architecture.get("rank"), folders)
    record = {"asked": asked, **_record(job, architecture, material)}
    checkpoint = Checkpoint(job.output, asked)
    training = _prepare(job, architecture, material, checkpoint)
    try:
        history = training.run(progress=job.progress)
    except InputError:
        # Do not resume a training that diverged.
        checkpoint.remove()
        raise
    kept = training.kept_epoch
    distance = history[kept]["held_out_distance"]
    values = (len(material.mixture.texts), len(training.rows), len(training.held_out_rows), distance, kept)
    summary = dict(zip(SUMMARY, values, strict=True))
    if not kept and job.progress:
        say(
            f"no epoch came closer to the teacher than the start (held-out 1 - cos {distance:.4f}, at the end "
            f"{history[-1]['held_out_distance']:.4f}), so the start is kept; try a lower --learning-rate or more texts"
        )
    record |= {"history": history, "losses": training.losses, **summary, "versions": versions()}
    student = training.student.cpu()
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
        (beside / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        card = distilled_card(job.output.name, model, record, folders[job.teacher])
        (beside / CARD).write_text(card, encoding="utf-8")
    checkpoint.remove()
    return summary


def _job(
    sources: Sequence[Source | str | Path] | str | Path, output: Path, teacher: str, options: dict[str, Any]
) -> DistillationJob:
    """Return the job with these options by name."""
    kinds = (DistillationJob, ContextualizerOptions)
    names = {field.name for kind in kinds for field in fields(kind)}
    for name in options:
        if name not in names:
            raise unknown_name("option", name, names - {"sources", "output", "teacher"})
    job, contextualizer = (
        {field.name: options[field.name] for field in fields(kind) if field.name in options} for kind in kinds
    )
    encoder_options = dict(options.get("encoder_options") or {})
    if options.get("encoder", "contextualizer") == "contextualizer":
        # Add all defaults, which the command passes too, so that both ways of calling have the same identity.
        # A model to start from keeps its rank.
        rank = {} if options.get("start") else {"rank": RANK}
        given = {k: v for k, v in asdict(ContextualizerOptions(**contextualizer)).items() if v is not None}
        encoder_options = {**rank, **given, **encoder_options}
    files = [sources] if isinstance(sources, str | Path) else sources
    listed = [source if isinstance(source, Source) else Source([Path(source)]) for source in files]
    named = {"sources": listed, "output": output, "teacher": teacher, "encoder_options": encoder_options}
    return DistillationJob(**{**job, **named})


@dataclass(frozen=True)
class _Material:
    """All that a distillation reads before training."""

    teacher: SentenceTransformer
    mixture: Mixture
    labelled: tuple[list[str], list[str]] | None
    pairs: Pairs | None
    tokenizer: Tokenizer
    phrases: NDArray[np.int32] | None
    second_teacher: SentenceTransformer | None = None
    start: SentenceTransformer | None = None


def _read(
    job: DistillationJob, rank: int | None, folders: Mapping[str | None, Path]
) -> tuple[DistillationJob, _Material]:
    """Return the job adapted to its texts, and all that it reads. Quick checks come before long work."""
    require_device(job.device)
    tokenizer = read_vocabulary(job.tokenizer) if job.tokenizer else None
    pairs = read_pairs(job.validation) if job.validation else None
    of_teacher, of_second, of_start = (folders.get(model) for model in (job.teacher, job.second_teacher, job.start))
    teacher = load(of_teacher, job.device, dtype=job.teacher_dtype)
    second_teacher = load(of_second, job.device, dtype=job.teacher_dtype) if of_second else None
    start = load(of_start, job.device or "cpu") if of_start else None
    dimension = job.dimension if start is None else require_encoder(start).dimension
    require_spare(job.spare_dimensions, dimension)
    if start is not None and rank is not None and rank > (most := getattr(start[0], "rank", 0)):
        raise InputError(f"rank must be at most that of the model to start from, {most}, got {rank}; leave it out")
    taught_dimension = dimension - job.spare_dimensions
    for model in (teacher, second_teacher):
        if model is not None and taught_dimension > (most := model.get_embedding_dimension() or dimension):
            raise InputError(f"dimension must be at most the teacher's {most}, got {taught_dimension}")
    excluded = read_excluded(job.exclude)
    mixture = read_mixture(job.sources, job.seed, excluded, job.text_field)
    taught = len(mixture.taught_rows)
    job = job.for_texts(taught)
    job.trained_on(taught, mixture.excluded)
    for option, weight in (("--pair-weight", job.pair_weight), ("--contrast-weight", job.contrast_weight)):
        if weight > 0 and not len(mixture.pairs):
            raise InputError(f"{option} needs pairs; give a recipe a source of pairs (.jsonl) that has `fair = true`")
    if job.progress:
        if job.exclude:
            # Report this, because 0 may mean that the wrong file was given.
            say(f"{mixture.excluded:,} of {len(mixture.texts):,} texts are excluded")
        for name, model, rows in (
            (job.teacher, teacher, mixture.taught_rows),
            (job.second_teacher, second_teacher, mixture.second_rows),
        ):
            if model is not None and (count := seen_in_part(model, [mixture.texts[row] for row in rows])):
                say(
                    f"{name} reads the first {model.max_seq_length} tokens of a text, so it sees {count:,} of "
                    f"{len(rows):,} texts in part"
                )
    labelled, phrases = None, None
    if job.labelled:
        labelled = read_labelled_files(job.labelled, job.skip, job.text_field, job.label_field, excluded)
    if start is not None:
        module = require_encoder(start)
        tokenizer = module.backend_tokenizer
        if job.phrases:
            known = None if module.phrases is None else module.phrases.numpy()
            phrases = more_phrases(mixture.texts, tokenizer, known, job.phrases)
    else:
        tokenizer = tokenizer or learn_vocabulary(mixture.texts, job.vocabulary_size, progress=job.progress)
        phrases = learn_phrases(mixture.texts, tokenizer, job.phrases)
    return job, _Material(teacher, mixture, labelled, pairs, tokenizer, phrases, second_teacher, start)


def _record(job: DistillationJob, architecture: Mapping[str, Any], material: _Material) -> dict[str, Any]:
    """Return the part of training.json that is known before training."""
    sizes = {"dimension": job.dimension, "spare_dimensions": job.spare_dimensions}
    phrases: Any = material.phrases
    student: dict[str, Any] = {"encoder": job.encoder, "architecture": {**sizes, **architecture}}
    if material.start is not None:
        module = require_encoder(material.start)
        phrases = module.phrases if phrases is None else phrases
        rank = {"rank": architecture["rank"]} if "rank" in architecture else {}
        student = {
            "from": {"name": job.start, "fingerprint": fingerprint(material.start), "share": job.start_share},
            "architecture": {**sizes, "dimension": module.dimension, **rank},
        }
    student["phrases"] = 0 if phrases is None else len(phrases)
    if material.second_teacher is not None:
        student["second_teacher"] = {
            "name": job.second_teacher,
            "dtype": job.teacher_dtype,
            "fingerprint": fingerprint(material.second_teacher),
        }
    return {
        **student,
        "options": job.of_training(),
        "teacher": {"name": job.teacher, "dtype": job.teacher_dtype, "fingerprint": fingerprint(material.teacher)},
        "sources": [{**asdict(source), "files": file_hashes(source.files)} for source in job.sources],
        "exclude": file_hashes(job.exclude),
        "excluded_texts": material.mixture.excluded,
        "labelled": file_hashes(job.labelled),
        "texts": len(material.mixture.texts),
        "store": job.store,
    }


def _prepare(
    job: DistillationJob, architecture: Mapping[str, Any], material: _Material, checkpoint: Checkpoint
) -> Distillation:
    """Return a training that is ready to run: compute the teacher's embeddings and initialise the student from them."""
    cache = TeacherCache(job.cache or job.output.with_name(job.output.name + ".teacher"), material.teacher)
    mixture, rows = material.mixture, material.mixture.taught_rows
    taught = cache.embeddings([block for block in mixture.blocks if block.taught], progress=job.progress)
    texts = [mixture.texts[row] for row in rows]
    embeddings = np.zeros((len(mixture.texts), taught.shape[1]), np.float16)
    embeddings[rows] = taught
    if len(zeros := np.flatnonzero(~taught.any(axis=1))) and job.progress:
        named = examples((texts[place] for place in zeros), len(zeros))
        say(f"the teacher's embeddings of {len(zeros):,} of {len(rows):,} texts are zeros; they are left out: {named}")
    if material.start is not None:
        student, rotation = started_student(
            material.start, texts, taught, job.spare_dimensions, architecture.get("rank"), material.phrases
        )
    else:
        entries = cache.embeddings([Block(tuple(entry_texts(material.tokenizer)))], progress=False)
        student, rotation = new_student(
            system(job.encoder),
            material.tokenizer,
            texts,
            taught,
            entries.astype(np.float32),
            job.dimension,
            job.seed,
            phrases=material.phrases,
            spare_dimensions=job.spare_dimensions,
            **architecture,
        )
    second = None
    if material.second_teacher is not None:
        blocks = [block for block in mixture.blocks if block.second]
        others = TeacherCache(cache.folder.parent, material.second_teacher).embeddings(blocks, progress=job.progress)
        # Rotate the second teacher's embeddings into the space of the first teacher's targets, leaving out the
        # dimensions that are zero there.
        spare = int((~rotation.any(0)).sum())
        m, sample = rotation.shape[1] - spare, mixture.second_rows[:ALIGNED_TEXTS]
        like = embeddings[sample].astype(np.float32) @ rotation[:, :m]
        own = aligned_rotation(rotation_to(m, others), others[:ALIGNED_TEXTS], like)
        second = others, np.pad(own, ((0, 0), (0, spare)))
    return Distillation(
        student.to(job.device or "cpu"),
        material.mixture,
        embeddings,
        rotation,
        job,
        checkpoint,
        second=second,
        labelled=material.labelled,
        pairs=material.pairs,
        start_share=0.0 if material.start is None else job.start_share,
    )


class TeacherCache:
    """Teacher embeddings of blocks, in ``folder/<teacher>/<block key>.safetensors`` (float16).

    The folder's name depends on everything that changes the embeddings, such as the teacher's dtype.
    """

    def __init__(self, folder: str | Path, teacher: SentenceTransformer) -> None:
        self.teacher = teacher
        # The fingerprint does not cover the length limit, the prompt and the truncation, so the name has them too.
        name = f"{fingerprint(teacher)[:16]}-{teacher.max_seq_length}"
        prompt = teacher.prompts.get(teacher.default_prompt_name or "")
        if prompt or teacher.truncate_dim:
            name += f"-{identity(prompt, teacher.truncate_dim)[:16]}"
        self.folder = Path(folder) / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the cache folder {self.folder}: {error.strerror}") from None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the teacher's embeddings of ``texts`` as float32 (texts, d), l2-normalised, without the cache."""
        batch_size = CPU_BATCH if self.teacher.device.type == "cpu" else DEVICE_BATCH
        embeddings = self.teacher.encode(
            list(texts), batch_size=batch_size, convert_to_tensor=True, normalize_embeddings=True
        )
        return embeddings.float().cpu().numpy()

    def embeddings(self, blocks: Sequence[Block], *, progress: bool = True) -> np.ndarray:
        """Return the concatenated embeddings of all blocks, float16 (sentences, d), computing missing ones."""
        parts: list[np.ndarray] = []
        total = sum(len(block.texts) for block in blocks)
        with Meter("embedding with the teacher", total, "sentences", shown=progress) as meter:
            for block in blocks:
                file = self.folder / f"{block.key}.safetensors"
                part: np.ndarray | None = None
                # A file that is missing or damaged is written again.
                with suppress(OSError, SafetensorError, KeyError):
                    part = load_file(file)["embeddings"]
                is_new = part is None or len(part) != len(block.texts)
                if part is None or is_new:
                    # Show progress after each batch: a block can take a minute.
                    counting = self.teacher[-1].register_forward_hook(
                        lambda _, __, features: meter.update(len(features["sentence_embedding"]))
                    )
                    with torch.inference_mode(), counting:
                        part = self.encode(block.texts).astype(np.float16)
                else:
                    meter.update(len(part))
                wrong = np.flatnonzero(~np.isfinite(part).all(axis=1))
                if len(wrong):
                    raise InputError(
                        f"the teacher's embeddings must be finite numbers, got NaN or infinity for {len(wrong):,} of "
                        f"{len(part):,} texts, such as {quoted(block.texts[wrong[0]])}; choose another teacher, or "
                        "--teacher-dtype float32"
                    )
                if is_new:
                    with replaced_file(file) as beside:
                        save_file({"embeddings": part}, beside)
                parts.append(part)
        found = np.concatenate(parts)
        if len(found) and not found.any():
            raise InputError(
                f"the teacher's embeddings must not all be zeros, got zeros for all {len(found):,} texts; choose a "
                "teacher that knows their language"
            )
        return found


def seen_in_part(teacher: SentenceTransformer, texts: Sequence[str]) -> int:
    """Return how many texts the teacher truncates; an estimate if there may be thousands."""
    most, tokenizer = teacher.max_seq_length, Model(teacher).tokenizer
    if not most or tokenizer is None:
        return 0
    # A token has at least one character.
    candidates = [text for text in texts if len(text) > most]
    if not candidates:
        return 0
    # Count with a copy: the model's own tokenizer may truncate texts.
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.no_truncation()
    step = -(-len(candidates) // SAMPLED_TEXTS)
    sample = [well_formed(text) for text in candidates[::step]]
    longer = sum(len(encoding.ids) > most for encoding in whole.encode_batch(sample))
    return round(longer * len(candidates) / len(sample))
