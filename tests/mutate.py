"""Plant faults of one line in the program, one at a time, and say which of them the tests notice.

python -m tests.mutate NUMBER [--seed SEED] [--room NAME ...] [--workers N] draws faults in every room, of the kinds
that a tired developer makes. All kinds of a room are as likely, so that numbers do not drown the rest. Each is planted
in a copy of the tree, and the tests that run its function decide: killed, SURVIVED or timeout. build/mutants has a line
for each; the same command resumes. The seed is the hash of the commit unless --seed gives another.

Which tests run a function is recorded once, by a copy whose functions write their names down. That takes as long as the
tests, and is repeated only for test files that have changed (--fresh: for all, after large changes of the program).
"""

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib
import json
import multiprocessing
import os
import py_compile
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

# So that processes begin with slow libraries loaded.
FORK = multiprocessing.get_context("fork")
ROOT = Path(__file__).parent.parent
STORE = ROOT / "build" / "mutants"
KERNEL = "ctx_embed/kernel/contextualizer.c"
# Tests of the tree, of pages, and those without an end.
LEFT_OUT = ("tests/docs", "tests/soak", "tests/fuzz", "tests/test_development.py", "tests/test_imports.py")
# What it reads, no test runs: signatures of public names, with their defaults.
NAMES = "tests/docs/test_pages.py::test_the_page_of_names_is_that_of_the_code"
# Generic types, whose arguments are types, and what is one.
TYPES = ("tuple", "list", "dict", "set", "type", "Callable", "Mapping", "NDArray", "TypeAlias")
# Seconds that the tests of one fault may take without it.
MOST_SECONDS = 100

OPERATORS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, FloorDiv Mult, BitAnd BitOr, And Or"
SWAPS = [(getattr(ast, old), getattr(ast, new)) for old, new in map(str.split, OPERATORS.split(", "))]
OTHER = {**{new: old for old, new in SWAPS if old is not ast.FloorDiv}, **dict(SWAPS)}
# Functions and methods that are often forgotten: f(x) and x.f() become x.
FORGOTTEN = re.compile(
    "sorted|reversed|set|abs|round|sqrt|log|exp|sigmoid|(log_)?softmax|relu|tanh|resolve|expanduser|lower|casefold"
    "|r?strip|contiguous|detach|.*(copy|escape|quote|normali[sz]ed?|unit|clip|clamp|unique|contiguousarray)"
)
# Arguments that change a screen, or nothing on the machine of the tests.
COSMETIC = "help", "short_help", "epilog", "metavar", "desc", "stacklevel", "encoding", "strict", "description", "slots"
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|WHERE|ORDER BY|BEGIN|JOIN|VALUES)\b")
SQL_FAULTS = {
    r"\bORDER BY [^)]*?(?=$|\)| LIMIT)": "", r" DESC\b": "", r"\bMIN\b": "MAX", r"\bMAX\b": "MIN",
    r"\bmin\(": "max(", r"\bmax\(": "min(", r"\bAND\b": "OR", r"\bNOT ": "", r"\bDISTINCT ": "",
    r"\bUNION ALL\b": "UNION", r"\bLEFT JOIN\b": "JOIN", r"\bOR REPLACE\b": "OR IGNORE",
    r"\bOR IGNORE\b": "OR REPLACE", r"\bUNIQUE\b": "", r"\bIMMEDIATE\b": "", r"(?<=[ ?\w])>= ?": "> ",
    r"(?<=[ ?\w])<= ?": "< ", r"(?<=[ ?\w])>(?!=) ?": ">= ", r"(?<=[ ?\w])<(?![=>]) ?": "<= ",
    r"(?<=[ \w])= ?\?": "!= ?", r"\d+": "1", r" \+ ": " - ",
}  # fmt: skip
C_FAULTS = {
    "operator": {
        r" < ": " <= ", r" <= ": " < ", r" > ": " >= ", r" >= ": " > ", r" == ": " != ", r" != ": " == ",
        r" \+ ": " - ", r" - ": " + ", r" \* ": " + ", r" / ": " * ", r" && ": " || ", r" \|\| ": " && ",
        r" \+= ": " -= ", r" & ": " | ", r" << ": " >> ", r" >> ": " << ",
    },
    "number": {r"(?<![\w.\"'])\d+(?=[;,)\]} ])": "+1"},
    "condition inverted": {r"(?<=\()!(?=\w)": "", r"\bif \(": "if (!"},
    "call dropped": {r"^ +(?!return|goto|break|continue)\w+\(.*\);$": ";", r"^ +(break|continue);$": ";"},
    "assignment dropped": {r"^ +[\w>.\[\]-]+(\[.*\])? [+*|]?= .*;$": ";"},
}  # fmt: skip
# In the copy that records: each function calls ``ran``, in each process that a test starts.
RECORDER = """
import os
seen = set()
def ran(place):
    key = os.environ.get("RUNNING", "-"), place
    if key not in seen:
        seen.add(key)
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ran.tsv"), "a") as file:
            file.write("\\t".join(key) + "\\n")
"""
# Names the running test; what a fixture runs belongs to each test that asks for the fixture.
PLUGIN = """
import os, pytest
from contextlib import contextmanager
log = open("tests.tsv", "a")
@contextmanager
def running(name):
    before, os.environ["RUNNING"] = os.environ.get("RUNNING", "-"), name
    yield
    os.environ["RUNNING"] = before
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.user_properties.append(("fixtures", " ".join(item.fixturenames)))
    with running(item.nodeid):
        return (yield)
@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    with running("fixture " + fixturedef.argname):
        return (yield)
def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        print(report.nodeid, report.duration, dict(report.user_properties)["fixtures"], sep="\\t", file=log, flush=True)
"""


