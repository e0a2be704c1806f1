"""Token tables as int8: rows of 255 levels with a scale each, wherever that loses nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from ctx_embed.errors import InputError

LEVELS = 127
TABLE, SCALES = "embedding.weight", "embedding.scales"


def quantized(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest int8 rows and their scales; :func:`dequantized` is the inverse.

    Args:
        table: (rows, m).

    Returns:
        (rows, m) int8 and (rows, 1) float16: so short that level times scale is exact in float32.
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


def require_finite(tensors: dict[str, Tensor], folder: str) -> None:
    """Raise an error for weights that are NaN or infinite, which would make embeddings undefined.

    Args:
        tensors: as they are stored.
        folder: of the model, for the message.

    Raises:
        InputError: a weight is not finite; the message names the first such tensor.
    """
    for name, tensor in tensors.items():
        # Both ends are NaN where any number is; isfinite() of each number takes 40 times as long.
        if tensor.is_floating_point() and tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise InputError(
                f"{folder}: {count:,} of {tensor.numel():,} numbers of {name} are NaN or infinite; "
                "the model diverged or its file is damaged; train it again, or copy the file again"
            )


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
