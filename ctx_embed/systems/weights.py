"""Attention weights: which tokens a model looks at, in the terms of each system."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ctx_embed.errors import InputError
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.texts import as_texts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class AttentionWeights:
    """The weights of one text's tokens.

    Attributes:
        tokens: n vocabulary entries; a phrase is its words with spaces between them.
        weights: a float array; its last axis runs over the tokens.
        axes: the names of the axes of ``weights``, such as ``("head", "token")``.
    """

    tokens: tuple[str, ...]
    weights: NDArray[np.float32]
    axes: tuple[str, ...]


def attention_weights(model: SentenceTransformer, texts: Iterable[str]) -> list[AttentionWeights]:
    """Return how much each token of each text contributes to its embedding.

    The meaning of the weights depends on the system; ``axes`` names it. (step, token) for a Contextualizer: the exact
    share of each token in the update z^k, summing to 1, negative where a token works against the others. (head, token)
    for systems with heads, and for the mean, 1/n. (token, token) for self-attention and (layer, head, token, token) for
    Transformers: row i is what token i looks at; these take memory quadratic in the length of the text. (share, token)
    for max pooling (bigru, cnn): the share of the features that each token wins.

    Args:
        model: a SentenceTransformer whose first module is a system of ctx_embed.
        texts: a list, array, series or generator; read with the model's default prompt, as by ``encode``.

    Raises:
        InputError: the model's first module is another or has no attention weights; ``texts`` are not strings.
    """
    texts = as_texts(texts)
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
    """Return the model's first module.

    Raises:
        InputError: it is not a system of ctx_embed.
    """
    module = model[0]
    if not isinstance(module, TokenEncoder):
        raise InputError(
            f"the model's first module must be a system of ctx_embed, got {type(module).__name__}; "
            "see `ctx-embed systems`"
        )
    return module


def token_ids(model: SentenceTransformer, text: str) -> Tensor:
    """Return the ids (n,) of one text, read with the model's default prompt, on the device of its token table."""
    module = token_encoder(model)
    features = module.preprocess([text], prompt=model.prompts.get(model.default_prompt_name or ""))
    return features["input_ids"].flatten().to(module.embedding.weight.device)