def _become(node: ast.AST, other: ast.AST) -> None:
    """Turn a node into another, in its place."""
    node.__class__, node.__dict__ = other.__class__, dict(other.__dict__)


def _swap(values: list, place: int) -> None:
    values[place], values[place + 1] = values[place + 1], values[place]


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")


def _number(value: object) -> object:
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else value and ""


def _faults(node: ast.AST) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each fault of a node of Python: its kind, and the call that plants it."""
    become = partial(partial, _become, node)
    match node:
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()) | ast.Delete():
            yield "call dropped", become(ast.Pass())
        case ast.Break() | ast.Continue():
            yield "call dropped", become(ast.Pass())
        case ast.With(items=items) if not any(item.optional_vars for item in items):
            yield "lock dropped", become(ast.If(ast.Constant(True), node.body, []))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield "assignment dropped", become(ast.Pass())
            if isinstance(node, ast.AugAssign) and (other := OTHER.get(type(node.op))):
                yield "operator", partial(setattr, node, "op", other())
        case ast.Call(func=function, args=values, keywords=keywords):
            for place, keyword in enumerate(keywords):
                if keyword.arg not in COSMETIC:
                    yield "argument left out", partial(keywords.pop, place)
            if len(values) > 1:
                yield "argument left out", partial(values.pop)
            for place in range(len(values) - 1):
                yield "two swapped", partial(_swap, values, place)
            if FORGOTTEN.fullmatch(_name(function)):
                if values and not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant)):
                    yield "function dropped", become(values[0])
                elif isinstance(function, ast.Attribute):
                    yield "function dropped", become(function.value)
        case ast.Attribute(attr="T"):
            yield "function dropped", become(node.value)
        case ast.keyword(arg="axis" | "dim", value=value):
            yield "axis", partial(setattr, node, "value", ast.Constant(int(ast.unparse(value) in ("0", "-1", "None"))))
        case ast.arguments():
            for default in [*node.defaults, *filter(None, node.kw_defaults)]:
                if isinstance(default, ast.Constant) and default.value not in (None, ""):
                    yield "default changed", partial(setattr, default, "value", _number(default.value))
        case ast.AnnAssign(value=ast.Constant(value=value)) if value not in (None, "", ...):
            yield "default changed", partial(setattr, node.value, "value", _number(value))
        case ast.Constant(value=int() | float()):
            yield "number", partial(setattr, node, "value", _number(node.value))
        case ast.Constant(value=str(text)) if SQL.search(text):
            for found, other in _replaced(text, SQL_FAULTS):
                yield "SQL", partial(setattr, node, "value", text[: found.start()] + other + text[found.end() :])
        case ast.If(test=test) | ast.IfExp(test=test) if _name(test) != "TYPE_CHECKING":
            yield "condition inverted", partial(_become, test, ast.UnaryOp(ast.Not(), copy.copy(test)))
        case ast.comprehension(ifs=[_, *_]):
            yield "condition left out", partial(node.ifs.pop, 0)
        case ast.BoolOp(values=values):
            yield "operator", partial(setattr, node, "op", OTHER[type(node.op)]())
            yield from (("condition left out", partial(values.pop, place)) for place in range(len(values)))
        case ast.Dict(keys=keys):
            for place in range(len(keys)):
                yield "field lost", lambda place=place: (node.keys.pop(place), node.values.pop(place))
        case ast.List(elts=values, ctx=ast.Load()) | ast.Tuple(elts=values, ctx=ast.Load()) if len(values) > 1:
            yield "list cut", partial(values.pop)
            yield "two swapped", partial(_swap, values, 0)
        case ast.Slice(upper=ast.expr()) if not isinstance(node.upper, ast.Constant):
            yield "list cut", partial(setattr, node, "upper", ast.BinOp(node.upper, ast.Sub(), ast.Constant(1)))
        case ast.ExceptHandler(type=ast.expr() as caught):
            fewer = caught.elts[:-1] if isinstance(caught, ast.Tuple) else []
            yield "error class", partial(setattr, node, "type", ast.Tuple(fewer, ast.Load()))
        case ast.Raise(exc=ast.Call(func=function)):
            yield "error class", partial(_become, function, ast.Name("RuntimeError", ast.Load()))
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()) if not isinstance(node.operand, ast.Constant):
            kind = {ast.Not: "condition inverted", ast.Invert: "mask", ast.USub: "operator"}[type(node.op)]
            yield kind, become(node.operand)
        case ast.BinOp(op=operator) if other := OTHER.get(type(operator)):
            yield "operator", partial(setattr, node, "op", other())
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                if other := OTHER.get(type(operator)):
                    yield "operator", partial(operators.__setitem__, place, other())


def _replaced(text: str, faults: dict[str, str]) -> Iterator[tuple[re.Match, str]]:
    for pattern, other in faults.items():
        for found in re.finditer(pattern, text, re.MULTILINE):
            yield found, str(int(found[0]) + 1) if other in ("1", "+1") and found[0].isdigit() else other


def _functions(node: ast.AST, within: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield what runs below a node, each with the name of its function; types and docstrings do not run."""
    match node:
        case ast.AnnAssign(annotation=kind) | ast.Subscript(value=kind) if _name(kind) in TYPES:
            return
        case ast.Assign(targets=[ast.Name("__all__")]) | ast.Expr(ast.Constant()):
            return
    for child in ast.iter_child_nodes(node):
        if child not in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            name = f"{within}.{child.name}" if is_named else within
            yield child, name
            yield from _functions(child, name)


