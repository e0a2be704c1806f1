"""Metadata filters: parse `year >= 2020 and lang = "en"` into a tree, and translate that into an SQLite condition.

    expression  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = "not" negation | "(" expression ")" | comparison
    comparison  = field ("=" | "==" | "!=" | "<" | "<=" | ">" | ">=") value
                | field ["not"] "in" "(" value {"," value} ")"
                | field "contains" value                 an element of a list, or part of a string
                | field "is" ["not"] "null"
    value       = number | "string" | 'string' | true | false
    field       = name {"." name} | `any name`           a dot selects a field of an object

A comparison with a value of another type, or with a field that a document lacks, is false, and so is `!=` if the field
is missing or null. `not` turns true into false and false into true. A string compared with a field that has only
numbers, true and false is an error.

A string that is an ISO 8601 date or date with time, such as "2024-01-31" or "2024-01-31T12:00:00+01:00", is compared
with such fields as a time, to the nanosecond; without an offset (Z, +01:00, +0100 or +01), both are in UTC. A date
stands for its whole day: both `<= "2024-01-31"` and `= "2024-01-31"` hold at any time of that day. Other strings are
compared as strings, but a date in another form, such as "31.01.2024", is an error with <, <=, > and >=, and wherever
only one side is an ISO date.

A filter has at most 1,000,000 characters, 200 comparisons, 10,000 values and 50 levels of parentheses and `not`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from ctx_embed.errors import InputError, described, listed_names, quoted, shortened
from ctx_embed.texts import composed

Value: TypeAlias = str | int | float | bool
# The names on the path to a field: several for a field of an object.
Path: TypeAlias = tuple[str, ...]

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<field>`[^`]*`)
      | (?P<name>[^\W\d][\w-]*(?:\.[\w-]+)*)
      | (?P<operator><=|>=|!=|==|<>|[=<>(),])
    )""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = {"and", "or", "not", "in", "is", "null", "contains", "true", "false"}
_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# SQLite's names of the JSON types that each type of value may be compared with.
_TYPES = {str: "'text'", bool: "'true', 'false'", int: "'integer', 'real'", float: "'integer', 'real'"}
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"[T ]([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d+))?)?(Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?", re.ASCII
)
_DAY = len("2024-01-31")
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\\.?"
# Strings that people write as dates; ISO dates are among them.
_LIKE_DATE = re.compile(
    r"(?:[a-z]+,? )?"
    r"(?:\d{4}([./-])\d{1,2}\1\d{1,2}|\d{1,2}([./-])\d{1,2}\2\d{4}|\d\d([./])\d\d\3\d\d|\d{1,2}/\d{1,2}/\d\d"
    rf"|\d{{1,2}}(?:\.|st|nd|rd|th)?[ -]{_MONTH},?[ -]\d{{4}}|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}})"
    r"(?:[T ,]+\d[\d:.,+ -]*[a-z]{0,4})?",
    re.ASCII | re.IGNORECASE,
)
# The ends of the first and last moment of a day, after the eight digits of its number: seconds, and nine more digits.
_FIRST, _LAST = "0" * 15, "235959" + "9" * 9
_FIELD = "json_extract(metadata, ?)"
_LONGEST = 1_000_000
# An expression is parsed by recursion, and SQLite limits the depth of a condition.
_DEEPEST = 50
# SQLite also limits the size of a condition and the number of its parameters.
_MOST_COMPARISONS, _MOST_VALUES = 200, 10_000
# Longer numbers exceed every range; Python also refuses to read integers of more than 4,300 digits.
_LONGEST_NUMBER = 1000


@dataclass(frozen=True)
class Comparison:
    """A field compared by ``operator``, one of < <= > >= (and = in stores), with a value of its own type."""

    path: Path
    operator: str
    value: Value


@dataclass(frozen=True)
class Among:
    """A field whose value is in a list, which may have one value (``=``)."""

    path: Path
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Contains:
    """A field that is a list with this value, or a string that contains it."""

    path: Path
    value: Value


@dataclass(frozen=True)
class IsNull:
    """A field that is null or missing."""

    path: Path


@dataclass(frozen=True)
class Not:
    """True if a part is false, and the reverse."""

    part: Filter


@dataclass(frozen=True)
class Junction:
    """Two parts or more, all of which are true (``and``), or at least one (``or``)."""

    word: str
    parts: tuple[Filter, ...]


Filter: TypeAlias = Comparison | Among | Contains | IsNull | Not | Junction


@dataclass(frozen=True)
class Condition:
    """A condition on the columns of the table `documents`, the values of its parameters, and the fields it compares.

    ``fields`` are paths, see :func:`field_path`, without those that ``is null`` says may be missing, each with whether
    it is compared with numbers. ``texts`` are those compared with strings alone, each with one that stands for a date,
    or an empty one.
    """

    sql: str
    values: tuple[Any, ...]
    fields: tuple[tuple[str, bool], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


# Matches any document.
ALL = Condition("1", ())


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


def parse(text: str) -> Filter:
    """Return the tree of a filter; InputError names the place where it does not follow the grammar above."""
    return _Parser(text).whole()


def parse_filter(text: str) -> Condition:
    """Return the SQL condition of a filter; raise InputError like :func:`parse`."""
    parser, values = _Parser(text), list[Any]()
    sql = _sql(parser.whole(), values)
    fields = {_json_path(path): path in parser.numeric for path in parser.compared if path not in parser.optional}
    texts = {_json_path(path): date for path, date in parser.texts.items() if path not in parser.others}
    return Condition(sql, tuple(values), tuple(fields.items()), tuple(texts.items()))


def field_path(text: str) -> str:
    """Return SQLite's JSON path of a field, written as in a filter: ``year``, ``author.name``, ```any name```."""
    parser = _Parser(text, "field", "year")
    path = parser.path()
    if parser.token is not None:
        raise parser.unexpected("the end")
    return _json_path(path)


