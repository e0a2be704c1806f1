"""Structured self-attention (SAN): a small perceptron scores each token for each head."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import InputError, require_size
from ctx_embed.systems.attention import attended, groups_of, redundancy, segment_softmax, structured_scores
from ctx_embed.systems.encoder import HeadsEncoder, TableOptions, offsets_of


class StructuredSelfAttention(HeadsEncoder):
    """Structured self-attention (SAN), with a penalty on heads that look at the same tokens.

        A = softmax(W2 tanh(W1 H^T)) over the tokens
        sentence embedding = A H, flattened
        added to the training loss: penalty * ||A A^T - I||_F^2, averaged over the batch's texts

    Shapes: H (n, d); W1 (u, d); W2 (h, u); A (h, n); the embedding (h d,), or (output_dimension,) after a linear map. d
    is m, or 2 hidden. Parameters: u d + h u. Cost: O(n u (d + h) + n h d). A text without tokens is embedded as zeros,
    or as the bias of the linear map.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.
        heads: h.
        attention_dimension: u, the perceptron's units.
        penalty: weight of the penalty; 0: none.
        hidden: units per direction of a bi-GRU whose outputs are H; 0: H is the token embeddings.
        output_dimension: features after a final linear map; None: no map.

    Source: Lin et al. (2017), arXiv 1703.03130, whose H is a bi-LSTM's outputs.
    """

    config_file_name = "san_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        heads: int = 30,
        attention_dimension: int = 350,
        penalty: float = 1.0,
        hidden: int = 0,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, heads=heads, hidden=hidden, **table)
        require_size("attention_dimension", attention_dimension)
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty < float("inf"):
            raise InputError(f"penalty must be a number of at least 0, got {penalty!r}")
        d = self.state_dimension
        self.W1 = nn.Parameter(torch.randn(attention_dimension, d) * d**-0.5)
        self.W2 = nn.Parameter(torch.randn(heads, attention_dimension) * attention_dimension**-0.5)
        self.attention_dimension = attention_dimension
        self.penalty = penalty
        self._regularizer: Tensor | float = 0.0
        self.begin_output(output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return A^T, (N, h), of packed states (N, d)."""
        return segment_softmax(structured_scores(states, self.W1, self.W2), offsets)

    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return A H flattened, (B, h d), zero for a text without tokens; with gradients, also store the penalty."""
        offsets = offsets_of(lengths, ids.device)
        states = self.states(ids, offsets)
        weights = self.token_weights(states, offsets)
        groups = list(groups_of(lengths, ids.device))
        if self.training and torch.is_grad_enabled() and self.penalty:
            self._regularizer = self.penalty * redundancy(weights, lengths, groups)
        return attended(weights, states, lengths, groups).flatten(1)

    def regularizer(self) -> Tensor | float:
        """Return the penalty of the last training batch. A second call returns 0."""
        last, self._regularizer = self._regularizer, 0.0
        return last

    def __getstate__(self) -> dict[str, Any]:
        # Drop the penalty: it belongs to an autograd graph, which is not copied.
        return {**self.__dict__, "_regularizer": 0.0}
