"""The options of a distillation, declared once for Python, recipes and the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ctx_embed.errors import InputError
from ctx_embed.options import documented, option, require_valid

# Default maximum of held-out texts: more would not measure the distance to the teacher any better.
MOST_HELD_OUT = 4096
# Fraction of all steps in which the learning rate rises.
WARMUP = 0.05
# Sections of the command's help.
FILES, STUDENT, TRAINING, OBJECTIVES = "Input and output", "Student", "Training", "Further objectives"


@documented
@dataclass(frozen=True)
class DistillationOptions:
    """Options of the training in a distillation. An objective with weight 0 is left out.

    Raises:
        InputError: a value has the wrong type or is out of range.
    """

    epochs: int = option(3, "Passes over the texts.", least=1)
    batch_size: int = option(256, "Texts per batch.", least=2)
    learning_rate: float = option(5e-3, "Peak learning rate of the token table and the network.", above=0)
    averaging: float = option(
        0.0,
        "Decay per 10 steps of a moving average of the weights, which becomes the student; 0 uses the last weights.",
        least=0,
        below=1,
    )
    relation_weight: float = option(
        2.0, "Loss weight: the teacher's cosines between texts.", least=0, section=OBJECTIVES
    )
    feature_weight: float = option(
        0.0, "Loss weight: each feature of the teacher at unit variance.", least=0, section=OBJECTIVES
    )
    genre_weight: float = option(
        0.0, "Loss weight: predict the family of files that a text came from.", least=0, section=OBJECTIVES
    )
    word_weight: float = option(0.0, "Loss weight: predict a text's own words.", least=0, section=OBJECTIVES)
    label_weight: float = option(0.3, "Loss weight: predict the labels of labelled texts.", least=0, section=OBJECTIVES)
    labels_from: Literal["all", "spare"] = option(
        "all",
        "Dimensions that labels and genres are predicted from: all, or those the teacher leaves spare.",
        section=OBJECTIVES,
    )
    pair_weight: float = option(
        0.0, "Loss weight: find a text's partner, if a source has pairs.", least=0, section=OBJECTIVES
    )
    pair_batch: int = option(64, "Pairs per batch.", least=2, section=OBJECTIVES)
    contrast_weight: float = option(
        0.0,
        "Loss weight: move texts away from their negations and contradictions, if a source has pairs.",
        least=0,
        section=OBJECTIVES,
    )
    contrast_batch: int = option(64, "Triples of text, partner and contrast per batch.", least=2, section=OBJECTIVES)
    second_weight: float = option(0.5, "Loss weight: the second teacher.", least=0, section=OBJECTIVES)
    second_label_weight: float = option(
        0.0, "Loss weight: predict the labels that the second teacher's embeddings give.", least=0, section=OBJECTIVES
    )
    held_out: int | None = option(
        None,
        "Number of texts held out to measure the distance to the teacher.",
        least=2,
        default_is="10 %, at most 4096",
    )
    seed: int = option(0, "Seed of the order, the initial weights and the held-out texts.", least=0, below=2**32)

    def __post_init__(self) -> None:
        require_valid(self)

    def label_dimensions(self, dimension: int, spare: int) -> int:
        """Return the number of last dimensions that labels and genres are predicted from."""
        if self.labels_from == "spare" and not spare:
            raise InputError("labels_from='spare' needs spare_dimensions above 0, got 0; set both")
        return spare if self.labels_from == "spare" else dimension

    def for_texts(self, texts: int) -> DistillationOptions:
        """Return these options with the size of the held-out part for this number of texts, unless it is given."""
        return self if self.held_out is not None else replace(self, held_out=min(MOST_HELD_OUT, max(1, texts // 10)))

    def trained_on(self, texts: int, excluded: int = 0) -> int:
        """Return how many texts are neither held out nor excluded; raise an InputError for less than two batches."""
        held_out = self.for_texts(texts).held_out or 0
        count = texts - held_out - excluded
        if count < 2 * self.batch_size:
            left_out = f"{held_out} held out" + (f", {excluded} excluded" if excluded else "")
            raise InputError(
                f"{texts} texts are too few for two batches of {self.batch_size} ({left_out}); "
                "give more text, or lower --held-out or --batch-size"
            )
        return count

    def learning_rate_at(self, step: int, total: int) -> float:
        """Return the learning rate of a step: linear warm-up to the peak, then a cosine down to 0."""
        warm = max(1, round(WARMUP * total))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


@documented
@dataclass(frozen=True)
class Source:
    """Text files that are read in the same way.

    Raises:
        InputError: there is no file, a number is out of range, or options cannot be combined.
    """

    files: Sequence[Path] = option(meaning="Text files, plain or gzip, with a sentence per line or row.")
    texts: int | None = option(None, "About how many of their texts to use, spread over all files; None: all.", least=1)
    passage_lines: int = option(1, "Above 1, join consecutive lines into passages of 2 to this many lines.", least=1)
    span_words: int = option(0, "Above 0, cut each text to a span of 1 to this many words.", least=0)
    fair: bool = option(
        False,
        "Order the texts of all files so that any first part of them is a fair sample; files may then also hold "
        "labelled texts (``.tsv``) or pairs (``.jsonl``).",
    )
    most_words: int | None = option(None, "In a fair source, leave out longer texts.", least=1)
    second_texts: int = option(0, "About how many of its first texts the second teacher embeds as well.", least=0)
    first_words: int | None = option(None, "In a fair source, cut the texts of pairs to this many words.", least=1)
    cloze: bool = option(
        False,
        "In a fair source of texts, make pairs: a span of the middle line of passage_lines, and the other lines.",
    )
    taught: bool = option(True, "False: no teacher embeds its texts, which serve only as pairs.")

    def __post_init__(self) -> None:
        require_valid(self, " of a source")
        if not self.files:
            raise InputError("a source must have at least one file, got none")
        for name in ("most_words", "first_words"):
            if getattr(self, name) is not None and not self.fair:
                raise InputError(f"{name} of a source needs fair = true; add it, or leave {name} out")
        if self.cloze and not (self.fair and self.passage_lines > 1 and self.span_words):
            raise InputError(
                "cloze = true of a source needs fair = true, passage_lines above 1 and span_words; add them"
            )
        if not self.taught and (not self.fair or self.second_texts):
            raise InputError("a source with taught = false must have fair = true and no second_texts")


@documented
@dataclass(frozen=True, kw_only=True)
class DistillationJob:
    """A request to distil a model: sources, output and all options.

    ``OUTPUT.partial`` next to the output holds the state of an interrupted run.

    Raises:
        InputError: a value has the wrong type or is out of range, or options cannot be combined.
    """

    sources: Sequence[Source]
    output: Path
    options: DistillationOptions = field(default_factory=DistillationOptions)
    encoder: str = option("contextualizer", "The system to train.", command=False)
    encoder_options: Mapping[str, Any] | None = option(None, "Options of the system.", command=False)
    teacher: str = option(
        meaning="Any SentenceTransformer: a folder, or a name on the hub; minilm is all-MiniLM-L6-v2.",
        section=FILES,
        metavar="MODEL",
    )
    exclude: Sequence[Path] = option(
        (),
        "Never train on the texts in this file, in any of its columns. They still count for the vocabulary.",
        section=FILES,
    )
    cache: Path | None = option(
        None, "Store the teacher's embeddings here.", section=FILES, metavar="DIR", default_is="OUT.teacher"
    )
    overwrite: bool = option(
        False,
        "Replace the model in OUT, once the new one is complete.",
        section=FILES,
    )
    start: str | None = option(
        None, "Start from this model, with its vocabulary and sizes.", section=STUDENT, flag="--from", metavar="MODEL"
    )
    start_share: float = option(
        0.5,
        "Share of the --from model's weights in the new model's, the mean of the weights before and after training; "
        "above 0, the model forgets less of what the teacher does not teach.",
        least=0,
        below=1,
        section=STUDENT,
    )
    dimension: int = option(256, "Dimension m of the embedding.", least=1, section=STUDENT)
    tokenizer: str | None = option(
        None, "A tokenizer.json; without one, a vocabulary is learned from the corpus.", section=STUDENT
    )
    vocabulary_size: int = option(
        32_000, "Maximum number of entries of a learned vocabulary.", least=3, section=STUDENT
    )
    phrases: int = option(
        0,
        "Number of frequent phrases that become vocabulary entries, in addition to a --from model's own.",
        least=0,
        section=STUDENT,
    )
    spare_dimensions: int = option(
        0, "Dimensions reserved for labels; zero in the teacher's target.", least=0, section=STUDENT
    )
    store: Literal["float32", "float16", "int8"] = option(
        "int8", "Precision in which the token table is saved.", section=STUDENT
    )
    validation: str | None = option(None, "Pairs to score after each epoch: score<TAB>text<TAB>text.", section=TRAINING)
    teacher_dtype: Literal["float32", "bfloat16"] = option(
        "float32", "Precision in which the teacher computes.", section=TRAINING
    )
    device: str | None = option(
        None,
        "Device of teachers and student, e.g. cuda.",
        section=TRAINING,
        metavar="NAME",
        default_is="the student on the CPU",
    )
    labelled: Sequence[Path] = option(
        (), "Also learn from labelled texts: label<TAB>text, or a table.", section=OBJECTIVES
    )
    skip: str | None = option(
        None,
        "JSON file that names lines of the labelled files to leave out.",
        section=OBJECTIVES,
        metavar="FILE.json",
    )
    second_teacher: str | None = option(
        None,
        "Another teacher, which embeds the second_texts of a recipe's sources.",
        section=OBJECTIVES,
        metavar="MODEL",
    )
    text_field: str | None = option(None, "The field of tables that holds the text.", command=False)
    label_field: str | None = option(None, "The field of tables that holds the label.", command=False)
    progress: bool = option(True, "Show progress on standard error.", command=False)

    def __post_init__(self) -> None:
        require_valid(self)
        require_spare(self.spare_dimensions, self.dimension)
        if self.start is not None and self.tokenizer is not None:
            raise InputError("--from and --tokenizer cannot be combined: the model has its own vocabulary")
        if self.second_teacher is not None and not any(source.second_texts for source in self.sources):
            raise InputError("a second teacher needs texts; set second_texts for a source of the recipe")
        if self.options.second_label_weight > 0 and (self.second_teacher is None or not self.labelled):
            raise InputError("second_label_weight needs a second teacher and labelled files; give both or leave it out")
        self.options.label_dimensions(self.dimension, self.spare_dimensions)


def require_spare(spare: int, dimension: int) -> None:
    """Raise an InputError unless at least one dimension is left for the teacher."""
    if not 0 <= spare < dimension:
        raise InputError(f"spare_dimensions must be in 0..{dimension - 1} for dimension {dimension}, got {spare}")