class Fault:
    """One fault in a file: its kind, its line, its function and the whole source with it."""

    def __init__(self, file: str, source: str, number: int):
        if file.endswith(".c"):
            self.kind, self.line, self.changed = _c_faults(source)[number]
            self.place, before = "ctx_embed/kernel/library.py", source
        else:
            tree = ast.parse(source)
            before = ast.unparse(tree)
            node, name, self.kind, plant = _python_faults(tree)[number]
            self.line = next((each.lineno for each in ast.walk(node) if hasattr(each, "lineno")), 0)
            self.place = f"{file}:{name}"
            plant()
            self.changed = ast.unparse(ast.fix_missing_locations(tree))
        lines = zip(before.splitlines(), self.changed.splitlines(), strict=False)
        old, new = next(((old, new) for old, new in lines if old != new), ("", ""))
        same = next((place for place, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), 0)
        shown = slice(max(same - 40, 0), same + 60)
        self.text = f"{old[shown].strip()}  =>  {new[shown].strip()}"


def _python_faults(tree: ast.AST) -> list[tuple[ast.AST, str, str, Callable[[], object]]]:
    return [(node, name, *fault) for node, name in _functions(tree) for fault in _faults(node)]


@cache
def _c_faults(source: str) -> list[tuple[str, int, str]]:
    """Return the faults of C: kind, line and the source with it."""
    faults = []
    lines = source.splitlines(keepends=True)
    comment = False
    for place, line in enumerate(lines):
        code = line.split("//")[0].rstrip()
        comment = comment or code.lstrip().startswith("/*")
        if not comment and not code.startswith(("#", "static const", "typedef")):
            for kind, patterns in C_FAULTS.items():
                for found, other in _replaced(code, patterns):
                    changed = f"{code[: found.start()]}{other}{code[found.end() :]}\n"
                    faults.append((kind, place + 1, "".join([*lines[:place], changed, *lines[place + 1 :]])))
        comment = comment and "*/" not in line
    return faults


def _room(file: str) -> str:
    """Return the room of a file: its folder in the package, or the file itself; cli, eval or papers."""
    first, second, *_ = Path(file).with_suffix("").parts
    return second if first == "ctx_embed" else first


