"""A bi-directional GRU with max pooling over time."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import require_size
from ctx_embed.systems.attention import segment_max
from ctx_embed.systems.encoder import SystemEncoder, TableOptions, offsets_of, recurrent_states


class BiGru(SystemEncoder):
    """A bi-directional GRU with max pooling: the greatest value of each feature over the text.

        h_t = [GRU_forward(h_{t-1}, e(w_t)); GRU_backward(h_{t+1}, e(w_t))]
        sentence embedding = max_t h_t, feature by feature

    Shapes: h_t (2 hidden,); the embedding likewise, or (output_dimension,) after a linear map. Parameters: 6 hidden (m
    + hidden + 2). Cost: O(n hidden (m + hidden)), one token after the other. A text without tokens is embedded as
    zeros, or as the bias of the linear map. sentence-transformers' own recurrent module is an LSTM.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.
        hidden: units per direction; None: m.
        output_dimension: features after a linear map; None: no map.

    Source: Cho et al. (2014); Conneau et al. (2017), arXiv 1705.02364, for the pooling.
    """

    config_file_name = "bigru_config.json"
    weight_axes = ("share", "token")

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        hidden: int | None = None,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        hidden = dimension if hidden is None else hidden
        require_size("hidden", hidden)
        self.hidden = hidden
        self.recurrent = nn.GRU(dimension, hidden, bidirectional=True)
        self.begin_output(output_dimension)

    @property
    def natural_dimension(self) -> int:
        """The number of features of both directions."""
        return 2 * self.hidden

    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the greatest value of each feature, (B, 2 hidden); zero for a text without tokens."""
        offsets = offsets_of(lengths, ids.device)
        return segment_max(recurrent_states(self.recurrent, self.embedding(ids), offsets), offsets)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return for each text the share of features whose greatest value falls on each token, (1, n)."""
        states = recurrent_states(self.recurrent, self.embedding(ids), offsets_of(lengths, ids.device))
        return [
            torch.bincount(part.argmax(0), minlength=len(part))[None].to(part.dtype) / part.shape[1]
            if len(part)
            else part.new_zeros(1, 0)
            for part in states.split(lengths)
        ]
