"""One translation of filters for all databases: a database says only what it makes of a condition on one field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from ctx_embed.index.storage.filters import (
    Among,
    Comparison,
    Contains,
    Filter,
    IsNull,
    Junction,
    Not,
    is_date,
    next_day,
)

T = TypeVar("T")
Condition: TypeAlias = Comparison | Contains | IsNull
_DATE_LENGTH = len("2024-01-31")


def translated(
    tree: Filter,
    condition: Callable[[Condition], T],
    joined: Callable[[str, Sequence[T]], T],
    negated: Callable[[T], T],
) -> T:
    """Return a filter in the language of a database.

    `in`, negated conditions and dates that stand for a whole day are put together from plain conditions. Databases
    compare ISO dates as strings, which sort like their times if all have the same offset.

    ``condition`` translates a comparison, `contains` or `is null`, and must never give null; ``joined`` joins parts by
    "and" or "or"; ``negated`` negates a part.
    """

    def visit(tree: Filter) -> T:
        if isinstance(tree, Not):
            return negated(visit(tree.part))
        if isinstance(tree, Junction):
            return joined(tree.word, [visit(part) for part in tree.parts])
        if isinstance(tree, Among):
            same = joined("or", [visit(Comparison(tree.path, "=", value)) for value in tree.values])
            return negated(joined("or", [condition(IsNull(tree.path)), same])) if tree.negated else same
        if isinstance(tree, IsNull):
            present = condition(IsNull(tree.path))
            return negated(present) if tree.negated else present
        day = tree.value if isinstance(tree, Comparison) and isinstance(tree.value, str) else ""
        if isinstance(tree, Comparison) and len(day) == _DATE_LENGTH and is_date(day):
            following = next_day(day)
            if tree.operator == "=":
                bounds = [Comparison(tree.path, ">=", day), Comparison(tree.path, "<", following)]
                return joined("and", [condition(bound) for bound in bounds])
            if tree.operator in ("<=", ">"):
                return condition(Comparison(tree.path, "<" if tree.operator == "<=" else ">=", following))
        return condition(tree)

    return visit(tree)
