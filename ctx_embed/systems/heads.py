"""Systems with attention heads over the tokens: S = A H, over token embeddings or the outputs of a bi-GRU."""

from __future__ import annotations

from abc import abstractmethod

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.modules.token_encoder import require_size
from ctx_embed.systems.attention import attended
from ctx_embed.systems.encoder import SystemEncoder, TableOptions, offsets_of, recurrent_states
from ctx_embed.systems.groups import groups_of


class HeadsEncoder(SystemEncoder):
    """S = A H, flattened: h weighted sums of the states H, which are the token embeddings or a bi-GRU's outputs.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.
        heads: h, the rows of A.
        hidden: units of the bi-GRU per direction; 0: the token embeddings themselves are the states.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int,
        *,
        heads: int = 1,
        hidden: int = 0,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        require_size("heads", heads)
        if hidden != 0 or isinstance(hidden, bool):
            require_size("hidden", hidden)
            self.recurrent = nn.GRU(dimension, hidden, bidirectional=True)
        self.heads = heads
        self.hidden = hidden

    @property
    def state_dimension(self) -> int:
        """The number of features of a state."""
        return 2 * self.hidden or self.dimension

    @property
    def natural_dimension(self) -> int:
        """The number of features of all heads' sums."""
        return self.heads * self.state_dimension

    def states(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return H of packed tokens, (N, state dimension)."""
        tokens = self.embedding(ids)
        return recurrent_states(self.recurrent, tokens, offsets) if self.hidden else tokens

    @torch.no_grad()
    def mean_state(self) -> Tensor:
        """Return the mean over the vocabulary of the states of single tokens, (state dimension,)."""
        if self.embedding.weight.is_meta:  # Without values, only the shape matters.
            return self.embedding.weight.new_empty(self.state_dimension)
        entries = torch.arange(self.embedding.num_embeddings, device=self.embedding.weight.device)
        return self.states(entries, torch.arange(len(entries) + 1, device=entries.device)).mean(0)

    @abstractmethod
    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return A^T, (N, h), of packed states (N, state dimension)."""

    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return S = A H flattened, (B, h * state dimension); zero for a text without tokens."""
        offsets = offsets_of(lengths, ids.device)
        states = self.states(ids, offsets)
        groups = list(groups_of(lengths, ids.device))
        return attended(self.token_weights(states, offsets), states, lengths, groups).flatten(1)

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set the linear map to the mean over heads if states have its dimension: a weighted mean of the tokens."""
        if not self.hidden and self.output_dimension == self.dimension:
            self.output.weight.copy_(torch.eye(self.dimension).repeat(1, self.heads) / self.heads)
            self.output.bias.zero_()

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return A of each text, (h, n)."""
        offsets = offsets_of(lengths, ids.device)
        return [part.T for part in self.token_weights(self.states(ids, offsets), offsets).split(lengths)]