class _Parser:
    """Reads a filter token by token; ``token`` is the next token, None at the end.

    ``compared`` are the fields of all comparisons so far, ``optional`` those that are tested with ``is null``,
    ``numeric`` those that are compared with numbers, ``texts`` those that are compared with strings, each with a date
    among these, and ``others`` those that are compared with anything else.
    """

    def __init__(self, text: str, kind: str = "filter", example: str = "year >= 2020") -> None:
        if not isinstance(text, str):
            raise InputError(f"the {kind} must be a string, e.g. {example!r}, got {described(text)}")
        self.text, self.kind = text, kind
        self.example = f'{example} and lang = "en"' if kind == "filter" else example
        self.depth = self.values_read = 0
        self.compared: list[Path] = []
        self.optional: set[Path] = set()
        self.numeric: set[Path] = set()
        self.texts: dict[Path, str] = {}
        self.others: set[Path] = set()
        if len(text) > _LONGEST:
            raise self.error(f"it has {len(text):,} characters, more than {_LONGEST:,}")
        self.tokens = self.scan()
        self.token = next(self.tokens, None)

    def scan(self) -> Iterator[_Token]:
        place, end = 0, len(self.text.rstrip())
        while place < end:
            match = _TOKEN.match(self.text, place)
            if match is None:
                while self.text[place].isspace():
                    place += 1
                raise self.error(f"{quoted(self.text[place])} at character {place + 1} is not part of a {self.kind}")
            kind = str(match.lastgroup)
            word, begin = match[kind], match.start(kind)
            if kind == "operator" or word.lower() in _KEYWORDS:
                # These words and signs are kinds of their own.
                kind = word = word.lower()
            yield _Token(kind, word, begin + 1)
            place = match.end()

    def error(self, what: str) -> InputError:
        return InputError(f"{self.kind} {quoted(self.text)}: {what}; an example: {self.example}")

    def unexpected(self, expected: str) -> InputError:
        if self.token is None:
            return self.error(f"expected {expected} at the end")
        return self.error(f"expected {expected} at character {self.token.place}, got {quoted(self.token.text)}")

    def takes(self, *kinds: str) -> _Token | None:
        """Consume and return the next token if it is of one of the kinds, else return None."""
        token = self.token
        if token is None or token.kind not in kinds:
            return None
        self.token = next(self.tokens, None)
        return token

    def whole(self) -> Filter:
        tree = self.any()
        if self.token is not None:
            raise self.unexpected("'and', 'or' or the end")
        return tree

    def any(self) -> Filter:
        return self.joined("or", lambda: self.joined("and", self.negation))

    def joined(self, word: str, part: Callable[[], Filter]) -> Filter:
        parts = [part()]
        while self.takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def negation(self) -> Filter:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(f"it is nested more than {_DEEPEST} levels deep")
        tree: Filter
        if self.takes("not"):
            tree = Not(self.negation())
        elif self.takes("("):
            tree = self.any()
            self.needed("')'", ")")
        else:
            tree = self.comparison()
        self.depth -= 1
        return tree

    def comparison(self) -> Filter:
        if len(self.compared) == _MOST_COMPARISONS:
            raise self.error(f"it has more than {_MOST_COMPARISONS} comparisons; use 'in' with a list")
        path = self.path()
        self.compared.append(path)
        missing = IsNull(path)
        if self.takes("is"):
            negated = self.takes("not")
            self.needed("'null'", "null")
            self.optional.add(path)
            return Not(missing) if negated else missing
        if self.takes("contains"):
            part = self.value(path)
            if len(str(part)) > 1000:  # SQLite compares it at each place of a text.
                raise self.error("it has a value of more than 1,000 characters after 'contains'")
            self.note(path, [part], dates=False)
            return Contains(path, part)
        negated = self.takes("not")
        if self.takes("in"):
            self.needed("'('", "(")
            values = [self.value(path)]
            while self.takes(","):
                values.append(self.value(path))
            self.needed("',' or ')'", ")")
            operator = "!=" if negated else "="
        else:
            expected = "'in'" if negated else "=, !=, <, <=, >, >=, in, contains or is"
            token = self.needed(expected, *(() if negated else _OPERATORS))
            operator, values = _OPERATORS[token.text], [self.value(path)]
        self.note(path, values)
        if operator not in ("=", "!="):
            if form_of_date(values[0]) == "other":
                raise self.error(f'{quoted(values[0])} is no ISO date; write dates as "2024-01-31"')
            return Comparison(path, operator, values[0])
        among = Among(path, tuple(values))
        return among if operator == "=" else Junction("and", (Not(missing), Not(among)))

    def note(self, path: Path, values: Sequence[Value], dates: bool = True) -> None:
        """Record the types of the values that a field is compared with."""
        if dates and all(type(value) in (int, float) for value in values):
            self.numeric.add(path)
        for value in values:
            if not isinstance(value, str):
                self.others.add(path)
            elif not self.texts.setdefault(path, "") and dates and form_of_date(value):
                self.texts[path] = value

    def needed(self, expected: str, *kinds: str) -> _Token:
        token = self.takes(*kinds)
        if token is None:
            raise self.unexpected(expected)
        return token

    def path(self) -> Path:
        token = self.needed("the name of a field", "name", "field")
        names = [token.text[1:-1]] if token.kind == "field" else token.text.split(".")
        if any(not name or '"' in name or "\\" in name or not name.isprintable() for name in names):
            raise self.error(f"{quoted(token.text)} cannot be the name of a field")
        if len(token.text) > 1000:  # SQLite reads it again for each document.
            raise self.error("it has the name of a field of more than 1,000 characters")
        return tuple(names)

    def value(self, path: Path) -> Value:
        token = self.needed('a number, a "string", true or false', "string", "number", "true", "false")
        self.values_read += 1
        if self.values_read > _MOST_VALUES:
            raise self.error(f"it has more than {_MOST_VALUES:,} values")
        if token.kind == "string":
            text = re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
            # SQLite ends a JSON string at NUL.
            if "\0" in text or text.encode("utf-8", "replace").decode() != text:
                raise self.error(f"the string at character {token.place} has a NUL or a lone surrogate")
            return composed(text) if path == ("source",) else text
        if token.kind == "number":
            if len(token.text) > _LONGEST_NUMBER:
                raise self.error(f"the number at character {token.place} has {len(token.text):,} characters")
            number = float(token.text) if set(token.text) & set(".eE") else int(token.text)
            if number in (float("inf"), float("-inf")):
                raise self.error(f"the number {shortened(token.text)} is too large")
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                raise self.error(f"the number {shortened(token.text)} does not fit into 64 bits")
            return number
        return token.kind == "true"


