"""Parts that systems share: the options of the table, a bi-GRU's states, and an output of any size."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import TypedDict

from ctx_embed.errors import InputError, quoted
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.options import require_size
from ctx_embed.second_order import document_ids, token_positions

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
        raise InputError(f"{name} must be a number from 0 to below 1, got {quoted(value)}")


def offsets_of(lengths: list[int], device: torch.device) -> Tensor:
    """Return the start of each document and the end of the last, (B + 1,)."""
    return torch.tensor([0, *lengths], device=device).cumsum(0)


def recurrent_states(network: nn.GRU, tokens: Tensor, offsets: Tensor, most_padding: float = MOST_PADDING) -> Tensor:
    """Return a recurrent network's outputs (N, directions * hidden) over (N, m) tokens; it reads documents separately.

    On a CPU, documents are padded if that takes at most ``most_padding`` positions per token: the gradient then takes
    time linear in the length, while that of torch's packed sequences is quadratic. Packed documents take memory that
    does not depend on how much their lengths differ.
    """
    if not len(tokens):
        return tokens.new_zeros(0, network.hidden_size * (2 if network.bidirectional else 1))
    lengths, documents, position = offsets.diff(), document_ids(offsets), token_positions(offsets)
    # Packed sequences are slow only on a CPU: other devices have kernels for them.
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

    Subclasses define :meth:`pooled`, and call :meth:`begin_output` last in ``__init__``.
    """

    ids_may_be_renumbered = True

    @abstractmethod
    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the natural output (B, natural dimension); arguments as for :meth:`TokenEncoder.embed`."""

    def begin_output(self, natural_dimension: int, output_dimension: int | None) -> None:
        """Add the linear map from the features of :meth:`pooled` to ``output_dimension``, unless that is None."""
        if output_dimension is not None:
            require_size("output_dimension", output_dimension)
            self.output = nn.Linear(natural_dimension, output_dimension)
        self.natural_dimension, self.output_dimension = natural_dimension, output_dimension

    def get_embedding_dimension(self) -> int:
        """Return the number of features of a sentence embedding."""
        return self.output_dimension or self.natural_dimension

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the embeddings of packed documents, mapped to ``output_dimension`` if that is given."""
        pooled = self.pooled(ids, lengths).to(self.embedding.weight.dtype)
        mapped: Tensor = pooled if self.output_dimension is None else self.output(pooled)
        return mapped
