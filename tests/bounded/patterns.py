"""Every regular expression of the package with the calls that use it, and strings that attack each."""

import ast
import importlib
import itertools
import random
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import ctx_embed
from ctx_embed.reading import blocks, walking
from ctx_embed.text.tokenizer import IDEOGRAPHS
from tests.bounded.growth import Make, repeated

try:
    from re import _parser as sre  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse as sre

PACKAGE = Path(ctx_embed.__file__).parent
# Glob follows no link, so the two linked folders come apart.
FOLDERS = (PACKAGE, PACKAGE / "cli", PACKAGE / "eval")
METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
# Values of local names of which some patterns are made.
LOCALS: dict[str, Any] = {
    "_AUXILIARIES": "can|could",
    "allowed": ".",
    "begin": "a",
    "by_bert": True,
    "inner": "(?=(?P<g0>.*?b))(?P=g0)",
    "end": ".*c",
    "extra": "train",
    "ideographs": "\u3001-\u3003",
    "known": ["a", "aa", "ab"],
    "paired": "\u6771",
    "self": SimpleNamespace(cut=re.compile(rf"[\s{IDEOGRAPHS}\.\-\U00020000-\U0003ffff](?=[\w\.\-])")),
    "signs": r"\.\-",
    "name": "a*?b",
    "target": Path("notes"),
}
# The most characters that are given to some patterns: the start of a line, with tabs as spaces, or a rule.
BOUNDED = {
    blocks._DEFINES: 8 * blocks._LONGEST_HEAD,
    walking._SIGN: walking.LONGEST_RULE,
    walking._SPACES: walking.LONGEST_RULE,
}
# The most characters of a piece, and of what comes before it.
LONGEST = 100
Pattern: TypeAlias = "re.Pattern[Any]"


def _evaluated(node: ast.expr, names: dict[str, Any]) -> Any:
    try:
        return eval(compile(ast.Expression(node), "", "eval"), names)
    except Exception:
        return None


def uses(path: Path) -> set[tuple[Pattern, str]]:
    """Return the patterns that a file uses, each with the method called; all that it compiles must be among them."""
    source = path.read_text(encoding="utf-8")
    if not re.search(r"\bre\.", source):
        return set()
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    # To import torch takes as long as a sixth of this harness: what those files compile, they call themselves.
    alone = re.search(r"^\s*(?:import|from) (?:torch|sentence_transformers)", source, re.M)
    name = ".".join(("ctx_embed", *parts)).removesuffix(".__init__")
    names, local = ({"re": re} if alone else vars(importlib.import_module(name))) | LOCALS, dict[str, Any]()
    tree = ast.parse(source)
    nodes, lines = list(ast.walk(tree)), source.splitlines()
    compiled, used, unknown = set[Pattern](), set[tuple[Pattern, str]](), set[str]()
    for node in nodes:
        lined = lines[node.lineno - 1 : node.end_lineno] if isinstance(node, ast.Assign | ast.Call) else []
        if any("re.compile(" in line for line in lined):
            value = _evaluated(node.value if isinstance(node, ast.Assign) else node, names)
            if isinstance(node, ast.Assign) and isinstance(value, re.Pattern):
                local[ast.unparse(node.targets[0])] = value
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
                (compiled if isinstance(value, re.Pattern) else unknown).add(value or ast.unparse(node))
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(ast.Name("re"), method), [pattern, *_]) if method in METHODS:
                flags = [_evaluated(word.value, names) for word in node.keywords if word.arg == "flags"]
                found = _evaluated(pattern, names)
                if isinstance(found, str | bytes):
                    used.add((re.compile(found, *flags), method))
                else:
                    unknown.add(ast.unparse(node))
            case ast.Call(ast.Name("in_pieces"), [_, pattern, *_]):
                used.add((local.get(ast.unparse(pattern)) or _evaluated(pattern, names), "search"))
            case ast.Attribute(ast.Subscript(of) | of, method) if method in METHODS:
                found = local.get(ast.unparse(of)) or _evaluated(of, names)
                several = found.values() if isinstance(found, dict) else [found]
                used |= {(each, method) for each in several if isinstance(each, re.Pattern)}
    assert not unknown, f"{path}: name values for these in LOCALS: {unknown}"
    assert compiled <= {pattern for pattern, _ in used}, f"{path}: it is not known how these are called"
    return used


