"""Change one operator or number of the program, run the tests that run its line, and say whether they notice.

python -m tests.mutate NUMBER [--seed SEED] [--workers N] [--results FILE] draws that many changes in the files of
ROOMS, each in a copy of the tree, and prints a line for each: killed, SURVIVED or timeout. FILE keeps these lines; the
same command goes on where it stopped. Needs the package `coverage`, which says what each test runs.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ROOMS = (
    "ctx_embed/second_order.py",
    "ctx_embed/numpy_model/*.py",
    "ctx_embed/index/storage/*.py",
    "ctx_embed/index/writing/*.py",
    "eval/scoring/*.py",
)
TESTS = (
    *("second_order", "modules", "systems", "explanations", "numpy_model", "test_loading.py"),
    *("index", "stores", "export", "deduplication", "eval"),
)
SECONDS = 300
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, FloorDiv Mult, And Or"
SWAPS = [(getattr(ast, old), getattr(ast, new)) for old, new in map(str.split, PAIRS.split(", "))]
OTHER = {**dict(SWAPS), **{second: first for first, second in SWAPS if first is not ast.FloorDiv}}
# A plugin of pytest that names the running test to coverage, and writes how long each took.
PLUGIN = """
import coverage, pytest
seconds = open("seconds.tsv", "w")
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    coverage.Coverage.current().switch_context(item.nodeid)
    return (yield)
def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        print(report.nodeid, report.duration, sep="\\t", file=seconds, flush=True)
"""


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each change of a node: its name, and the call that makes it in place."""
    for field, value in ast.iter_fields(node):
        for place, operator in enumerate(value if isinstance(value, list) else [value]):
            other = OTHER.get(type(operator))
            if other is not None:
                name = f"{type(operator).__name__} -> {other.__name__}"
                if isinstance(value, list):
                    yield name, partial(value.__setitem__, place, other())
                else:
                    yield name, partial(setattr, node, field, other())
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        number = not node.value if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} -> {number}", lambda: setattr(node, "value", number)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not x -> not not x", lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call -> nothing", lambda: setattr(node, "value", ast.Constant(None))


def _places(tree: ast.AST) -> list[tuple[ast.AST, str, Callable[[], object]]]:
    return [(node, *change) for node in ast.walk(tree) for change in _changes(node)]


def _mutant(path: Path, number: int) -> tuple[int, int, str, str]:
    """Return the first and last line of a file's change, its name, and the source after it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node, name, change = _places(tree)[number]
    placed = [each for each in ast.walk(node) if hasattr(each, "lineno")]
    first, last = min(each.lineno for each in placed), max(each.end_lineno for each in placed)
    change()
    return first, last, name, ast.unparse(ast.fix_missing_locations(tree))


def _pytest(copy: Path, *program: str, **options: Any) -> subprocess.Popen:
    """Start pytest in a copy of the tree, in a session of its own."""
    command = [sys.executable, "-m", *program, "-q", "-p", "no:cacheprovider"]
    variables = {"PYTHONPATH": str(copy), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, cwd=copy, env=os.environ | variables, start_new_session=True, **options)


def _coverage(copy: Path) -> tuple[dict[str, dict[str, list[str]]], dict[str, float]]:
    """Return the tests that run each line of each file, and the seconds of each test that passes without a change."""
    import coverage

    (copy / "running.py").write_text(PLUGIN, encoding="utf-8")
    tests = [f"tests/{name}" for name in TESTS]
    _pytest(copy, "coverage", "run", f"--include={','.join(ROOMS)}", "-m", "pytest", "-p", "running", *tests).wait()
    data = coverage.CoverageData(str(copy / ".coverage"))
    data.read()
    rows = (line.rstrip("\n").split("\t") for line in (copy / "seconds.tsv").open(encoding="utf-8"))
    covering = {os.path.relpath(file, copy): data.contexts_by_lineno(file) for file in data.measured_files()}
    return covering, {test: float(each) for test, each in rows}


def _try(copy: Path, mutants: list[tuple[str, int]], covered: Path, results: Path) -> None:
    """Try mutants one after the other, and add a line for each to the results."""
    covering, seconds = json.loads(covered.read_text(encoding="utf-8"))
    for file, change in mutants:
        first, last, name, source = _mutant(copy / file, change)
        lines = covering.get(file, {})
        tests = {test for line in range(first, last + 1) for test in lines.get(str(line), ()) if test in seconds}
        # A line that runs while its module is imported belongs to each test of the module.
        tests = tests or {test for each in lines.values() for test in each if test in seconds}
        result = "SURVIVED"
        if tests:
            original = (copy / file).read_text(encoding="utf-8")
            (copy / file).write_text(source, encoding="utf-8")
            running = _pytest(copy, "pytest", "-x", *sorted(tests, key=seconds.get), stdout=subprocess.DEVNULL)
            try:
                result = "killed" if running.wait(SECONDS) else result
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                result = "timeout"
            (copy / file).write_text(original, encoding="utf-8")
        with results.open("a", encoding="utf-8") as output:
            output.write(f"{result}\t{file}:{first}\t{name}\t{len(tests)} tests\t{file}#{change}\n")


def main() -> None:
    """Draw mutants and print what became of each, and the sums."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("number", type=int)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--results", type=Path, default=Path("build/mutants.tsv"))
    chosen = arguments.parse_args()
    files = sorted(path.relative_to(ROOT).as_posix() for room in ROOMS for path in ROOT.glob(room))
    mutants = [
        (file, change)
        for file in files
        for change in range(len(_places(ast.parse((ROOT / file).read_text(encoding="utf-8")))))
    ]
    drawn = random.Random(chosen.seed).sample(mutants, chosen.number)
    print(f"{len(mutants):,} possible changes, {len(drawn)} drawn with seed {chosen.seed}", flush=True)
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    chosen.results.touch()
    tried = {line.split("\t")[-1] for line in chosen.results.read_text(encoding="utf-8").splitlines()}
    left = [(file, change) for file, change in drawn if f"{file}#{change}" not in tried]
    covered = chosen.results.with_suffix(".tests.json")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.workers) as pool:
        works = []
        for number in range(chosen.workers):
            copy = Path(folder) / f"tree{number}"
            ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.partial", "build")
            shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
            if not covered.exists():
                covered.write_text(json.dumps(_coverage(copy)), encoding="utf-8")
            works.append(pool.submit(_try, copy, left[number :: chosen.workers], covered, chosen.results))
        for work in works:
            work.result()
    lines = chosen.results.read_text(encoding="utf-8").splitlines()
    results = Counter(line.split("\t")[0] for line in lines)
    print(*lines, ", ".join(f"{count} {result}" for result, count in sorted(results.items())), sep="\n")


if __name__ == "__main__":
    main()