def _json_path(path: Path) -> str:
    return "$" + "".join(f'."{name}"' for name in path)


def _sql(tree: Filter, values: list[Any]) -> str:
    """Return a filter as SQL, false but never NULL where types differ, and add its parameters to ``values``."""
    if isinstance(tree, Junction):
        return f"({f' {tree.word.upper()} '.join([_sql(part, values) for part in tree.parts])})"
    if isinstance(tree, Not):
        return f"NOT {_sql(tree.part, values)}"
    path = _json_path(tree.path)
    if isinstance(tree, IsNull):
        values.append(path)
        return "(ifnull(json_type(metadata, ?), 'null') = 'null')"
    if isinstance(tree, Contains):
        values += [path, path, tree.value]
        element = (
            "EXISTS (SELECT 1 FROM json_each(metadata, ?) AS element WHERE json_type(metadata, ?) = 'array' "
            f"AND element.type IN ({_TYPES[type(tree.value)]}) AND element.value = ?)"
        )
        if not isinstance(tree.value, str):
            return element
        values += [path, path, tree.value]
        return f"({element} OR ifnull(json_type(metadata, ?) = 'text' AND instr({_FIELD}, ?) > 0, 0))"
    if isinstance(tree, Among):
        return f"({' OR '.join(_among(path, tree.values, values))})"
    start = moment_of(tree.value)
    if start is None:
        values += [path, path, tree.value]
        return _typed(_TYPES[type(tree.value)], f"{_FIELD} {tree.operator} ?")
    # A date stands for its whole day.
    ends = tree.operator in ("<=", ">") and len(str(tree.value)) == _DAY
    values += [path, path, f"{start[:8]}{_LAST}" if ends else start, path, tree.value]
    # Strings that are no dates have NULL as their moment, and are compared as strings.
    return _typed("'text'", f"coalesce(moment_of({_FIELD}) {tree.operator} ?, {_FIELD} {tree.operator} ?)")


