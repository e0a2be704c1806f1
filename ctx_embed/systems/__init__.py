"""The systems a Contextualizer is compared with, and their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctx_embed.errors import unknown_name
from ctx_embed.modules import Contextualizer
from ctx_embed.systems.mean import MeanEmbedding

SYSTEMS: dict[str, Callable[..., Any]] = {
    "contextualizer": Contextualizer,
    "mean": MeanEmbedding,
}


def system(name: str) -> Callable[..., Any]:
    """The module class of that name, called as ``(tokenizer, dimension, weights=...)``.

    Raises:
        InputError: an unknown name.
    """
    if name not in SYSTEMS:
        raise unknown_name("encoder", name, SYSTEMS)
    return SYSTEMS[name]
