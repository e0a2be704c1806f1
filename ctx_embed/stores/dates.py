"""Dates in filters: a date stands for its whole day in every store."""

from __future__ import annotations

from ctx_embed.index.storage.filters import Among, Comparison, Filter, IsNull, Junction, Not, Value, is_date, next_day
from ctx_embed.index.storage.filters import Path as FieldPath

_DATE_LENGTH = len("2024-01-31")


def with_days(tree: Filter) -> Filter:
    """Return a filter in which a date bounds its day, as other stores than ours compare ISO dates as strings.

    Strings in ISO 8601 sort as their times do if all have one offset.
    """
    if isinstance(tree, Not):
        return Not(with_days(tree.part))
    if isinstance(tree, Junction):
        return Junction(tree.word, tuple(with_days(part) for part in tree.parts))
    if isinstance(tree, Comparison) and _is_day(tree.value):
        return _day(tree.path, tree.operator, str(tree.value))
    if isinstance(tree, Among) and any(_is_day(value) for value in tree.values):
        others = tuple(value for value in tree.values if not _is_day(value))
        parts: list[Filter] = [_day(tree.path, "=", str(value)) for value in tree.values if _is_day(value)]
        parts += [Among(tree.path, others)] if others else []
        among = parts[0] if len(parts) == 1 else Junction("or", tuple(parts))
        return Junction("and", (IsNull(tree.path, negated=True), Not(among))) if tree.negated else among
    return tree


def _is_day(value: Value) -> bool:
    return isinstance(value, str) and len(value) == _DATE_LENGTH and is_date(value)


def _day(path: FieldPath, operator: str, day: str) -> Filter:
    following = next_day(day)
    if operator == "=":
        return Junction("and", (Comparison(path, ">=", day), Comparison(path, "<", following)))
    if operator == "<=":
        return Comparison(path, "<", following)
    return Comparison(path, ">=", following) if operator == ">" else Comparison(path, operator, day)
