"""Explanations of a text: the weights of its tokens, and how a Contextualizer's context moves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model.embedder import Ids, PackedContextualizer
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.texts import require_explainable, well_formed
from ctx_embed.vectors import unit_rows

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Characters of the text in the repr of an explanation.
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ContextPath:
    """How a Contextualizer's context moved from c^0 to c^K.

    Attributes:
        context_norms: ||c^k||, k = 0..K.
        correction_norms: ||z^k||, k = 1..K.
        to_previous: cos(c^{k-1}, c^k), k = 1..K.
        to_last: cos(c^k, c^K), k = 0..K.
    """

    context_norms: tuple[float, ...]
    correction_norms: tuple[float, ...]
    to_previous: tuple[float, ...]
    to_last: tuple[float, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The weights that a model gives the tokens of a text.

    Attributes:
        text: the text.
        tokens: n vocabulary entries, including those of the model's default prompt.
        weights: float32; the last axis runs over the tokens, see :func:`ctx_embed.attention_weights`.
        axes: the names of the axes: ``("step", "token")`` for a Contextualizer, ``("head", "token")`` for encoders with
            heads.
        path: the path of a Contextualizer's context; None for other encoders, and if the model cannot read the text.
    """

    text: str
    tokens: tuple[str, ...]
    weights: NDArray[np.float32]
    axes: tuple[str, ...]
    path: ContextPath | None = None

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= SHOWN_CHARACTERS else f"{self.text[: SHOWN_CHARACTERS - 1]}…"
        return f"Explanation({shown!r}, {len(self.tokens)} tokens, axes {self.axes})"

    def _repr_html_(self) -> str:
        from ctx_embed.explanations.page import section

        return well_formed(section(self))

    @property
    def between_tokens(self) -> bool:
        """Whether each token attends to all tokens with its own weights (n, n), as in self-attention."""
        return self.axes[-2:] == ("token", "token")

    def parts(self) -> list[tuple[str, NDArray[np.float32]]]:
        """Return each step or head by name (``layer 1, head 2``) with its weights: (n,), or (n, n) between tokens.

        Self-attention without heads is one part, ``attention``.
        """
        leading = len(self.axes) - 1 - self.between_tokens
        names = self.axes[:leading]
        return [
            (
                ", ".join(f"{name} {i + 1}" for name, i in zip(names, place, strict=True)) or "attention",
                self.weights[place],
            )
            for place in product(*map(range, self.weights.shape[:leading]))
        ]

    def rows(self) -> list[tuple[str, NDArray[np.float32]]]:
        """Return the parts with (n,) weights each; weights between tokens are averaged over the attending tokens."""
        if not self.between_tokens:
            return self.parts()
        return [(name, weights.mean(0) if len(weights) else weights.sum(0)) for name, weights in self.parts()]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        path = None if self.path is None else {name: list(values) for name, values in vars(self.path).items()}
        weights = self.weights.tolist()
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "axes": list(self.axes),
            "weights": weights,
            "path": path,
        }


@dataclass(frozen=True, eq=False)
class Contributions:
    """The exact contribution of each token to each update z^k of a Contextualizer.

    Attributes:
        tokens: n vocabulary entries.
        vectors: (n, K, m) float64; their sum over the tokens plus ``bias`` is ``corrections``.
        bias: (K, m) the biases of the layer normalisations; zero for a text without tokens.
        corrections: (K, m) the updates z^k = c^k - c^{k-1}.
        first: (m,) c^0. The sentence embedding before normalisation is c^K = ``first + corrections.sum(0)``.
    """

    tokens: tuple[str, ...]
    vectors: NDArray[np.float64]
    bias: NDArray[np.float64]
    corrections: NDArray[np.float64]
    first: NDArray[np.float64]


def explain(model: SentenceTransformer | Embedder, text: str) -> Explanation:
    """Return the weights of a text's tokens. The result is empty if the model knows none of them.

    Args:
        model: an Embedder, or a SentenceTransformer whose first module is a system of ctx_embed.
        text: at most 20,000 characters; the model's default prompt is added, as by ``encode``.

    Raises:
        InputError: the model's first module is not a system of ctx_embed or has no weights; the text is not a string or
            is too long.
    """
    require_explainable(text)
    read = _contextualizer(model, text)
    if read is None:
        from ctx_embed.systems.attention import attention_weights

        (found,) = attention_weights(cast("SentenceTransformer", model), [text])
        return Explanation(text, found.tokens, found.weights, found.axes)
    contextualizer, tokenizer, ids = read
    _, shares, contexts = contextualizer.contributions(ids)
    path = None
    if len(ids):
        units = unit_rows(contexts)
        path = ContextPath(
            tuple(np.linalg.norm(contexts, axis=1).tolist()),
            tuple(np.linalg.norm(np.diff(contexts, axis=0), axis=1).tolist()),
            tuple((units[:-1] * units[1:]).sum(1).tolist()),
            tuple((units @ units[-1]).tolist()),
        )
    return Explanation(text, _entries(tokenizer, ids), shares.astype(np.float32), ("step", "token"), path)


def contributions(model: SentenceTransformer | Embedder, text: str) -> Contributions:
    """Return what each token of a text adds to each update z^k, as vectors (8 n K m bytes).

    A token's share in ``explain(model, text).weights`` is the projection of its vector on the sum of all, relative to
    the length of that sum.

    Args:
        model: an Embedder, or a SentenceTransformer whose first module is a Contextualizer.
        text: at most 20,000 characters; the model's default prompt is added, as by ``encode``.

    Raises:
        InputError: the model's first module is not a Contextualizer, or the text is too long.
    """
    require_explainable(text)
    read = _contextualizer(model, text)
    if read is None:
        first = type(cast("SentenceTransformer", model)[0]).__name__
        raise InputError(f"the model's first module must be a Contextualizer, got {first}")
    contextualizer, tokenizer, ids = read
    vectors, _, contexts = contextualizer.contributions(ids)
    bias = contextualizer.steps.bias.astype(np.float64)
    return Contributions(
        _entries(tokenizer, ids),
        np.ascontiguousarray(vectors.transpose(1, 0, 2)),
        bias if len(ids) else np.zeros_like(bias),
        np.diff(contexts, axis=0),
        contexts[0],
    )


def _contextualizer(
    model: SentenceTransformer | Embedder, text: str
) -> tuple[PackedContextualizer, TextTokenizer, Ids] | None:
    """Return a model's Contextualizer in NumPy, its tokenizer, and the ids of a text; None for another system."""
    if isinstance(model, Embedder):
        return model.contextualizer, model.text_tokenizer, model.tokens([text])[0]
    from ctx_embed.modules import Contextualizer
    from ctx_embed.systems.attention import token_encoder, token_ids

    module = token_encoder(model)
    if not isinstance(module, Contextualizer):
        return None
    return module.without_torch(), module.text_tokenizer, token_ids(model, text).cpu().numpy()


def _entries(tokenizer: TextTokenizer, ids: Ids) -> tuple[str, ...]:
    texts = tokenizer.entry_texts()
    return tuple(texts[token] for token in ids.tolist())
