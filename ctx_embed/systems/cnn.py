"""A convolutional network over the tokens with max pooling over time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import InputError, require_size
from ctx_embed.systems.attention import groups_of, rows_of_documents
from ctx_embed.systems.encoder import SystemEncoder, TableOptions, require_share


class Convolution(SystemEncoder):
    """A convolutional network (CNN) with max pooling: the greatest value of each filter over all windows of the text.

        c_j = relu(F_w [e(w_j); ...; e(w_{j+w-1})] + b_w), widths w of 3, 4 and 5
        sentence embedding = max_j c_j, all widths one after the other

    Each text is read with w - 1 zero vectors on both sides, so that it has n + w - 1 windows however short it is.
    Shapes: F_w (filters, w m); the embedding (widths * filters,), or (output_dimension,) after a linear map.
    Parameters: filters (m sum(w) + widths). Cost: O(n m filters sum(w)). A text without tokens is embedded as zeros, or
    as the bias of the linear map. sentence-transformers' own CNN module takes odd widths only, and padding reaches a
    text's last windows.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.
        filters: number for each width.
        widths: the windows' widths in tokens.
        dropout: rate on the embedding, in training.
        output_dimension: features after a linear map; None: no map.

    Source: Kim (2014), arXiv 1408.5882.
    """

    config_file_name = "cnn_config.json"
    weight_axes = ("share", "token")

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        filters: int = 100,
        widths: Sequence[int] = (3, 4, 5),
        dropout: float = 0.5,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
            raise InputError(f"widths must be a list of positive integers, got {widths!r}")
        for width in widths:
            require_size("each of widths", width)
        require_size("filters", filters)
        require_share("dropout", dropout)
        self.filters = filters
        self.widths = list(widths)
        self.dropout = dropout
        self.convolutions = nn.ModuleList(
            nn.Conv1d(dimension, filters, width, padding=width - 1) for width in self.widths
        )
        self.begin_output(output_dimension)

    @property
    def natural_dimension(self) -> int:
        """The number of features of all filters."""
        return len(self.widths) * self.filters

    def _greatest(self, tokens: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return for each width the greatest values over windows and the windows that hold them, (G, filters) each.

        Args:
            tokens: (G, L, m), zero where ``mask`` (G, L) is False.
        """
        found = []
        for convolution, width in zip(self.convolutions, self.widths, strict=True):
            values = convolution(tokens.transpose(1, 2))
            # Only the n + w - 1 windows that start before the text's end count; w - 1 of them start before the text.
            counts = F.pad(mask, (width - 1, 0), value=True)[:, None]
            found.append(tuple(values.masked_fill(~counts, -torch.inf).max(2)))
        return found

    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the greatest values, (B, widths * filters); zero for a text without tokens."""
        tokens = self.embedding(ids)
        groups = list(groups_of(lengths, ids.device))
        parts = [
            torch.cat([F.relu(values) for values, _ in self._greatest(group.pad(tokens), group.mask)], 1)
            for group in groups
        ]
        features = rows_of_documents(parts, groups, len(lengths), tokens, (self.natural_dimension,))
        return F.dropout(features, self.dropout, self.training)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return for each text the share of filters whose greatest window contains each token, (1, n).

        A window's share is divided evenly among its tokens.
        """
        found = []
        for tokens, n in zip(self.embedding(ids).split(lengths), lengths, strict=True):
            shares = tokens.new_zeros(1, n)
            found.append(shares)
            if not n:
                continue
            mask = torch.ones(1, n, dtype=torch.bool, device=tokens.device)
            for (_, windows), width in zip(self._greatest(tokens[None], mask), self.widths, strict=True):
                wins = torch.bincount(windows[0], minlength=n + width - 1)
                # Window j holds those of the tokens j - w + 1 .. j that exist.
                begin = torch.arange(n + width - 1, device=tokens.device) - width + 1
                inside = (begin + width).clamp(max=n) - begin.clamp(min=0)
                each = wins.to(tokens.dtype) / inside
                shares += each.unfold(0, width, 1).sum(1)
            shares /= self.natural_dimension
        return found
