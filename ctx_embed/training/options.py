"""The options of all trainings, declared once for Python, recipes and the command line; and the recipes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import Self

from ctx_embed.errors import InputError, quoted, unknown_name
from ctx_embed.options import declared, documented, option, require_valid
from ctx_embed.reading.rows import Named

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SCRATCH = "scratch"
# Default maximum number of held-out texts: more would not measure the distance to the teacher any better.
MOST_HELD_OUT = 4096
# Fraction of all steps in which the learning rate rises.
WARMUP = 0.05
# Sections of the command's help.
OPTIONS, STUDENT, OBJECTIVES = "Options", "Student", "Further objectives"
# The options of recipes whose values are lists.
LISTS = ("corpus", "exclude", "labelled")
# Maximum bytes of a recipe: TOML takes quadratic time to read names of many parts.
LARGEST_RECIPE = 30_000


@documented
@dataclass(frozen=True)
class ContextualizerOptions:
    """Options of a Contextualizer's architecture, apart from its dimension."""

    steps: int = option(3, "Number of steps K.", least=1)
    rank: int | None = option(
        None, "Rank u of the attention, 64 by default; a model to start from keeps this many heads, or all.", least=1
    )
    positions: Literal["none", "relative", "absolute"] = option("none", "Position weights.")
    scale: Literal["mean", "sum"] = option("mean", "Position weights average 1 or sum to 1.")
    initial_context: Literal["ones", "learned", "uniform"] = option("ones", "The context c^0.")

    def __post_init__(self) -> None:
        require_valid(self)


# The options of the paper's Contextualizer, and the default dimension of any encoder from scratch.
PAPER = ContextualizerOptions(steps=5, rank=260, positions="absolute", scale="sum")
DIMENSION = 128


@documented
@dataclass(frozen=True)
class SupervisedOptions:
    """Options of the training of an encoder and its head. The defaults are the paper's protocol.

    Raises:
        InputError: a value has the wrong type or is out of range.
    """

    epochs: int = option(
        10, "Passes over the training texts; each run ends with the weights of its best epoch.", least=1
    )
    batch_size: int = option(32, "Texts per batch.", least=1)
    learning_rate: float = option(1e-4, "Adam's learning rate, constant.", above=0)
    token_dropout: float = option(0.0, "Fraction of tokens dropped during training.", least=0, below=1)
    head: Literal["zeros", "random", "probe"] | None = option(
        None,
        "Initial weights of the head: zeros, random, or probe (a linear probe of the initial embeddings).",
        default_is="probe; from scratch zeros for the Contextualizer, random for other encoders",
    )
    valid_share: float = option(
        0.1, "Fraction of the texts to hold out if there are no validation texts.", above=0, below=1, command=False
    )
    seed: int = option(0, "Seed of the split, the order and the initial weights.", least=0, below=2**32)
    like_length: bool = option(
        False,
        "Batch texts of similar length: several times faster for recurrent systems if lengths differ.",
        command=False,
    )
    runs: int = option(
        1,
        "Number of trainings whose weights are averaged. Each reads the texts in another order and, without --valid, "
        "holds out another part. Not from scratch.",
        least=1,
    )

    def __post_init__(self) -> None:
        require_valid(self)

    def of_encoder(self, encoder: SentenceTransformer) -> SupervisedOptions:
        """Return these options with the encoder's own initial head, unless they name a head."""
        own: Any = getattr(encoder[0], "first_head", "random")
        return self if self.head else replace(self, head=own)

    def seed_of(self, run: int) -> int:
        """Return the seed of a run (runs count from 0). The first run has ``seed`` itself."""
        return (self.seed + 7919 * run) % 2**32


# The defaults for an encoder that is already trained. They were chosen on topics, genres and reviews that are in no
# evaluation set, see docs/default-model.md. The weights of the runs are averaged (Wortsman et al. 2022, arXiv
# 2203.05482), and the head is initialised as a linear probe (Kumar et al. 2022, arXiv 2202.10054).
FINE_TUNING = SupervisedOptions(epochs=4, batch_size=64, learning_rate=1e-3, head="probe", runs=5)
# Passing any of these to a TextClassifier trains its encoder too.
OF_TRAINING = ("epochs", "batch_size", "learning_rate", "token_dropout", "runs")


