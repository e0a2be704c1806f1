"""Packed tokens as padded groups of documents of similar length, for operations that need padded tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Maximum token positions of a group: its intermediate values then stay in the cache.
GROUP_TOKENS = 8192
# A group's shortest document has at least this fraction of the tokens of its longest, so there is little padding.
LIKE_LENGTH = 0.75


class Group(NamedTuple):
    """Documents of similar length and the positions of their tokens.

    Args:
        documents: (G,) their indices.
        places: (G, L) the index of each token among all packed ones; any valid index where ``mask`` is False.
        mask: (G, L) True for tokens, False for padding.
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
    """Yield groups that together hold each document with tokens once.

    Args:
        lengths: tokens in each document.
        device: device of the groups' tensors.
        group_tokens: maximum number of token positions in a group, unless a single document has more.
    """
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


def rows_of_tokens(parts: list[Tensor], groups: list[Group], tokens: Tensor) -> Tensor:
    """Return the groups' results (G, L, ...) packed like ``tokens``, with their shape and dtype."""
    rows = torch.zeros_like(tokens)
    if not groups:
        return rows
    index = torch.cat([group.places[group.mask] for group in groups])
    return rows.index_copy(
        0, index, torch.cat([part[group.mask] for part, group in zip(parts, groups, strict=True)]).to(rows.dtype)
    )