def _drawn(number: int, seed: str, rooms: list[str]) -> list[tuple[str, int]]:
    """Draw faults as files and numbers: a room by its size, then a kind, then a place."""
    places: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for file in [KERNEL, *_files()]:
        source = (ROOT / file).read_text(encoding="utf-8")
        faults = _c_faults(source) if file == KERNEL else [each[2:] for each in _python_faults(ast.parse(source))]
        for place, (kind, *_) in enumerate(faults):
            places[_room(file)][f"{kind} in C" if file == KERNEL else kind].append((file, place))
    if unknown := set(rooms) - set(places):
        sys.exit(f"unknown rooms {sorted(unknown)}; there are {', '.join(sorted(places))}")
    chance = random.Random(seed)
    sizes = {room: sum(map(len, kinds.values())) for room, kinds in places.items() if not rooms or room in rooms}
    print(f"{sum(sizes.values()):,} possible faults in {len(sizes)} rooms, {number} drawn, seed {seed}", flush=True)
    drawn: list[tuple[str, int]] = []
    while len(drawn) < min(number, sum(sizes.values())):
        room = chance.choices(list(sizes), list(sizes.values()))[0]
        found = chance.choice(places[room][chance.choice(list(places[room]))])
        drawn += [found] if found not in drawn else []
    return drawn


def _files() -> list[str]:
    """Return the Python files of the program, without links."""
    found = (
        (top, path) for top in ("ctx_embed", "cli", "eval", "papers") for path in sorted((ROOT / top).rglob("*.py"))
    )
    return [path.relative_to(ROOT).as_posix() for top, path in found if ROOT / top in path.resolve().parents]


