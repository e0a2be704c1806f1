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
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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
# The exit status of a fork in which pytest itself did not run.
FAULT = 99
# What a worker imports once for all of its mutants: none of it is ours.
PRELOADED = ("torch", "sentence_transformers", "faiss", "scipy.stats", "sklearn.linear_model", "pytest")
SWAPS: list[tuple[type[ast.AST], type[ast.AST]]] = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.FloorDiv, ast.Mult),
    (ast.And, ast.Or),
]
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


def _coverage(copy: Path) -> None:
    """Write the tests that run each line of each file, and the seconds of each test that passes without a change."""
    import coverage

    (copy / "running.py").write_text(PLUGIN, encoding="utf-8")
    pytest = ["-m", "pytest", "-q", "-p", "running", "-p", "no:cacheprovider", *(f"tests/{name}" for name in TESTS)]
    command = [sys.executable, "-m", "coverage", "run", f"--include={','.join(ROOMS)}"]
    subprocess.run([*command, *pytest], cwd=copy, env=_environment(copy), stdout=sys.stderr)
    data = coverage.CoverageData(str(copy / ".coverage"))
    data.read()
    tests = {os.path.relpath(file, copy): data.contexts_by_lineno(file) for file in data.measured_files()}
    rows = (line.rstrip("\n").split("\t") for line in (copy / "seconds.tsv").open(encoding="utf-8"))
    seconds = {test: float(each) for test, each in rows}
    (copy / "covered.json").write_text(json.dumps([tests, seconds]), encoding="utf-8")


def _environment(copy: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(copy), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _run(copy: Path, tests: list[str], stop: float) -> str:
    """Run tests in a fork of this process, which has imported what they need, until the time ``stop``."""
    if (child := os.fork()) == 0:
        code = FAULT
        try:
            os.setsid()
            output = os.open(copy / "pytest.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for stream in range(3):
                os.dup2(output, stream)
            os.chdir(copy)
            os.environ.update(_environment(copy))
            sys.path.insert(0, str(copy))
            import pytest

            code = pytest.main(
                ["-q", "-x", "-Wignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", *tests]
            )
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.waitstatus_to_exitcode(status) == FAULT:
                raise RuntimeError((copy / "pytest.log").read_text(encoding="utf-8"))
            return "SURVIVED" if status == 0 else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _work(copy: Path, mutants: list[tuple[str, int]], covered: Path, results: Path) -> None:
    """Try mutants one after the other, and add a line for each to the results."""
    for module in PRELOADED:
        __import__(module)
    covering, seconds = json.loads(covered.read_text(encoding="utf-8"))
    for file, change in mutants:
        first, last, name, source = _mutant(copy / file, change)
        lines = covering.get(file, {})
        tests = {test for line in range(first, last + 1) for test in lines.get(str(line), ()) if test in seconds}
        # A line that runs while its module is imported belongs to each test of the module.
        tests = tests or {test for each in lines.values() for test in each if test in seconds}
        ordered = sorted(tests, key=lambda test: seconds[test])
        original = (copy / file).read_text(encoding="utf-8")
        (copy / file).write_text(source, encoding="utf-8")
        stop = time.monotonic() + SECONDS
        result = _run(copy, ordered, stop) if ordered else "SURVIVED"
        (copy / file).write_text(original, encoding="utf-8")
        with results.open("a", encoding="utf-8") as output:
            output.write(f"{result}\t{file}:{first}\t{name}\t{len(ordered)} tests\t#{change}\n")


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
    found: defaultdict[tuple[str, int], str] = defaultdict(str)
    for line in chosen.results.read_text(encoding="utf-8").splitlines():
        result, place, *_, change = line.split("\t")
        found[place.rpartition(":")[0], int(change[1:])] = result
    left = [mutant for mutant in drawn if mutant not in found]
    covered = chosen.results.with_suffix(".tests.json")
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for number in range(min(chosen.workers, len(left))):
            copy = Path(folder) / f"tree{number}"
            ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.partial", "build")
            shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
            if not covered.exists():
                _coverage(copy)
                shutil.copyfile(copy / "covered.json", covered)
            if (worker := os.fork()) == 0:
                try:
                    _work(copy, left[number :: chosen.workers], covered, chosen.results)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            workers.append(worker)
        for worker in workers:
            os.waitpid(worker, 0)
    print(chosen.results.read_text(encoding="utf-8"), end="")
    results = Counter(line.split("\t")[0] for line in chosen.results.read_text(encoding="utf-8").splitlines())
    print(", ".join(f"{count} {result}" for result, count in sorted(results.items())))


if __name__ == "__main__":
    main()
