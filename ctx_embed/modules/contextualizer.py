"""The Contextualizer as the first module of a SentenceTransformer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase
from typing_extensions import Self

from ctx_embed import second_order
from ctx_embed.modules.changes import optimizer_steps, parameter_mark
from ctx_embed.modules.second_order_steps import SecondOrderSteps
from ctx_embed.modules.shares import contributions_of_steps, shares_of_steps
from ctx_embed.modules.token_encoder import TokenEncoder

# Documents are taken through the steps in groups of about so many tokens: their intermediate values then stay in cache.
GROUP_TOKENS = 4096
# Longer documents are folded block by block, so that memory is bounded; shorter ones where that is cheaper.
LONG_DOCUMENT_TOKENS = 1024


# Features of an entry's products, beyond which those of a whole vocabulary are not held.
HELD_FEATURES = 1024


class Products(NamedTuple):
    """What the steps need of each vocabulary entry alone, where positions play no part (x_i = e).

    Args:
        first: (entries, m) the whole first step's a^1 * e, whose sum over a text's tokens needs no further product,
            in float32 or better; None where c^0 differs between texts.
        of_steps: U_k e, (entries, u), of each step that ``first`` does not hold.
    """

    first: Tensor | None
    of_steps: list[Tensor]


def grouped(lengths: list[int], most: int, long: float) -> Iterator[tuple[int, list[int]]]:
    """Cut documents into runs of at most ``most`` tokens; a long document is a run of its own.

    Args:
        lengths: of the documents, in tokens.
        most: tokens of a run, unless a single document has more.
        long: documents of more tokens are long.

    Returns:
        For each run the tokens before it and its documents' lengths.
    """
    start = total = 0
    group: list[int] = []
    for length in lengths:
        if group and (length > long or total + length > most or group[0] > long):
            yield start, group
            start, total, group = start + total, 0, []
        group.append(length)
        total += length
    if group:
        yield start, group


class Contextualizer(TokenEncoder):
    """Tokenizer, token table and K steps of second-order attention: text in, c^K out.

        x_i = e(w_i) * p(i)
        a_i^k = W_k (U_k x_i * V_k c^{k-1}) + b_k
        c^k = c^{k-1} + LayerNorm(sum_i a_i^k * x_i)
        sentence embedding = c^K

    Shapes: x_i, a_i^k, b_k and c^k (m,); U_k, V_k (u, m); W_k (m, u). Parameters: K (3 u m + 3 m), and m each for
    learned positions and a learned c^0. Cost: O(n u m) a step for n tokens. Text without a token gives c^0. No special
    tokens are added.

    Args:
        tokenizer: of the ``tokenizers`` library, or a fast tokenizer of transformers.
        dimension: m, the features of the embedding.
        steps: K.
        rank: u of the attention's factors.
        positions: ``none`` (order is not seen), ``relative`` (i / n) or ``absolute`` (the paper's i).
        scale: ``mean`` (position weights average 1) or ``sum`` (they sum to 1, the paper's).
        initial_context: c^0: ``ones``, ``learned`` or ``uniform`` (drawn by the text's own seed).
        max_seq_length: tokens read of a text, None for all; a cut text gives a warning.
        phrases: (P, 2) pairs of ids that are entries themselves, see :class:`ctx_embed.text.phrases.Phrases`.
        weights: (entries, dimension) token table, entries the tokenizer's and the phrases; None draws it, normal, of
            standard deviation 0.03.

    Raises:
        InputError: a size below 1, an unknown option, a table of another shape, a tokenizer of another kind.

    Source: Maupome & Meurs (2022), Information 13(6):290.
    """

    config_file_name = "contextualizer_config.json"
    config_keys = ["dimension", "steps", "rank", "positions", "scale", "initial_context", "max_seq_length"]
    weight_axes = ("step", "token")
    # c^K, a sum of K layer-normalised corrections, is so large that a drawn head would send noise into the encoder.
    first_head = "zeros"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        steps: int = 3,
        rank: int = 64,
        positions: str = "none",
        scale: str = "mean",
        initial_context: str = "ones",
        max_seq_length: int | None = None,
        phrases: Tensor | np.ndarray | None = None,
        weights: Tensor | np.ndarray | None = None,
    ) -> None:
        super().__init__(tokenizer, dimension, max_seq_length=max_seq_length, phrases=phrases, weights=weights)
        self.attention = SecondOrderSteps(
            dimension, steps=steps, rank=rank, positions=positions, scale=scale, initial_context=initial_context
        )
        self.steps = steps
        self.rank = rank
        self.positions = positions
        self.scale = scale
        self.initial_context = initial_context
        self._held: tuple[tuple[Any, ...], Products] | None = None

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """c^K of packed documents, (B, m): long ones one at a time, the others in groups that fit into cache.

        Args:
            ids: (N,) the documents' token ids one after the other.
            lengths: B numbers of tokens, 0 included, whose sum is N.
        """
        # In training a large group shares more: an entry's products and its gradient are computed once a group.
        most = len(ids) if torch.is_grad_enabled() else GROUP_TOKENS
        if torch.is_grad_enabled():
            self._held = None
        parts: list[Tensor] = []
        long: float = LONG_DOCUMENT_TOKENS
        if not self._position_free:
            long = min(long, second_order.fold_pays_from(self.dimension, self.rank, self.steps))
        for start, group in grouped(lengths, most, long):
            stop = start + sum(group)
            if group[0] > long:
                context = self.attention.fold(self.embedding.weight, ids[start:stop])[-1]
            else:
                offsets = torch.tensor([0, *group], device=ids.device).cumsum(0)
                context = self._embed_group(ids[start:stop], offsets)
            parts.append(context.to(self.embedding.weight.dtype))
        return torch.cat(parts) if parts else self.embedding.weight.new_zeros(0, self.dimension)

    def begin_as_mean(self) -> None:
        """Begin as the layer-normalised sum of the tokens, see :meth:`SecondOrderSteps.begin_as_mean`."""
        self.attention.begin_as_mean()

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """The exact share of each token in each step's correction z^k of its text, (K, n); a row sums to 1."""
        return list(shares_of_steps(*self._precise_steps(ids, lengths)).split(lengths, dim=1))

    @torch.no_grad()
    def contributions(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """What each token adds to each step's correction of its text, (K, n, m), in float64.

        Summed over the tokens, and with the step's bias, z^k = c^k - c^{k-1}.

        Args:
            ids, lengths: as those of :meth:`embed`.
        """
        return list(torch.stack([*contributions_of_steps(*self._precise_steps(ids, lengths))]).split(lengths, dim=1))

    @torch.no_grad()
    def contexts(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """c^0..c^K of packed texts, (K + 1, B, m), in float64; arguments as those of :meth:`embed`."""
        return self._precise_steps(ids, lengths)[2]

    def _precise_steps(self, ids: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, second_order.Steps]:
        """x, the offsets, all contexts and the steps, on the CPU in float64: parts that cancel still add up."""
        offsets = torch.tensor([0, *lengths], device=ids.device).cumsum(0)
        x = self.attention.weighted(self.embedding(ids), offsets).to("cpu", torch.float64)
        first = self.attention.first_context(ids, offsets).to("cpu", torch.float64)
        steps = second_order.Steps(
            *(parameter.to("cpu", torch.float64) for parameter in self.attention.parameters_of_steps)
        )
        offsets = offsets.cpu()
        return x, offsets, second_order.direct(x, offsets, first, steps), steps

    @property
    def ids_name_rows(self) -> bool:
        """Whether ids only look up rows: a uniform first context is drawn by them."""
        return self.initial_context != "uniform"

    @property
    def _position_free(self) -> bool:
        """Whether x_i is e(w_i), so that what depends on the vocabulary entry alone is computed once an entry."""
        return self.positions == "none" and self.scale == "mean"

    def _embed_group(self, ids: Tensor, offsets: Tensor) -> Tensor:
        if not self._position_free:
            contexts: Tensor = self.attention(self.embedding(ids), ids, offsets)
            return contexts[-1]
        # In training, and where they would take much memory, products are the group's entries'; else all entries', held
        # until a parameter changes.
        context = self.attention.first_context(ids, offsets)
        if torch.is_grad_enabled() or self.steps * self.rank > HELD_FEATURES:
            entries, ids = torch.unique(ids, return_inverse=True)
            table = self.embedding(entries)
            return self._steps_over(table, self._products(table), ids, offsets, context)
        return self._steps_over(self.embedding.weight, self._held_products(), ids, offsets, context)

    def _products(self, table: Tensor) -> Products:
        """What the steps need of each row of a table (entries, m)."""
        steps = self.attention.parameters_of_steps
        if self.initial_context == "uniform":
            return Products(None, [table @ U.T for U in steps.U])
        one = torch.zeros(2, dtype=torch.int64, device=table.device)
        vc = self.attention.first_context(table.new_zeros(0), one) @ steps.V[0].T
        first = torch.addmm(steps.b[0], table @ steps.U[0].T * vc, steps.W[0].T) * table
        first = first.to(torch.promote_types(first.dtype, torch.float32))
        return Products(first, [table @ U.T for U in steps.U[1:]])

    def _held_products(self) -> Products:
        """:meth:`_products` of the whole vocabulary for the present parameters."""
        key = (optimizer_steps(), *(mark for parameter in self.parameters() for mark in parameter_mark(parameter)))
        if self._held is None or self._held[0] != key:
            with torch.autocast(self.embedding.weight.device.type, enabled=False):
                self._held = (key, self._products(self.embedding.weight))
        return self._held[1]

    def _steps_over(self, table: Tensor, products: Products, ids: Tensor, offsets: Tensor, context: Tensor) -> Tensor:
        """c^K (B, m) of packed rows ``ids`` of a table: :meth:`SecondOrderSteps.forward` with the products' help."""
        steps = list(zip(*self.attention.parameters_of_steps, strict=True))
        context = context.to(torch.promote_types(table.dtype, torch.float32))
        if products.first is not None:
            *_, gain, bias = steps.pop(0)
            total = F.embedding_bag(ids, products.first, offsets, mode="sum", include_last_offset=True)
            context = second_order.corrected(context, total, gain, bias, offsets)
        if not steps:
            return context
        documents = second_order.document_ids(offsets)
        x = F.embedding(ids, table)
        for product, (_, V, W, b, gain, bias) in zip(products.of_steps, steps, strict=True):
            a = second_order.attended(F.embedding(ids, product), context.to(V.dtype) @ V.T, documents, W, b)
            context = second_order.corrected(
                context, second_order.segment_sum(second_order.product(a, x), offsets), gain, bias, offsets
            )
        return context

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; products are computed anew after training."""
        self._held = None if mode else self._held
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        # Another process, or a copy, computes its own.
        return {**self.__dict__, "_held": None}
