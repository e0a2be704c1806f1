"""Operations on arrays that the equations need, for NumPy and torch; NumPy's arrays never import torch."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np

LAYER_NORM_EPS = 1e-12
# Tokens per document above which torch's cascade sum is quicker and more exact than a running sum.
RUNNING_SUM_TOKENS = 256


def library(values: Any) -> Any:
    """Return the module of an array: NumPy or torch."""
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]


def records_gradients(values: Any) -> bool:
    """Return whether torch records operations on this array for a gradient."""
    return library(values) is not np and bool(library(values).is_grad_enabled())


def precise(values: Any) -> Any:
    """Return values in float32 or better."""
    if isinstance(values, np.ndarray):
        return values.astype(np.promote_types(values.dtype, np.float32), copy=False)
    torch = library(values)
    return values.to(torch.promote_types(values.dtype, torch.float32))


def cast(values: Any, like: Any) -> Any:
    """Return values in the dtype of another array."""
    return values.astype(like.dtype, copy=False) if isinstance(values, np.ndarray) else values.to(like.dtype)


def count(n: int, like: Any) -> Any:
    """Return 0..n-1 on the device of another array."""
    return np.arange(n) if isinstance(like, np.ndarray) else library(like).arange(n, device=like.device)


def repeat(values: Any, times: Any) -> Any:
    """Return values (B, ...) with each row repeated ``times`` (B,) times."""
    if isinstance(values, np.ndarray):
        return np.repeat(values, times, 0)
    return library(values).repeat_interleave(values, times, 0)


def take(values: Any, rows: Any) -> Any:
    """Return rows of a matrix; torch's gradient of it is faster than that of an index."""
    return values.take(rows, 0) if isinstance(values, np.ndarray) else values.index_select(0, rows)


def multiply_(fresh: Any, other: Any) -> Any:
    """Return fresh * other; without gradients this overwrites ``fresh``, which must not be used afterwards."""
    if records_gradients(fresh):
        return fresh * other
    fresh *= other
    return fresh


def affine(x: Any, W: Any, b: Any | None = None) -> Any:
    """Return x W^T + b, (N, m), of x (N, u), W (m, u) and b (m,); None stands for 0."""
    if not isinstance(x, np.ndarray):
        return library(x).nn.functional.linear(x, W, b)
    return x @ W.T if b is None else x @ W.T + b


def layer_norm(total: Any, gain: Any, bias: Any) -> Any:
    """Return gain * (total - mean) / sqrt(variance + eps) + bias over the last axis, (B, m)."""
    if not isinstance(total, np.ndarray):
        functional = library(total).nn.functional
        return functional.layer_norm(total, total.shape[-1:], cast(gain, total), cast(bias, total), LAYER_NORM_EPS)
    centred = total - total.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + total.dtype.type(LAYER_NORM_EPS)) * gain + bias


def segment_sum(values: Any, offsets: Any) -> Any:
    """Sum the rows of each document in float32 or better.

    Args:
        values: (N, d).
        offsets: (B + 1,).

    Returns:
        (B, d), a row of zeros for a document without tokens.
    """
    values, documents = precise(values), len(offsets) - 1
    if isinstance(values, np.ndarray):
        parts = [values[start:stop].sum(0) for start, stop in pairwise(offsets.tolist())]
        return np.stack(parts) if parts else values[:0]
    torch = library(values)
    if len(values) > RUNNING_SUM_TOKENS * documents:
        return torch.stack([part.sum(0) for part in values.split(offsets.diff().tolist())])
    if torch.is_grad_enabled() and values.requires_grad:
        owners = repeat(count(documents, offsets), offsets.diff())
        return values.new_zeros(documents, values.shape[1]).index_add(0, owners, values)
    rows = torch.arange(len(values), device=values.device)
    return torch.nn.functional.embedding_bag(rows, values, offsets, mode="sum", include_last_offset=True)
