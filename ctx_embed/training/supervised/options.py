"""The options of a training from labels, declared once for Python and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctx_embed.errors import InputError
from ctx_embed.options import documented, option, require_valid
from ctx_embed.training.options import ContextualizerOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SCRATCH = "scratch"
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
        0.1, "Fraction of the texts held out for validation without validation texts.", above=0, below=1, command=False
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
        """Return these options with the encoder's own initial head unless they name one."""
        from ctx_embed.modules.token_encoder import TokenEncoder

        own: Any = getattr(encoder[0], "first_head", TokenEncoder.first_head)
        return self if self.head else replace(self, head=own)

    def seed_of(self, run: int) -> int:
        """Return the seed of a run (runs count from 0). The first run has ``seed`` itself."""
        return (self.seed + 7919 * run) % 2**32


# The defaults for an encoder that is already trained. They were chosen on topics, genres and reviews that are in no
# evaluation set, see docs/default-model.md. The weights of the runs are averaged (Wortsman et al. 2022, arXiv
# 2203.05482), and the head is initialised as a linear probe (Kumar et al. 2022, arXiv 2202.10054).
FINE_TUNING = SupervisedOptions(epochs=4, batch_size=64, learning_rate=1e-3, head="probe", runs=5)


@documented
@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A request to train on labelled files.

    ``OUTPUT.partial`` next to the output holds the state of an interrupted run.

    Raises:
        InputError: a value has the wrong type or is out of range, or options cannot be combined.
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
    text_field: str | None = option(None, "The field of tables that holds the text.", command=False)
    label_field: str | None = option(None, "The field of tables that holds the label.", command=False)
    encoding: str | None = option(
        None, "The encoding of the text, e.g. cp1252.", metavar="NAME", default_is="UTF-8, or detected"
    )
    valid: str | None = option(None, "Labelled texts that choose the epoch.", default_is="10 % of TRAIN, held out")
    test: str | None = option(None, "Also report precision, recall and F1 on these labelled texts.")
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
    words: bool = option(True, "Read words and pairs of words beside the meaning.")
    multi_label: bool = option(False, "A text may have several labels, separated by commas, or none.")
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
                f"an encoder named {self.encoder!r} is trained from scratch; leave out the model to start from"
            )
        if self.frozen and self.origin is None:
            raise InputError("an encoder from scratch cannot be frozen; name a trained model with --from")

    @property
    def origin(self) -> str | None:
        """The model to start from; None: from scratch."""
        if self.start is None:
            return "default" if self.encoder is None else None
        return None if self.start == SCRATCH else self.start

    @property
    def trains_encoder(self) -> bool:
        """Whether the encoder is trained, not only a head over it."""
        return self.origin is None or (self.options is not None if self.frozen is None else not self.frozen)

    @property
    def reads_words(self) -> bool:
        """Whether the classifier reads words: not from scratch, which is the paper's protocol."""
        return self.words and self.origin is not None

    @property
    def scratch_options(self) -> dict[str, Any]:
        """The options of an encoder from scratch, the paper's unless they are given."""
        own = vars(PAPER) if self.encoder in (None, "contextualizer") else {}
        return {"dimension": DIMENSION, **own, **(self.architecture or {})}

    @property
    def training(self) -> SupervisedOptions:
        """The options of the training: those given, or the defaults for a trained encoder or one from scratch."""
        return self.options or (SupervisedOptions() if self.origin is None else FINE_TUNING)