def caller(pattern: Pattern, method: str) -> Callable[[Any], Any]:
    """Return the method as it is called: all that ``finditer`` finds, ``sub`` by nothing."""
    call = getattr(pattern, method)
    if method in ("sub", "subn"):
        return partial(call, pattern.pattern[:0])
    return (lambda text: deque(call(text), 0)) if method == "finditer" else call


# Attacks


def _sample(items: Any, pool: list[str], draw: random.Random) -> str:
    """Return a text that a parsed pattern may match."""
    found = []
    for op, value in items:
        name = str(op)
        if name == "LITERAL":
            found.append(chr(value))
        elif name in ("IN", "NOT_LITERAL", "ANY"):
            found.append(draw.choice(_characters(op, value, pool)))
        elif name == "BRANCH":
            found.append(_sample(draw.choice(value[1]), pool, draw))
        elif name == "SUBPATTERN":
            found.append(_sample(value[-1], pool, draw))
        elif name == "ATOMIC_GROUP":
            found.append(_sample(value, pool, draw))
        elif name.endswith("REPEAT"):
            least, _, inside = value
            found += [_sample(inside, pool, draw) for _ in range(min(max(least, draw.randint(0, 1)), LONGEST))]
    return "".join(found)


def _characters(op: Any, value: Any, pool: list[str]) -> list[str]:
    """Return those of the pool that a class matches, or its first character."""
    if str(op) == "ANY":
        return pool
    if str(op) == "NOT_LITERAL":
        return [character for character in pool if ord(character) != value]
    negated = str(value[0][0]) == "NEGATE"
    found = [character for character in pool if any(_within(*each, character) for each in value) != negated]
    first = next((of[0] if isinstance(of, tuple) else of for op, of in value if str(op) in ("RANGE", "LITERAL")), 97)
    return found or [chr(first)]


def _within(op: Any, value: Any, character: str) -> bool:
    if str(op) == "RANGE":
        return value[0] <= ord(character) <= value[1]
    if str(op) == "CATEGORY":
        kind = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(value).rpartition("_")[2]]
        return bool(re.match(kind, character)) != ("_NOT_" in str(value))
    return str(op) == "LITERAL" and value == ord(character)


def _repeats(items: Any, before: str, pool: list[str], draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield a text before each repeated part, and one of the part."""
    for op, value in items:
        name = str(op)
        inside = []
        if name.endswith("REPEAT"):
            inside = [value[2]]
            if value[1] > 8 and len(before) < LONGEST:
                yield before, _sample(value[2], pool, draw)
        elif name == "BRANCH":
            inside = value[1]
        elif name in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            inside = [value[-1]]
        for each in inside:
            yield from _repeats(each, before, pool, draw)
        before += _sample([(op, value)], pool, draw)


def _literals(item: Any) -> Iterator[str]:
    """Yield the characters that a parsed pattern names, of ranges the first."""
    match item:
        case (op, int(value) | (int(value), _)) if str(op) in ("LITERAL", "NOT_LITERAL", "RANGE"):
            yield chr(value)
        case tuple() | list() | sre.SubPattern():
            yield from itertools.chain.from_iterable(map(_literals, item))


def attacks(pattern: Pattern) -> dict[str, Make]:
    """Return texts of any size: what comes before each repeated part, then many of one piece, then something else."""
    source, flags, draw = pattern.pattern, pattern.flags, random.Random(0)
    if isinstance(source, bytes):
        source, flags = source.decode("latin-1"), flags & ~re.UNICODE
    tree = sre.parse(source, flags)
    pool = list(dict.fromkeys(["a", "1", " ", "\t", "\n", "_", *_literals(tree)]))
    # By the place of each repeated part, the shortest text before it, and what it may be; -1 is the whole pattern.
    starts, pieces = {-1: ""}, defaultdict[int, dict[str, None]](dict)
    for _ in range(6):
        for place, (before, part) in enumerate(_repeats(tree, "", pool, draw)):
            starts[place] = min(starts.get(place, before), before, key=len)
            pieces[place][part] = None
        pieces[-1][_sample(tree, pool, draw)[:LONGEST]] = None
    found: dict[str | bytes, Make] = {}
    for place, start in starts.items():
        for piece in filter(None, [*pieces[place], *pool[:6]]):
            for end in ("", "\0"):
                make = partial(_attack, pattern, start, piece, end)
                # Some are the same: an a many times, or two.
                found.setdefault(make(LONGEST), make)
    return {ascii(text): make for text, make in found.items()}


def _attack(pattern: Pattern, start: str, piece: str, end: str, n: int) -> str | bytes:
    text = start + repeated(piece)(n) + end
    return text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