@documented
@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A request to train on labelled files.

    ``OUTPUT.partial`` next to the output holds the state of an interrupted run.
    """

    file: str | Path
    output: Path
    options: SupervisedOptions | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = option(
        None,
        "Weights of the classes in the loss by label; balanced weighs rare classes as much as frequent ones.",
        command=False,
    )
    architecture: Mapping[str, Any] | None = option(None, "Options of an encoder from scratch.", command=False)
    text_field: Named = option(None, "The field of tables that holds the text; several are joined.", command=False)
    label_field: str | None = option(None, "The field of tables that holds the label.", command=False)
    encoding: str | None = option(
        None, "The encoding of the text, e.g. cp1252.", metavar="NAME", default_is="UTF-8, or detected"
    )
    valid: str | None = option(None, "Labelled texts to choose the best epoch.", default_is="10 % of TRAIN, held out")
    test: str | None = option(None, "Also report precision, recall and F1 on these labelled texts.")
    cv: int | None = option(
        None, "Also report these for each text of TRAIN, by N-fold cross-validation.", least=2, metavar="N"
    )
    skip_empty: bool = option(False, "Leave out rows without a label, and list them.")
    start: str | None = option(
        None,
        "Start from this model; scratch: from random weights, with the paper's options.",
        flag="--from",
        metavar="MODEL",
        default_is="the default model; with --encoder, scratch",
    )
    frozen: bool | None = option(
        None,
        "Leave the encoder as it is and fit only the head, in seconds.",
        default_is="unless an option of the training is given",
    )
    words: bool = option(True, "Classify by words and pairs of words too, not only by meaning.")
    multi_label: bool = option(False, "A text may have several labels, separated by commas, or none.")
    store: Literal["int8", "float32"] = option(
        "int8", "Precision in which the token table of a trained encoder is saved; float32 takes four times the size."
    )
    encoder: str | None = option(None, "The system to train from scratch.", command=False)
    tokenizer: str | None = option(
        None, "A tokenizer.json for a model from scratch; without one, a vocabulary is learned from TRAIN."
    )
    vocabulary_size: int = option(16_000, "Maximum number of entries of a learned vocabulary.", least=3)
    overwrite: bool = option(False, "Replace the model in OUT, once the new one is complete.")
    device: str | None = option(None, "As in sentence-transformers, e.g. cpu or cuda.", metavar="NAME")

    def __post_init__(self) -> None:
        require_valid(self)
        if self.encoder is not None and self.start not in (None, SCRATCH):
            raise InputError(
                f"an encoder named {quoted(self.encoder)} is trained from scratch; leave out the model to start from"
            )
        if self.frozen and self.origin is None:
            raise InputError("an encoder from scratch cannot be frozen; name a trained model with --from")
        if self.store == "float32" and not self.trains_encoder:
            raise InputError("store is for an encoder that is trained; leave it out: a frozen one is saved as it is")

    @property
    def origin(self) -> str | None:
        """The model to start from; None: from scratch."""
        if self.start is None:
            return "default" if self.encoder is None else None
        return None if self.start == SCRATCH else self.start

    @property
    def trains_encoder(self) -> bool:
        """Whether the encoder is trained, and not only a head over it."""
        return self.origin is None or (self.options is not None if self.frozen is None else not self.frozen)

    @property
    def reads_words(self) -> bool:
        """Whether the classifier reads words. From scratch it does not, as in the paper's protocol."""
        return self.words and self.origin is not None

    @property
    def scratch_options(self) -> dict[str, Any]:
        """The options of an encoder from scratch: those given, and the paper's for all others."""
        own = vars(PAPER) if self.encoder in (None, "contextualizer") else {}
        return {"dimension": DIMENSION, **own, **(self.architecture or {})}

    @property
    def training(self) -> SupervisedOptions:
        """The options of the training: those given, or the defaults for a trained encoder or one from scratch."""
        return self.options or (SupervisedOptions() if self.origin is None else FINE_TUNING)


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
    taught_label_weight: float = option(
        0.0, "Loss weight: predict the labels that each teacher's embeddings give.", least=0, section=OBJECTIVES
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

    def of_training(self) -> dict[str, Any]:
        """Return only the options of the training, by name."""
        return {known.name: getattr(self, known.name) for known in fields(DistillationOptions)}

    def label_dimensions(self, dimension: int, spare: int) -> int:
        """Return from how many of the last dimensions labels and genres are predicted."""
        if self.labels_from == "spare" and not spare:
            raise InputError("labels_from='spare' needs spare_dimensions above 0, got 0; set both")
        return spare if self.labels_from == "spare" else dimension

    def for_texts(self, texts: int) -> Self:
        """Return these options; if ``held_out`` is None, set it for this number of texts."""
        return self if self.held_out is not None else replace(self, held_out=min(MOST_HELD_OUT, max(1, texts // 10)))

    def trained_on(self, texts: int, excluded: int = 0) -> int:
        """Return how many texts are neither held out nor excluded; raise an InputError for fewer than two batches."""
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

    files: Sequence[str | Path] = option(meaning="Text files, plain or gzip, with a sentence per line or row.")
    texts: int | None = option(None, "About how many of their texts to use, spread over all files; None: all.", least=1)
    passage_lines: int = option(1, "Above 1, join consecutive lines into passages of 2 to this many lines.", least=1)
    span_words: int = option(0, "Above 0, cut each text to a span of 1 to this many words.", least=0)
    fair: bool = option(
        False,
        "Order the texts of all files so that every prefix is a fair sample; files may then also hold "
        "labelled texts (``.tsv``) or pairs (``.jsonl``).",
    )
    most_words: int | None = option(None, "In a fair source, leave out texts with more words.", least=1)
    second_texts: int = option(0, "About how many of its first texts the second teacher embeds as well.", least=0)
    first_words: int | None = option(None, "In a fair source, cut the texts of pairs to this many words.", least=1)
    cloze: bool = option(
        False, "In a fair source of texts, pair a span of each passage's middle line with the passage's other lines."
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
class DistillationJob(DistillationOptions):
    """A request to distil a model: sources, output and all options.

    ``OUTPUT.partial`` next to the output holds the state of an interrupted run.
    """

    sources: Sequence[Source]
    output: Path
    encoder: str = option("contextualizer", "The system to train.", command=False)
    encoder_options: Mapping[str, Any] | None = option(None, "Options of the system.", command=False)
    teacher: str = option(
        meaning="Any SentenceTransformer: a folder, or a name on the hub; minilm is all-MiniLM-L6-v2.",
        section=OPTIONS,
        metavar="MODEL",
    )
    exclude: Sequence[str | Path] = option(
        (),
        "Never train on the texts in this file, in any of its columns, nor on their labels. They still count for the "
        "vocabulary.",
        section=OPTIONS,
    )
    cache: Path | None = option(
        None, "Store the teacher's embeddings here.", section=OPTIONS, metavar="DIR", default_is="OUT.teacher"
    )
    overwrite: bool = option(False, "Replace the model in OUT, once the new one is complete.", section=OPTIONS)
    start: str | None = option(
        None, "Start from this model, with its vocabulary and sizes.", section=STUDENT, flag="--from", metavar="MODEL"
    )
    start_share: float = option(
        0.5,
        "Share of the --from model's weights when they are averaged with the trained weights; above 0, the new model "
        "forgets less of what the teacher does not teach.",
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
    validation: str | None = option(None, "Pairs to score after each epoch: score<TAB>text<TAB>text.")
    teacher_dtype: Literal["float32", "bfloat16"] = option("float32", "Precision in which the teacher computes.")
    device: str | None = option(
        None, "Device of teachers and student, e.g. cuda.", metavar="NAME", default_is="the student on the CPU"
    )
    labelled: Sequence[str | Path] = option(
        (), "Also learn from labelled texts: label<TAB>text, or a table.", section=OBJECTIVES
    )
    skip: str | None = option(
        None, "JSON file that names lines of the labelled files to leave out.", section=OBJECTIVES, metavar="FILE.json"
    )
    second_teacher: str | None = option(
        None,
        "Another teacher, which embeds the second_texts of a recipe's sources.",
        section=OBJECTIVES,
        metavar="MODEL",
    )
    text_field: Named = option(None, "The field of tables that holds the text; several are joined.", command=False)
    label_field: str | None = option(None, "The field of tables that holds the label.", command=False)
    progress: bool = option(True, "Show progress on standard error.", command=False)

    def __post_init__(self) -> None:
        require_valid(self)
        require_spare(self.spare_dimensions, self.dimension)
        if self.start is not None and self.tokenizer is not None:
            raise InputError("--from and --tokenizer cannot be combined: the model has its own vocabulary")
        if self.second_teacher is not None and not any(source.second_texts for source in self.sources):
            raise InputError("a second teacher needs texts; set second_texts for a source of the recipe")
        if self.taught_label_weight > 0 and not self.labelled:
            raise InputError("taught_label_weight needs labelled files; give them or leave it out")
        self.label_dimensions(self.dimension, self.spare_dimensions)


def require_spare(spare: int, dimension: int) -> None:
    """Raise an InputError unless at least one dimension is left for the teacher."""
    if not 0 <= spare < dimension:
        raise InputError(f"spare_dimensions must be in 0..{dimension - 1} for dimension {dimension}, got {spare}")


def read_recipe(path: Path, names: set[str]) -> dict[str, Any]:
    """Return the options of a recipe.

    A recipe is a TOML file with lines ``name = value``, tables ``[[sources]]`` with ``files`` and other options of
    :class:`.Source`, and a table ``[encoder_options]`` with options of the system. ``names`` are all known options.
    """
    try:
        if (size := path.stat().st_size) > LARGEST_RECIPE:
            raise InputError(f"{path}: a recipe must have at most {LARGEST_RECIPE:,} bytes, got {size:,}")
        recipe: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not TOML ({error})") from None

    def require_strings(named: str, value: Any) -> None:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{path}: {named} must be a list of strings, got {quoted(value)}")

    for name, value in recipe.items():
        if name not in names:
            raise unknown_name(f"option of {path}", name, names)
        if name == "sources":
            if not isinstance(value, list) or not all(isinstance(source, Mapping) for source in value):
                raise InputError(f"{path}: sources must be tables [[sources]], got {quoted(value)}")
            for source in value:
                known = [field.name for field in declared(Source)]
                for option in source:
                    if option not in known:
                        raise unknown_name(f"option of a source in {path}", option, known)
                if "files" not in source:
                    raise InputError(f"{path}: each source must have files; add files = [...]")
                require_strings("files of a source", source["files"])
                try:
                    Source(**source)
                except InputError as error:
                    raise InputError(f"{path}: {error}") from None
        elif name in LISTS:
            require_strings(name, value)
        elif name == "encoder_options":
            if not isinstance(value, Mapping):
                raise InputError(f"{path}: {name} must be a table [encoder_options], got {quoted(value)}")
        elif isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InputError(f"{path}: {name} must be a string or a number, got {quoted(value)}")
    return recipe
