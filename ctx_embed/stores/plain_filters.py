"""Filters reduced to what every store has: comparisons, `contains` and `is null`, with `and`, `or` and `not`."""

from __future__ import annotations

from ctx_embed.index.storage.filters import Among, Comparison, Filter, IsNull, Junction, Not, Value, is_date, next_day

_DATE_LENGTH = len("2024-01-31")


def plain(tree: Filter) -> Filter:
    """Return an equivalent filter that has no `in`, no negated condition and no date that stands for a whole day.

    Other stores compare ISO dates as strings, which sort like their times if all have the same offset.
    """
    if isinstance(tree, Not):
        return Not(plain(tree.part))
    if isinstance(tree, Junction):
        return Junction(tree.word, tuple(plain(part) for part in tree.parts))
    if isinstance(tree, Comparison):
        return _day(tree) if _is_day(tree.value) else tree
    if isinstance(tree, IsNull):
        return Not(IsNull(tree.path)) if tree.negated else tree
    if isinstance(tree, Among):
        same = Junction("or", tuple(plain(Comparison(tree.path, "=", value)) for value in tree.values))
        return Not(Junction("or", (IsNull(tree.path), same))) if tree.negated else same
    return tree


def _is_day(value: Value) -> bool:
    return isinstance(value, str) and len(value) == _DATE_LENGTH and is_date(value)


def _day(tree: Comparison) -> Filter:
    path, day = tree.path, str(tree.value)
    following = next_day(day)
    if tree.operator == "=":
        return Junction("and", (Comparison(path, ">=", day), Comparison(path, "<", following)))
    if tree.operator == "<=":
        return Comparison(path, "<", following)
    return Comparison(path, ">=", following) if tree.operator == ">" else tree
