"""Attention as pure tensor functions over packed tokens, padded in groups if need be, and a model's attention weights.

Dimensions: B documents, N tokens in all, n tokens of one document, m features, h heads. ``offsets`` (B + 1,) holds the
start of each document among the N packed tokens and, last, N; ``lengths`` lists the number of tokens of each document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.errors import InputError
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.second_order import document_ids, segment_sum

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Maximum token positions of a group: its intermediate values then stay in the cache.
GROUP_TOKENS = 8192
# A group's shortest document has at least this fraction of the tokens of its longest, so there is little padding.
LIKE_LENGTH = 0.75


class Group(NamedTuple):
    """Documents (G,) of similar length, and the places (G, L) of their tokens among all packed ones.

    Where ``mask`` (G, L) is False there is padding; the place there is arbitrary but valid.
    """

    documents: Tensor
    places: Tensor
    mask: Tensor

    @property
    def is_full(self) -> bool:
        """Whether every position holds a token."""
        return bool(self.mask.all())

    def pad(self, tokens: Tensor) -> Tensor:
        """Return rows of packed tokens (N, ...) as (G, L, ...), zero for padding."""
        padded = tokens[self.places]
        return padded if self.is_full else padded * self.mask.view(*self.mask.shape, *[1] * (tokens.dim() - 1))


def groups_of(lengths: list[int], device: torch.device, group_tokens: int = GROUP_TOKENS) -> Iterator[Group]:
    """Yield groups of at most ``group_tokens`` positions, or of one document; documents without tokens are in none."""
    length = torch.tensor(lengths, dtype=torch.int64)
    start = length.cumsum(0) - length
    order = length.argsort(descending=True, stable=True)
    order = order[: int((length > 0).sum())]
    while len(order):
        longest = int(length[order[0]])
        alike = int((length[order] >= LIKE_LENGTH * longest).sum())
        taken = min(alike, max(1, group_tokens // longest))
        documents, order = order[:taken], order[taken:]
        within = torch.arange(longest)
        mask = within < length[documents, None]
        places = start[documents, None] + torch.where(mask, within, 0)
        yield Group(documents.to(device), places.to(device), mask.to(device))


def rows_of_documents(
    parts: list[Tensor], groups: list[Group], count: int, like: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """Return the groups' results (G, *shape) as rows of ``count`` documents, zero for those without tokens."""
    rows = like.new_zeros(count, *shape)
    if not groups:
        return rows
    return rows.index_copy(0, torch.cat([group.documents for group in groups]), torch.cat(parts).to(rows.dtype))


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the greatest value (B, d) of each document's rows (N, d); zero for an empty document."""
    documents = document_ids(offsets)[:, None].expand_as(values)
    zeros = values.new_zeros(len(offsets) - 1, values.shape[1])
    return zeros.scatter_reduce(0, documents, values, "amax", include_self=False)


def segment_mean(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the mean (B, d) of each document's rows (N, d), at least in float32; zero for an empty document."""
    mean: Tensor = segment_sum(values, offsets) / offsets.diff()[:, None].clamp(min=1)
    return mean


def segment_softmax(scores: Tensor, offsets: Tensor) -> Tensor:
    """Return the softmax of the scores over the tokens of each document.

    A_{i,j} = exp(s_{i,j}) / sum_i' exp(s_{i',j}), i' over the tokens of i's document; (N, h), at least in float32.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    documents = document_ids(offsets)
    weights = (scores - segment_max(scores.detach(), offsets)[documents]).exp()
    softmax: Tensor = weights / segment_sum(weights, offsets)[documents]
    return softmax


def attended(weights: Tensor, values: Tensor, lengths: list[int], groups: list[Group]) -> Tensor:
    """Return S = A H of each document, (B, h, m), for A^T (N, h) and H (N, m): weighted sums of its tokens."""
    weights = weights.to(values.dtype)
    parts = [group.pad(weights).transpose(1, 2) @ group.pad(values) for group in groups]
    return rows_of_documents(parts, groups, len(lengths), values, (weights.shape[1], values.shape[1]))


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (..., d) scaled to unit length, at least in float32; zeros stay zeros, with a finite gradient."""
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    length = vectors.norm(dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1)


def self_attention(query: Tensor, key: Tensor, value: Tensor, groups: list[Group], scale: float) -> Tensor:
    """Return softmax(scale * Q K^T) V within each document, (N, h, d), in memory that is linear in its length.

    Source: Vaswani et al. (2017), section 3.2.
    """
    parts = []
    for group in groups:
        q, k, v = (group.pad(tensor).transpose(1, 2) for tensor in (query, key, value))
        mask = None if group.is_full else group.mask[:, None, None, :]
        parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2))
    rows = torch.zeros_like(value)
    if not groups:
        return rows
    index = torch.cat([group.places[group.mask] for group in groups])
    return rows.index_copy(
        0, index, torch.cat([part[group.mask] for part, group in zip(parts, groups, strict=True)]).to(rows.dtype)
    )


def self_attention_weights(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return softmax(scale * Q K^T) of one document, (h, n, n) from (n, h, d); row i is what token i looks at."""
    return torch.softmax(scale * torch.einsum("ihd,jhd->hij", query, key), dim=2)


def attention_weights(
    model: SentenceTransformer, texts: Iterable[str]
) -> Iterator[tuple[tuple[str, ...], NDArray[np.float32], tuple[str, ...]]]:
    """Yield the tokens, weights and axes of each text, as :func:`ctx_embed.attention_weights` explains them."""
    module = model[0]
    if not isinstance(module, TokenEncoder):
        raise InputError(
            f"the model's first module must be a system of ctx_embed, got {type(module).__name__}; "
            "see `ctx-embed systems`"
        )
    training = module.training
    module.eval()
    try:
        entries = module.text_tokenizer.entry_texts()
        for text in texts:
            features = module.preprocess([text], prompt=model.prompts.get(model.default_prompt_name or ""))
            ids = features["input_ids"].flatten().to(module.embedding.weight.device)
            (weights,) = module.attention_weights(ids, [len(ids)])
            tokens = tuple(entries[token] for token in ids.tolist())
            yield tokens, weights.float().cpu().numpy(), module.weight_axes
    finally:
        module.train(training)
