"""The base classes of the systems: with an output of its own size, and with attention heads over the tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from transformers import PreTrainedTokenizerBase
from typing_extensions import TypedDict, Unpack

from ctx_embed.errors import InputError, require_size
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.second_order import document_ids, token_positions
from ctx_embed.systems.attention import attended, groups_of

# Pad documents for a recurrent network only up to this many positions per token; beyond, pack them.
MOST_PADDING = 4


class TableOptions(TypedDict, total=False):
    """Options that every encoder passes to :class:`TokenEncoder`."""

    max_seq_length: int | None
    phrases: Tensor | np.ndarray[Any, Any] | None
    weights: Tensor | np.ndarray[Any, Any] | None


def require_share(name: str, value: float) -> None:
    """Raise an InputError unless a value is a number from 0 to below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name} must be a number from 0 to below 1, got {value!r}")


def offsets_of(lengths: list[int], device: torch.device) -> Tensor:
    """Return the start of each document and the end of the last, (B + 1,)."""
    return torch.tensor([0, *lengths], device=device).cumsum(0)


def recurrent_states(network: nn.GRU, tokens: Tensor, offsets: Tensor, most_padding: float = MOST_PADDING) -> Tensor:
    """Return the outputs (N, directions * hidden) of a network that reads each document of (N, m) tokens by itself.

    On a CPU, documents are padded if that takes at most ``most_padding`` positions per token: the gradient then takes
    time linear in the length, while that of torch's packed sequences is quadratic. Packed, they take memory that does
    not depend on how much their lengths differ.
    """
    if not len(tokens):
        return tokens.new_zeros(0, network.hidden_size * (2 if network.bidirectional else 1))
    lengths, documents, position = offsets.diff(), document_ids(offsets), token_positions(offsets)
    # Only on a CPU are packed sequences slow: other devices have kernels for them.
    if tokens.device.type != "cpu" or len(lengths) * int(lengths.max()) > most_padding * len(tokens):
        # torch's order of packed sequences: all first tokens, then all second ones, ..., longer documents first.
        rank = lengths.argsort(descending=True, stable=True).argsort()
        order = (position * len(lengths) + rank[documents]).argsort()
        packed = PackedSequence(tokens[order], torch.bincount(position).cpu())
        outputs: Tensor = network(packed)[0].data
        return outputs[order.argsort()]
    # Padding never reaches a document's states: each direction starts at its own end of the document.
    found = []
    for suffix in ("", "_reverse")[: 2 if network.bidirectional else 1]:
        place = lengths[documents] - 1 - position if suffix else position
        zeros = tokens.new_zeros(int(lengths.max()), len(lengths), tokens.shape[1])
        padded = zeros.index_put((place, documents), tokens)
        weights = [getattr(network, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        first = tokens.new_zeros(1, len(lengths), network.hidden_size)
        states, _ = torch.gru(padded, first, weights, True, 1, 0.0, network.training, False, False)
        found.append(states[place, documents])
    return torch.cat(found, 1)


class SystemEncoder(TokenEncoder):
    """A token encoder whose natural output may have another number of features than its table.

    Subclasses define :attr:`natural_dimension` and :meth:`pooled`, and call :meth:`begin_output` last in ``__init__``.
    """

    ids_may_be_renumbered = True
    output_dimension: int | None = None

    @property
    @abstractmethod
    def natural_dimension(self) -> int:
        """The number of features of :meth:`pooled`."""

    @abstractmethod
    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the natural output (B, natural dimension); arguments as for :meth:`TokenEncoder.embed`."""

    def begin_output(self, output_dimension: int | None) -> None:
        """Add the linear map to ``output_dimension`` features, unless that is None."""
        if output_dimension is not None:
            require_size("output_dimension", output_dimension)
            self.output = nn.Linear(self.natural_dimension, output_dimension)
        self.output_dimension = output_dimension

    def get_embedding_dimension(self) -> int:
        """Return the number of features of a sentence embedding."""
        return self.output_dimension or self.natural_dimension

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the embeddings of packed documents, mapped to ``output_dimension`` if that is given."""
        pooled = self.pooled(ids, lengths).to(self.embedding.weight.dtype)
        mapped: Tensor = pooled if self.output_dimension is None else self.output(pooled)
        return mapped


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
