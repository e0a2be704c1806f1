"""Attentive pooling: one learned query attends to all tokens, with any of the scores in the literature."""

from __future__ import annotations

from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import require_size, unknown_name
from ctx_embed.second_order import token_positions
from ctx_embed.systems.attention import SCORES, segment_softmax
from ctx_embed.systems.encoder import HeadsEncoder, TableOptions


class AttentivePooling(HeadsEncoder):
    """Attentive pooling with a learned query q.

        content     e_t = cos(q, h_t)                        Graves et al. (2014)
        additive    e_t = v^T tanh(W_q q + W_h h_t)          Bahdanau et al. (2015)
        location    e_t = (W q)_t, depends only on t         Luong et al. (2015)
        general     e_t = q^T W h_t                          Luong et al. (2015)
        dot         e_t = q^T h_t                            Luong et al. (2015)
        scaled-dot  e_t = q^T h_t / sqrt(d)                  Vaswani et al. (2017)
        sentence embedding = sum_t softmax(e)_t h_t

    Shapes: H (n, d); q (d,); W, W_q, W_h (d, d), under location (locations, d); v (d,); the embedding (d,). d is m, or
    2 hidden. Parameters: d, and 2 d^2 + d under additive, locations * d under location, d^2 under general. Cost: O(n
    d), O(n d^2) under additive. A text without tokens is embedded as zeros, or as the bias of the linear map.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.
        score: one of the above.
        locations: distinct positions under ``location``; all later ones share the last score.
        hidden: units per direction of a bi-GRU whose outputs are H; 0: H is the token embeddings.
        output_dimension: features after a final linear map; None: no map.

    Source: next to each score above.
    """

    config_file_name = "attentive_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        score: Literal["content", "additive", "location", "general", "dot", "scaled-dot"] = "scaled-dot",
        locations: int = 512,
        hidden: int = 0,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, hidden=hidden, **table)
        if score not in list(SCORES):
            raise unknown_name("score", score, SCORES)
        require_size("locations", locations)
        self.score = score
        self.locations = locations
        self.q = nn.Parameter(torch.randn(self.state_dimension))
        shapes = SCORES[score].shapes(self.state_dimension, locations)
        self.of_score = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(shape) * shape[-1] ** -0.5) for name, shape in shapes.items()}
        )
        self.begin_output(output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return softmax(e), (N, 1), of packed states (N, d)."""
        position = token_positions(offsets)
        scores = SCORES[self.score].function(states, self.q, position, dict(self.of_score.items()))
        return segment_softmax(scores[:, None], offsets)
