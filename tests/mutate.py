"""Change one operator or number of the program, run its tests, and say whether they notice.

python -m tests.mutate NUMBER [SEED] draws that many changes in the files of TESTS, each in a copy of the tree, and
prints a line for each: killed, SURVIVED or timeout.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
INDEX = "tests/index/storage tests/index/test_search_index.py tests/index/test_documents.py tests/index/test_faults.py"
# The tests of each file or folder: those to run first, and those to run if the first notice nothing.
TESTS = {
    "ctx_embed/second_order": ("tests/second_order", "tests/modules tests/systems tests/explanations"),
    "ctx_embed/numpy_model/contextualizer.py": ("tests/numpy_model/test_contextualizer.py", "tests/numpy_model"),
    "ctx_embed/numpy_model/embedder.py": ("tests/numpy_model/test_embedder.py", "tests/numpy_model"),
    "ctx_embed/numpy_model/saved.py": ("tests/numpy_model/test_checks.py", "tests/numpy_model tests/test_loading.py"),
    "ctx_embed/index/storage": (INDEX, "tests/index"),
    "ctx_embed/index/storage/filters.py": ("tests/index/storage/test_filters.py", "tests/index tests/stores"),
    "ctx_embed/index/storage/shards.py": ("tests/index/storage/test_shards.py", "tests/index"),
    "ctx_embed/index/storage/dtypes.py": ("tests/index/storage/test_dtypes.py", "tests/index"),
    "ctx_embed/index/writing": (f"tests/index/writing {INDEX}", "tests/index"),
    "ctx_embed/index/writing/chunking.py": ("tests/index/writing", "tests/index"),
    "eval/scoring": ("tests/eval/scoring", "tests/eval"),
    "eval/scoring/statistics.py": ("tests/eval/scoring/test_statistics.py", "tests/eval"),
    "eval/scoring/score.py": ("tests/eval/scoring/test_score.py", "tests/eval"),
    "eval/scoring/ranking.py": ("tests/eval/scoring/test_ranking.py", "tests/eval"),
}
SECONDS = 600
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


def _mutant(path: Path, number: int) -> tuple[int, str, str]:
    """Return the line and the name of a file's change, and the source after it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node, name, change = _places(tree)[number]
    line = next((each.lineno for each in ast.walk(node) if hasattr(each, "lineno")), 0)
    change()
    return line, name, ast.unparse(ast.fix_missing_locations(tree))


def _tests_of(file: str) -> tuple[str, str]:
    return TESTS[max((place for place in TESTS if file.startswith(place)), key=len)]


def _run(copy: Path, tests: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    environment = os.environ | {"PYTHONPATH": str(copy), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return "SURVIVED" if process.wait(SECONDS) == 0 else "killed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "timeout"


def main(number: int, seed: int = 0) -> None:
    """Draw mutants and print what became of each, and the sums."""
    files = sorted(
        path.relative_to(ROOT).as_posix()
        for place in TESTS
        for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).glob("*.py"))
    )
    mutants = [
        (file, change)
        for file in dict.fromkeys(files)
        for change in range(len(_places(ast.parse((ROOT / file).read_text(encoding="utf-8")))))
    ]
    print(f"{len(mutants):,} possible changes, {number} drawn with seed {seed}", flush=True)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.partial")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        for tests in {first for first, _ in TESTS.values()}:
            if _run(copy, tests) != "SURVIVED":
                raise SystemExit(f"the tests must pass without a change: {tests}")
        for file, change in random.Random(seed).sample(mutants, number):
            line, name, source = _mutant(ROOT / file, change)
            (copy / file).write_text(source, encoding="utf-8")
            results = (_run(copy, tests) for tests in _tests_of(file))
            result = next((each for each in results if each != "SURVIVED"), "SURVIVED")
            shutil.copyfile(ROOT / file, copy / file)
            found[result] += 1
            print(f"{result:8}  {file}:{line}  {name}", flush=True)
    print(", ".join(f"{count} {result}" for result, count in sorted(found.items())))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
