"""Which tokens a model looks at, for each system in its own terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ctx_embed.errors import InputError
from ctx_embed.modules.token_encoder import TokenEncoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class AttentionWeights:
    """The weights of one text's tokens.

    Attributes:
        tokens: n vocabulary entries; a phrase is its words with spaces between them.
        weights: float array whose last axis is the tokens'.
        axes: what its axes are, such as ``("head", "token")``.
    """

    tokens: tuple[str, ...]
    weights: NDArray[np.float32]
    axes: tuple[str, ...]


def attention_weights(model: SentenceTransformer, texts: Sequence[str]) -> list[AttentionWeights]:
    """How much each token of each text counts in its embedding.

    What the weights are depends on the system, as ``axes`` tells: (step, token) of a Contextualizer: the exact share of
    each token in the correction z^k, summing to 1, negative where a token works against the others; (head, token) of
    systems with heads, and of the mean, 1/n; (token, token) of self-attention and (layer, head, token, token) of
    Transformers: row i is what token i looks at; (share, token) of max pooling (bigru, cnn): the share of the features
    that each token wins. Those of a row a token take memory that is quadratic in the text.

    Args:
        model: a SentenceTransformer whose first module is a system of ctx_embed.
        texts: read with the model's default prompt, as by ``encode``.

    Raises:
        InputError: the model's first module is another, or weighs no tokens; ``texts`` is no list of strings.
    """
    if isinstance(texts, str):
        raise InputError("texts is a str, a list of strings is needed: [text]")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {index} is a {type(text).__name__}, a string is needed")
    module = token_encoder(model)
    training = module.training
    module.eval()
    try:
        entries = module.entry_texts()
        found: list[AttentionWeights] = []
        for text in texts:
            ids = token_ids(model, text)
            (weights,) = module.attention_weights(ids, [len(ids)])
            tokens = tuple(entries[token] for token in ids.tolist())
            found.append(AttentionWeights(tokens, weights.float().cpu().numpy(), module.weight_axes))
        return found
    finally:
        module.train(training)


def token_encoder(model: SentenceTransformer) -> TokenEncoder:
    """The model's first module.

    Raises:
        InputError: it is no system of ctx_embed.
    """
    module = model[0]
    if not isinstance(module, TokenEncoder):
        raise InputError(
            f"the model begins with {type(module).__name__}, attention weights are known of ctx_embed's own systems: "
            "see `ctx-embed systems`"
        )
    return module


def token_ids(model: SentenceTransformer, text: str) -> Tensor:
    """The ids (n,) of one text, read with the model's default prompt, on the device of its token table."""
    module = token_encoder(model)
    features = module.preprocess([text], prompt=model.prompts.get(model.default_prompt_name or ""))
    return features["input_ids"].flatten().to(module.embedding.weight.device)
