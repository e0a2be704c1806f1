"""Self-attention over the token embeddings themselves, without parameters and with query, key and value maps."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.systems.attention import groups_of, segment_mean, self_attention, self_attention_weights
from ctx_embed.systems.encoder import TableOptions, offsets_of


class SelfAttention(TokenEncoder):
    """Self-attention without parameters: each token becomes a mean of similar tokens, and these are averaged.

        Y = softmax(X X^T) X, the softmax over each row
        sentence embedding = sum_t Y_t / n

    Shapes: X, Y (n, m). Parameters: none besides the table. Cost: O(n^2 m). A text without tokens is embedded as zeros.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.

    Source: Vaswani et al. (2017), arXiv 1706.03762, without its maps and its scale.
    """

    config_file_name = "self_attention_config.json"
    ids_may_be_renumbered = True
    weight_axes = ("token", "token")

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the mean of Y of packed documents, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        x = self.embedding(ids)[:, None]
        y = self_attention(x, x, x, list(groups_of(lengths, ids.device)), scale=1.0)[:, 0]
        return segment_mean(y, offsets_of(lengths, ids.device)).to(y.dtype)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return softmax(X X^T) of each text, (n, n); row i is what token i looks at."""
        return [self_attention_weights(x, x, 1.0)[0] for x in self.embedding(ids)[:, None].split(lengths)]


class ParametricSelfAttention(SelfAttention):
    """Self-attention with query, key and value maps and a tanh before the output map.

        Y = tanh(softmax(Q K^T / sqrt(m)) V) W_o^T, with Q = X W_q^T, K = X W_k^T, V = X W_v^T
        sentence embedding = sum_t Y_t / n

    Shapes: X, Q, K, V, Y (n, m); W_q, W_k, W_v, W_o (m, m). Parameters: 4 m^2. Cost: O(n m^2 + n^2 m). A text without
    tokens is embedded as zeros.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as those of :class:`ctx_embed.Contextualizer`.

    Source: Vaswani et al. (2017), arXiv 1706.03762, with one head.
    """

    config_file_name = "self_attention_parametric_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        self.query, self.key, self.value, self.out = (nn.Linear(dimension, dimension, bias=False) for _ in range(4))

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set the value and output maps to the identity: embeddings start as the tanh of weighted means."""
        for linear in (self.value, self.out):
            nn.init.eye_(linear.weight)

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the mean of Y of packed documents, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        x = self.embedding(ids)
        query, key, value = (linear(x)[:, None] for linear in (self.query, self.key, self.value))
        groups = list(groups_of(lengths, ids.device))
        y = self.out(torch.tanh(self_attention(query, key, value, groups, self.dimension**-0.5)[:, 0]))
        return segment_mean(y, offsets_of(lengths, ids.device)).to(y.dtype)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return softmax(Q K^T / sqrt(m)) of each text, (n, n); row i is what token i looks at."""
        x = self.embedding(ids)
        query, key = (linear(x)[:, None].split(lengths) for linear in (self.query, self.key))
        return [self_attention_weights(q, k, self.dimension**-0.5)[0] for q, k in zip(query, key, strict=True)]
