"""Packed tokens in padded groups of documents of like length, for what a product over packed tokens cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Token places of a group: its intermediate values then stay in cache.
GROUP_TOKENS = 8192
# A group's shortest document has at least this share of its longest, so that most places hold a token.
LIKE_LENGTH = 0.75


class Group(NamedTuple):
    """Documents of like length and where their tokens stand.

    Args:
        documents: (G,) their numbers.
        places: (G, L) the place of each token among all packed ones; any valid place where ``mask`` is False.
        mask: (G, L) True where there is a token.
    """

    documents: Tensor
    places: Tensor
    mask: Tensor

    @property
    def is_full(self) -> bool:
        """Whether every place holds a token."""
        return bool(self.mask.all())

    def pad(self, tokens: Tensor) -> Tensor:
        """Rows of packed tokens (N, ...) as (G, L, ...), zero where there is no token."""
        padded = tokens[self.places]
        return padded if self.is_full else padded * self.mask.view(*self.mask.shape, *[1] * (tokens.dim() - 1))


def groups_of(lengths: list[int], device: torch.device) -> Iterator[Group]:
    """Groups that hold each document of at least one token once.

    Args:
        lengths: of the documents, in tokens.
        device: of the groups' tensors.
    """
    length = torch.tensor(lengths, dtype=torch.int64)
    start = length.cumsum(0) - length
    order = length.argsort(descending=True, stable=True)
    order = order[: int((length > 0).sum())]
    while len(order):
        longest = int(length[order[0]])
        alike = int((length[order] >= LIKE_LENGTH * longest).sum())
        documents, order = order.split_with_sizes(_head(alike, len(order), max(1, GROUP_TOKENS // longest)))
        within = torch.arange(longest)
        mask = within < length[documents, None]
        places = start[documents, None] + torch.where(mask, within, 0)
        yield Group(documents.to(device), places.to(device), mask.to(device))


def _head(alike: int, count: int, most: int) -> list[int]:
    taken = min(alike, most)
    return [taken, count - taken]


def rows_of_documents(
    parts: list[Tensor], groups: list[Group], count: int, like: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """The groups' results (G, *shape) as rows of ``count`` documents, zero for those without tokens."""
    rows = like.new_zeros(count, *shape)
    if not groups:
        return rows
    return rows.index_copy(0, torch.cat([group.documents for group in groups]), torch.cat(parts).to(rows.dtype))


def rows_of_tokens(parts: list[Tensor], groups: list[Group], tokens: Tensor) -> Tensor:
    """The groups' results (G, L, ...) packed as ``tokens`` are, and in their shape and dtype."""
    rows = torch.zeros_like(tokens)
    if not groups:
        return rows
    index = torch.cat([group.places[group.mask] for group in groups])
    return rows.index_copy(
        0, index, torch.cat([part[group.mask] for part, group in zip(parts, groups, strict=True)]).to(rows.dtype)
    )
