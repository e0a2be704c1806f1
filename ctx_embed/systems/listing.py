"""All systems with their parameters counted."""

from __future__ import annotations

from typing import Any

from ctx_embed.systems.descriptions import DESCRIPTIONS, EVALUATION_BASELINES
from ctx_embed.systems.registry import SYSTEMS, option_defaults, parameter_count, without_vocabulary


def listing(dimension: int) -> list[dict[str, Any]]:
    """Return each system's name, kind, formula, parameters, their count by default, complexity, source and options.

    Args:
        dimension: m, for the count.

    Raises:
        InputError: a dimension that the default heads of a Transformer do not divide.
    """
    return [
        {
            "name": name,
            "kind": "system",
            **DESCRIPTIONS[name]._asdict(),
            "parameter_count": parameter_count(without_vocabulary(name, dimension)),
            "options": option_defaults(name),
        }
        for name in SYSTEMS
    ]


def baselines() -> list[dict[str, Any]]:
    """Return the baselines that evaluation offers besides the systems."""
    return [
        {"name": name, "kind": "evaluation baseline", "formula": line} for name, line in EVALUATION_BASELINES.items()
    ]
