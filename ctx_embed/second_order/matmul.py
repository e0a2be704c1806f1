"""Products of many rows with a matrix; short texts and training spend most of their time here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# oneDNN compiles a kernel for each number of rows, which takes milliseconds; so rows are padded to multiples of this.
ROWS = 256
# Outer products are summed in blocks of this many rows; much larger blocks take oneDNN twice as long.
BLOCK = 4096


@cache
def _onednn() -> Callable[..., Any] | None:
    """Return oneDNN's product on processors with AVX-512, where it is at least as fast as torch's; otherwise None.

    torch multiplies float32 with MKL. On AMD's processors with AVX-512, MKL uses half the vector width and reaches 100
    billion operations a second on a thread; oneDNN reaches 220. On Intel's, MKL uses the full width (not measured).
    """
    try:
        if torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512":
            product: Callable[..., Any] = torch.ops.mkldnn._linear_pointwise.default
            return product
    except (AttributeError, RuntimeError):
        # This operation is not public, and some versions of torch lack it.
        pass
    return None


def _takes_onednn(*tensors: Tensor) -> bool:
    """Return whether to use oneDNN, which itself checks neither dtypes nor devices; the first tensor has the rows."""
    return (
        len(tensors[0]) >= ROWS
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
        and not torch.is_autocast_enabled("cpu")
        and _onednn() is not None
    )


def _padded(x: Tensor) -> Tensor:
    rows = -(-len(x) // ROWS) * ROWS
    if rows == len(x):
        return x
    # torch's pad would first fill all rows with zeros.
    padded = x.new_empty(rows, x.shape[1])
    padded[: len(x)] = x
    padded[len(x) :] = 0
    return padded


def _product(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    product = _onednn()
    assert product is not None
    # oneDNN reads every bias as contiguous.
    result: Tensor = product(x, W, None if b is None else b.contiguous(), "none", [], "")
    return result


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        return _product(_padded(x), W, b)[: len(x)]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, W, _ = inputs
        ctx.save_for_backward(x, W)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, W = ctx.saved_tensors
        wanted_x, wanted_W, wanted_b = ctx.needs_input_grad
        return (
            affine(gradient, W.T) if wanted_x else None,
            summed_outer(gradient, x) if wanted_W else None,
            gradient.sum(0) if wanted_b else None,
        )


class _SummedOuter(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        whole = len(x) // ROWS * ROWS
        # The product is faster with the narrower factor first.
        swapped = x.shape[1] > y.shape[1]
        first, second = (y, x) if swapped else (x, y)
        result = first[whole:].T @ second[whole:]
        for block, other in zip(first[:whole].split(BLOCK), second[:whole].split(BLOCK), strict=True):
            result += _product(block.T, other.T)
        return result.T if swapped else result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        return (
            affine(y, gradient) if ctx.needs_input_grad[0] else None,
            affine(x, gradient.T) if ctx.needs_input_grad[1] else None,
        )


def affine(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """Return x W^T + b, as ``torch.nn.functional.linear`` does.

    Args:
        x: (N, u).
        W: (m, u).
        b: (m,), or None for 0.

    Returns:
        (N, m).
    """
    fits = x.ndim == 2 and x.shape[1:] == W.shape[1:] and (b is None or b.shape == W.shape[:1])
    if not (fits and _takes_onednn(x, W, *(() if b is None else (b,)))):
        return F.linear(x, W, b)
    result: Tensor = _Affine.apply(x, W, b)  # type: ignore[no-untyped-call]
    return result


def summed_outer(x: Tensor, y: Tensor) -> Tensor:
    """Return x^T y, the sum of the rows' outer products.

    Args:
        x: (N, m).
        y: (N, u).

    Returns:
        (m, u).
    """
    if len(x) != len(y) or not _takes_onednn(x, y):
        return x.T @ y
    result: Tensor = _SummedOuter.apply(x, y)  # type: ignore[no-untyped-call]
    return result