def _child(tree: Path, arguments: list[str]) -> None:
    """Run pytest in a tree, in this process, which has loaded slow libraries."""
    os.setsid()
    os.chdir(tree)
    descriptor = os.open("output.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "GIT_OPTIONAL_LOCKS": "0"}
    for module in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[module]
    sys.path[:] = [str(tree), *(each for each in sys.path if each not in ("", str(ROOT)))]
    options = ["-q", "-pno:cacheprovider", f"--basetemp={tree}/tmp", "-Wignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*options, *arguments])
    sys.stdout.flush()
    os._exit(code)


def _pytest(tree: Path, arguments: list[str], seconds: float) -> tuple[int | None, str]:
    """Run pytest in a tree, forked from this process; None if time is up."""
    child = FORK.Process(target=_child, args=(tree, arguments))
    child.start()
    child.join(seconds)
    code = child.exitcode
    # Servers and other processes that a failing test leaves, too.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join()
    return code, (tree / "output.txt").read_text(encoding="utf-8", errors="replace")


def _copied(folder: Path) -> Path:
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.partial", "build", "dist")
    tree = Path(shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored))
    # For tests that ask git for the commit; they only read.
    (tree / ".git").symlink_to(ROOT / ".git")
    for file in _files():
        py_compile.compile(tree / file, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return tree


def _record(tests: list[str]) -> None:
    """Record, for each test file, its tests that pass: their seconds and the functions that they run."""
    with tempfile.TemporaryDirectory() as folder:
        tree = _copied(Path(folder) / "tree")
        (tree / "recorder.py").write_text(RECORDER, encoding="utf-8")
        (tree / "plugin.py").write_text(PLUGIN, encoding="utf-8")
        for file in _files():
            source = ast.parse((tree / file).read_text(encoding="utf-8"))
            for node, name in [*_functions(source)]:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    call = ast.parse(f"__import__('recorder').ran({f'{file}:{name}'!r})").body
                    node.body[bool(ast.get_docstring(node, clean=False)) : 0] = call
            (tree / file).write_text(ast.unparse(ast.fix_missing_locations(source)), encoding="utf-8")
        for test in tests:
            (tree / "ran.tsv").write_text("")
            (tree / "tests.tsv").write_text("")
            _, output = _pytest(tree, ["-p", "plugin", test], 1800)
            ran: dict[str, set[str]] = defaultdict(set)
            for line in (tree / "ran.tsv").read_text().splitlines():
                name, _, place = line.partition("\t")
                ran[name].add(place)
            found = {}
            for line in (tree / "tests.tsv").read_text().splitlines():
                name, seconds, fixtures = line.split("\t")
                places = ran[name].union(*(ran[f"fixture {fixture}"] for fixture in fixtures.split()))
                found[name] = {"seconds": float(seconds), "places": sorted(places)}
            print("" if found else output[-3000:], f"recorded {test}: {len(found)} tests; {output.splitlines()[-1:]}")
            _recorded(test).write_text(json.dumps(found), encoding="utf-8")


def _recorded(test: str) -> Path:
    """Return where the record of a test file stands, by its name and content."""
    digest = hashlib.sha1((ROOT / test).read_bytes()).hexdigest()[:12]
    return STORE / "ran" / f"{test.removesuffix('.py').replace('/', '.')}-{digest}.json"


def _tests() -> list[str]:
    found = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py")))
    return [test for test in found if not test.startswith(LEFT_OUT)]


def _try(faults: list[tuple[str, int]], results: Path) -> None:
    """Try faults one after the other, and add a line for each to the results."""
    seconds, running = {}, defaultdict(set)
    for record in filter(Path.exists, map(_recorded, _tests())):
        for name, each in json.loads(record.read_text(encoding="utf-8")).items():
            seconds[name] = each["seconds"]
            for place in each["places"]:
                running[place].add(name)
                running[place.partition(":")[0]].add(name)
    with tempfile.TemporaryDirectory() as folder:
        tree = _copied(Path(folder) / "tree")
        for file, number in faults:
            original = (tree / file).read_text(encoding="utf-8")
            fault = Fault(file, original, number)
            module, _, function = fault.place.partition(":")
            while function and f"{module}:{function}" not in running:
                function = function.rpartition(".")[0]
            places = running[f"{module}:{function}" if function else module]
            own = f"tests/{_room(file)}"
            chosen, left = [], MOST_SECONDS
            for test in sorted(places, key=lambda test: (own not in test, seconds[test])):
                if seconds[test] <= left:
                    left -= seconds[test]
                    chosen.append(test)
            if fault.kind == "default changed":
                seconds[NAMES], chosen = 5.0, [*chosen, NAMES]
            code, output = 0, ""
            if chosen:
                (tree / file).write_text(fault.changed, encoding="utf-8")
                if file == KERNEL:
                    subprocess.run([sys.executable, "build_kernel.py"], cwd=tree, check=False, capture_output=True)
                chosen.sort(key=seconds.get)
                code, output = _pytest(tree, ["-x", *chosen], 60 + 4 * (MOST_SECONDS - left))
                (tree / file).write_text(original, encoding="utf-8")
                if file == KERNEL:
                    subprocess.run([sys.executable, "build_kernel.py"], cwd=tree, check=True, capture_output=True)
            result = "timeout" if code is None else "killed" if code else "SURVIVED"
            by = re.search(r"^(?:FAILED|ERROR) (.*?)( - |$)", output, re.MULTILINE)
            said = f"{len(chosen)} tests" if code == 0 else by[1] if by else f"code {code}"
            with results.open("a", encoding="utf-8") as file_of_results:
                columns = [result, f"{file}:{fault.line}", fault.kind, fault.text, said, f"{file}#{number}"]
                file_of_results.write("\t".join(columns) + "\n")


def main() -> None:
    """Draw faults, try them, and print the survivors, the shares by room and the share of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed")
    parser.add_argument("--room", action="append", default=[])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--minutes", type=float, default=1e4, help="stop the faults after these; the command resumes")
    chosen = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    seed = chosen.seed or commit.strip()[:12] or "0"
    drawn = _drawn(chosen.number, seed, chosen.room)
    (STORE / "ran").mkdir(parents=True, exist_ok=True)
    for slow in ("datasets", "faiss", "sentence_transformers", "sklearn.linear_model"):
        importlib.import_module(slow)
    _record([test for test in _tests() if chosen.fresh or not _recorded(test).exists()])
    results = STORE / f"{seed}.tsv"
    results.touch()
    lines = {line.split("\t")[-1]: line for line in results.read_text(encoding="utf-8").splitlines()}
    left = [(file, number) for file, number in drawn if f"{file}#{number}" not in lines]
    parts = [left[start :: chosen.workers] for start in range(chosen.workers)]
    workers = [FORK.Process(target=_try, args=(part, results)) for part in parts]
    for worker in workers:
        worker.start()
    end = time.monotonic() + 60 * chosen.minutes
    for worker in workers:
        worker.join(max(end - time.monotonic(), 0))
        worker.terminate()
    lines = {line.split("\t")[-1]: line for line in results.read_text(encoding="utf-8").splitlines()}
    tried = [lines[f"{file}#{number}"] for file, number in drawn if f"{file}#{number}" in lines]
    print(*(line for line in tried if line.startswith("SURVIVED")), sep="\n")
    rooms: dict[str, list[bool]] = defaultdict(list)
    for line in tried:
        result, place, *_ = line.split("\t")
        rooms[_room(place.partition(":")[0])].append(result != "SURVIVED")
    for room, noticed in sorted(rooms.items()):
        print(f"{room:<16} {sum(noticed) / len(noticed):4.0%} of {len(noticed)}")
    noticed = [each for of_room in rooms.values() for each in of_room]
    print(f"noticed {100 * sum(noticed) / max(len(noticed), 1):.0f} % of {len(noticed)}")


if __name__ == "__main__":
    main()