def _typed(kinds: str, comparison: str) -> str:
    return f"ifnull(json_type(metadata, ?) IN ({kinds}) AND {comparison}, 0)"


def _among(path: str, listed: Sequence[Value], values: list[Any]) -> Iterator[str]:
    """Yield alternatives of SQL for a field in a list, see :func:`_sql`."""
    moments: dict[str, str] = {}
    groups: dict[str, list[Value]] = {}
    for value in listed:
        if (moment := moment_of(value)) is not None:
            moments[str(value)] = moment
        else:
            groups.setdefault(_TYPES[type(value)], []).append(value)
    for kinds, group in groups.items():
        values += [path, path, *group]
        yield _typed(kinds, f"{_FIELD} IN ({','.join('?' * len(group))})")
    if moments:
        # A date stands for its whole day. Strings that are no dates have no moment, and are compared as strings.
        days = [moment[:8] for value, moment in moments.items() if len(value) == _DAY]
        times = [moment for value, moment in moments.items() if len(value) > _DAY]
        among, moment = "IN (SELECT value FROM json_each(?))", f"moment_of({_FIELD})"
        chosen = [(sql, found) for sql, found in ((f"substr({moment}, 1, 8)", days), (moment, times)) if found]
        values.append(path)
        for found in (*(found for _, found in chosen), list(moments)):
            values += [path, json.dumps(found)]
        either = " OR ".join(f"{sql} {among}" for sql, _ in chosen)
        yield _typed("'text'", f"coalesce({either}, {_FIELD} {among})")


@lru_cache(maxsize=10_000)
def _number_of_day(text: str) -> str | None:
    """Return the number of a date, above 10, in eight digits; None if the text is no date."""
    try:
        return f"{date.fromisoformat(text).toordinal() + 10:08d}" if _DATE.fullmatch(text) else None
    except ValueError:
        return None


@lru_cache(maxsize=86_400)
def _time_of_day(text: str) -> tuple[int, str] | None:
    """Return how many days a time is moved to be in UTC, and there its hours, minutes, seconds and nine digits."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    hour, minute, second, fraction, zone = found.groups("00")
    minutes = int(hour) * 60 + int(minute)
    if zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        minutes -= int(f"{zone[0]}1") * (int(digits[:2]) * 60 + int(digits[2:]))
    return minutes // 1440, f"{minutes // 60 % 24:02d}{minutes % 60:02d}{second}{fraction:0<9.9}"


def moment_of(value: Value) -> str | None:
    """Return a date, or a date with time, as a string that sorts as its time; None for any other value."""
    if not isinstance(value, str) or (day := _number_of_day(value[:_DAY])) is None:
        return None
    if len(value) == _DAY:
        return day + _FIRST
    if (time := _time_of_day(value[_DAY:])) is None:
        return None
    return (f"{int(day) + time[0]:08d}" if time[0] else day) + time[1]


def form_of_date(value: Value) -> str:
    """Return "ISO" for a date in ISO 8601, "other" for one in another form, and otherwise an empty string."""
    if moment_of(value) is not None:
        return "ISO"
    return "other" if isinstance(value, str) and _LIKE_DATE.fullmatch(value) else ""


def name_of(path: str) -> str:
    """Return the name of a field, given its :func:`field_path`."""
    return ".".join(re.findall('"([^"]*)"', path))


def unknown_fields_message(unknown: Mapping[str, Sequence[str]]) -> str:
    """Return a message about the result of :meth:`SearchIndex.unknown_fields`; empty if all fields are known."""
    for name, known in unknown.items():
        if name in known:
            return f'no document has a number in the field {quoted(name)}; compare it with a "string"'
        return f"no document has a field {quoted(name)} (fields: {listed_names(known)})"
    return ""
