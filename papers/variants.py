"""Variants of the Contextualizer that only the papers' tables train."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ctx_embed.modules.contextualizer import Contextualizer
from ctx_embed.second_order import Steps, corrected, document_ids, segment_sum

# Whether a uniform first context is drawn at each reading of a text, as in the paper.
REDRAWN = "redrawn"
# Whether all steps share one set of parameters.
TIED = "tied"
# The heads of :class:`Bilinear`.
MATRICES = "matrices"


class Redrawn(Contextualizer):
    """A Contextualizer that embeds in torch even without gradients: NumPy would seed the first context by the text."""

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return c^K of packed documents, (B, m); arguments as for :meth:`Contextualizer.embed`."""
        if torch.is_grad_enabled():
            return super().embed(ids, lengths)
        with torch.enable_grad():
            return super().embed(ids, lengths).detach()


class Bilinear(Contextualizer):
    """A Contextualizer over :class:`BilinearSteps`."""

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return c^K of packed documents, (B, m); arguments as for :meth:`Contextualizer.embed`."""
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        contexts: Tensor = self.attention(self.embedding(ids), offsets)
        return contexts


class BilinearSteps(nn.Module):
    """Steps whose attention has one matrix for each head: the low-rank attention's tensor without its factors.

        a_ij = x_i^T A_j c^{k-1} + b_j, for all m / h features of head j

    With h = 1 a token gets one number, scalar attention; with h = m the A_j are the slices of a full tensor.

    Shapes: A (K, h, m, m); b (K, h); gain, bias (K, m).
    """

    def __init__(self, dimension: int, steps: int, heads: int) -> None:
        super().__init__()
        # x^T A c varies as W (U x * V c) does initially.
        self.A = nn.Parameter(torch.randn(steps, heads, dimension, dimension) / dimension)
        self.b = nn.Parameter(torch.ones(steps, heads))
        self.gain = nn.Parameter(torch.ones(steps, dimension))
        self.bias = nn.Parameter(torch.zeros(steps, dimension))

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Return c^K of packed documents, (B, m), from tokens (N, m) and a first context of ones."""
        documents = document_ids(offsets)
        context = x.new_ones(len(offsets) - 1, x.shape[1])
        for A, b, gain, bias in zip(self.A, self.b, self.gain, self.bias, strict=True):
            asked = torch.einsum("jpq,dq->djp", A, context)
            a = (asked[documents] * x[:, None]).sum(2) + b
            each = a.repeat_interleave(x.shape[1] // len(b), dim=1)
            context = corrected(context, segment_sum(each * x, offsets), gain, bias, offsets)
        return context


def redraw_contexts(module: Contextualizer, redrawn: bool) -> None:
    """Draw the uniform first context anew at each reading of a text, instead of seeding it with the text's tokens."""
    if not redrawn:
        return

    def first_context(input_ids: Tensor, offsets: Tensor) -> Tensor:
        return torch.rand(len(offsets) - 1, module.dimension) * 2 - 1

    module.__class__ = Redrawn
    module.attention.first_context = first_context  # type: ignore[method-assign]


def tie_steps(module: Contextualizer, tied: bool) -> None:
    """Let all steps begin with the first step's parameters and share their gradients, so that they remain equal."""
    for name in Steps._fields if tied else ():
        parameter = getattr(module.attention, name)
        parameter.copy_(parameter[:1].clone())
        parameter.register_hook(lambda gradient: gradient.sum(0, keepdim=True).expand_as(gradient).contiguous())


def use_matrices(module: Contextualizer, heads: int) -> None:
    """Put :class:`BilinearSteps` in the place of the factors."""
    module.__class__ = Bilinear
    module.attention = BilinearSteps(module.dimension, module.steps, heads)  # type: ignore[assignment]


VARIANTS: dict[str, Callable[[Contextualizer, Any], None]] = {
    REDRAWN: redraw_contexts,
    TIED: tie_steps,
    MATRICES: use_matrices,
}
