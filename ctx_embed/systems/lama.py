"""LAMA: multi-head attention by bilinear forms of low rank, and single-head attention with the full matrix."""

from __future__ import annotations

from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import require_size, unknown_name
from ctx_embed.systems.attention import bilinear_scores, low_rank_scores, segment_mean, segment_softmax
from ctx_embed.systems.encoder import HeadsEncoder, TableOptions

CONTEXTS = ("learned", "mean")


class _AskedByContext(HeadsEncoder):
    """Heads whose scores compare each state with one context c of the text."""

    def begin_context(self, context: str) -> None:
        """Set up c: the mean of the text's states, or a learned vector initialised as the mean state of all entries."""
        if context not in CONTEXTS:
            raise unknown_name("context", context, CONTEXTS)
        self.context = context
        self.c = nn.Parameter(self.mean_state()) if context == "learned" else None

    def context_of(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return c of each document, (B, d), or (d,) if it is learned."""
        return segment_mean(states, offsets).to(states.dtype) if self.c is None else self.c


class Lama(_AskedByContext):
    """Low-rank multi-head attention (LAMA): bilinear forms of low rank between a context and each token.

        e_t = tanh((P^T c) * (Q^T h_t)), divided by ||e_t||_2 over the heads
        A = softmax of e over the tokens, a row a head
        sentence embedding = A H, flattened

    Shapes: H (n, d); P, Q (d, h); c (d,); A (h, n); the embedding (h d,), or (output_dimension,) after a linear map. d
    is m, or 2 hidden. Parameters: 2 h d, and d if the context is learned. Cost: O(n d h). A text without tokens is
    embedded as zeros, or as the bias of the linear map. A rank r above 1 sums the product over r columns of P and Q for
    each head (equation 10); a layer of l units scores tanh(L h_t + b) in place of h_t, so that Q is (l, h r) (equation
    7).

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.
        heads: h.
        context: c: ``mean`` of the text's states, or ``learned``, initialised as the mean of the embeddings.
        rank: r.
        layer: l; 0: no layer.
        hidden: units per direction of a bi-GRU whose outputs are H; 0: H is the token embeddings.
        output_dimension: features after a final linear map; None: no map.

    Source: Mehta, Rangwala & Ramakrishnan (2019), arXiv 1912.00835.
    """

    config_file_name = "lama_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        heads: int = 30,
        context: Literal["mean", "learned"] = "mean",
        rank: int = 1,
        layer: int = 0,
        hidden: int = 0,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, heads=heads, hidden=hidden, **table)
        require_size("rank", rank)
        d = scored = self.state_dimension
        if layer != 0 or isinstance(layer, bool):
            require_size("layer", layer)
            self.scored, scored = nn.Linear(d, layer), layer
        self.rank = rank
        self.layer = layer
        self.P = nn.Parameter(torch.randn(d, heads * rank) * d**-0.5)
        self.Q = nn.Parameter(torch.randn(scored, heads * rank) * scored**-0.5)
        self.begin_context(context)
        self.begin_output(output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return A^T, (N, h), of packed states (N, d)."""
        tokens = torch.tanh(self.scored(states)) if self.layer else states
        scores = low_rank_scores(tokens, self.context_of(states, offsets), self.P, self.Q, offsets, self.rank)
        return segment_softmax(scores, offsets)


class LamaCtx(Lama):
    """:class:`Lama` over the outputs of a bi-GRU (LAMA+ctx).

    H = [forward GRU; backward GRU]. Shapes: H (n, 2 hidden), the others as in :class:`Lama`. Parameters: 6
    hidden (m + hidden + 2) of the bi-GRU and those of :class:`Lama`. Cost: O(n (m hidden + hidden^2 + d h)), one token
    after the other.

    Args:
        hidden: units per direction; None: half the dimension.
        tokenizer, dimension, heads, context, rank, layer, output_dimension, max_seq_length, phrases, weights: as for
            :class:`Lama`.

    Source: Mehta, Rangwala & Ramakrishnan (2019), arXiv 1912.00835; Cho et al. (2014) for the GRU.
    """

    config_file_name = "lama_ctx_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        heads: int = 30,
        context: Literal["mean", "learned"] = "mean",
        rank: int = 1,
        layer: int = 0,
        hidden: int | None = None,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(
            tokenizer,
            dimension,
            heads=heads,
            context=context,
            rank=rank,
            layer=layer,
            hidden=max(1, dimension // 2) if hidden is None else hidden,
            output_dimension=output_dimension,
            **table,
        )


class Bilinear(_AskedByContext):
    """Single-head bilinear attention: the full matrix whose factors :class:`Lama` learns.

        e_t = c^T W h_t
        sentence embedding = sum_t softmax(e)_t h_t

    Shapes: H (n, d); W (d, d); c (d,); the embedding (d,). d is m, or 2 hidden. Parameters: d^2, and d if the context
    is learned. Cost: O(d^2 + n d). A text without tokens is embedded as zeros, or as the bias of the linear map.

    Args:
        tokenizer, dimension, context, hidden, output_dimension, max_seq_length, phrases, weights: as for
            :class:`Lama`.

    Source: Mehta, Rangwala & Ramakrishnan (2019), arXiv 1912.00835, eq. 8; Luong et al. (2015).
    """

    config_file_name = "bilinear_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        context: Literal["mean", "learned"] = "mean",
        hidden: int = 0,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, hidden=hidden, **table)
        d = self.state_dimension
        self.W = nn.Parameter(torch.randn(d, d) * d**-0.5)
        self.begin_context(context)
        self.begin_output(output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return softmax(e), (N, 1), of packed states (N, d)."""
        return segment_softmax(bilinear_scores(states, self.context_of(states, offsets), self.W, offsets), offsets)
