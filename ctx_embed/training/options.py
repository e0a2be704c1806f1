"""The options that every training shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctx_embed.options import documented, option, require_valid


@documented
@dataclass(frozen=True)
class ContextualizerOptions:
    """Options of a Contextualizer's architecture, apart from its dimension.

    Raises:
        InputError: a value has the wrong type or is out of range.
    """

    steps: int = option(3, "Number of steps K.", least=1)
    rank: int | None = option(
        None, "Rank u of the attention, 64 by default; a model to start from keeps so many heads, or all.", least=1
    )
    positions: Literal["none", "relative", "absolute"] = option("none", "Position weights.")
    scale: Literal["mean", "sum"] = option("mean", "Position weights average 1 or sum to 1.")
    initial_context: Literal["ones", "learned", "uniform"] = option("ones", "The context c^0.")

    def __post_init__(self) -> None:
        require_valid(self)
