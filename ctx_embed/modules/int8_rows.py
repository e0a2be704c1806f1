"""Token tables as int8 with a scale for each row, for tables that this represents exactly (255 levels a row)."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 127
TABLE, SCALES = "embedding.weight", "embedding.scales"


def quantized(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest int8 rows and their scales; :func:`dequantized` is the inverse.

    Args:
        table: (rows, m).

    Returns:
        (rows, m) int8 levels and (rows, 1) float16 scales; level times scale is exact in float32.
    """
    table = table.float()
    scales = (table.abs().amax(1, keepdim=True) / LEVELS).half()
    smallest = torch.finfo(torch.float16).smallest_normal
    scales = torch.where(scales < smallest, scales.new_full((), smallest), scales)
    levels = (table / scales.float()).round().clamp(-LEVELS, LEVELS)
    return levels.to(torch.int8), scales


def dequantized(levels: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 table (rows, m) of int8 rows and their scales."""
    return levels.float() * scales.float()


def to_store(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a module's tensors in saved form: a token table as int8 and scales if these represent it exactly."""
    table = tensors.get(TABLE)
    if table is None or table.dtype != torch.float32:
        return tensors
    levels, scales = quantized(table)
    if not torch.equal(dequantized(levels, scales), table):
        return tensors
    return {**tensors, TABLE: levels, SCALES: scales}


def from_store(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that were passed to :func:`to_store`."""
    if SCALES not in tensors:
        return tensors
    table = dequantized(tensors[TABLE], tensors[SCALES])
    return {name: table if name == TABLE else tensor for name, tensor in tensors.items() if name != SCALES}
