"""The learned part of both modules: K steps of second-order attention with their options."""

import torch
from torch import Tensor, nn

from ctx_embed import second_order
from ctx_embed.errors import require_size, unknown_name
from ctx_embed.second_order import Steps


class SecondOrderSteps(nn.Module):
    """K steps of second-order attention over packed tokens, with position weights and a first context.

    Source: Maupome & Meurs (2022).
    """

    def __init__(
        self, dimension: int, *, steps: int, rank: int, positions: str, scale: str, initial_context: str
    ) -> None:
        super().__init__()
        for name, value in (("dimension", dimension), ("steps", steps), ("rank", rank)):
            require_size(name, value)
        for kind, name, known in (
            ("positions", positions, second_order.POSITIONS),
            ("scale", scale, second_order.SCALES),
            ("initial_context", initial_context, second_order.INITIAL_CONTEXTS),
        ):
            if name not in list(known):
                raise unknown_name(kind, name, known)
        self.positions = positions
        self.scale = scale
        self.initial_context = initial_context
        # Random weights preserve variances; position weights start equal.
        self.U = nn.Parameter(torch.empty(steps, rank, dimension).normal_(std=dimension**-0.5))
        self.V = nn.Parameter(torch.empty(steps, rank, dimension).normal_(std=dimension**-0.5))
        self.W = nn.Parameter(torch.empty(steps, dimension, rank).normal_(std=rank**-0.5))
        self.b = nn.Parameter(torch.ones(steps, dimension))
        self.gain = nn.Parameter(torch.ones(steps, dimension))
        self.bias = nn.Parameter(torch.zeros(steps, dimension))
        # Unused parameters are None, so that every saved tensor affects the embedding.
        self.s = nn.Parameter(torch.zeros(dimension)) if positions != "none" else None
        self.c0 = nn.Parameter(torch.ones(dimension)) if initial_context == "learned" else None

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set W = 0 and b = 1, so that the output is the layer-normalised sum of the tokens, a static embedding."""
        self.W.zero_()
        self.b.fill_(1)

    @property
    def parameters_of_steps(self) -> Steps:
        """Return the parameters of the K steps in the form of :mod:`ctx_embed.second_order`."""
        return Steps(self.U, self.V, self.W, self.b, self.gain, self.bias)

    @property
    def slopes(self) -> Tensor:
        """The slopes (m,) of the position weights; arbitrary if there are no position weights."""
        return self.b[0] if self.s is None else self.s

    def first_context(self, input_ids: Tensor, offsets: Tensor) -> Tensor:
        """Return c^0 of each document, (B, m)."""
        learned = self.b[0] if self.c0 is None else self.c0
        context: Tensor = second_order.initial_context(self.initial_context, learned, input_ids, offsets)
        return context

    def weighted(self, embeddings: Tensor, offsets: Tensor) -> Tensor:
        """Return the weighted tokens x_i = e(w_i) * p(i), (N, m)."""
        if self.positions == "none" and self.scale == "mean":
            return embeddings
        weights: Tensor = second_order.position_weights(offsets, self.slopes, kind=self.positions, scale=self.scale)
        return embeddings * weights.to(embeddings.dtype)

    def forward(self, embeddings: Tensor, input_ids: Tensor, offsets: Tensor) -> Tensor:
        """Return the contexts of packed documents.

        Args:
            embeddings: (N, m) token embeddings e(w_i).
            input_ids: (N,) token ids; read only by the uniform first context.
            offsets: (B + 1,) where each document begins.

        Returns:
            (K + 1, B, m): c^0..c^K, in float32 or better.
        """
        context = self.first_context(input_ids, offsets)
        x = self.weighted(embeddings, offsets)
        contexts: Tensor = second_order.direct(x, offsets, context, self.parameters_of_steps)
        return contexts
