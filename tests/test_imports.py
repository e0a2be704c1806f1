"""Imports run one way, and what is slow to import is imported late."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctx_embed.cli.main import COMMANDS

PACKAGE = Path(__file__).parent.parent / "ctx_embed"
# From the bottom to the top; each may import from itself and from what is below it.
LAYERS = """
errors lazy texts files options progress vectors < rows < kernel second_order < text < fingerprint < numpy_model <
runtime < model_card < saved_card < modules < systems < loading < export < encoders < classify < training < documents
< index < grep < deduplication < stores < bulk_encoding < explanations < serving < integrations < eval < cli <
__main__
"""
LEVEL = {name: level for level, names in enumerate(LAYERS.split("<")) for name in names.split()}


def modules() -> Iterator[tuple[str, str, Path]]:
    """The layer, dotted name and path of each module; glob follows no link, so the two linked folders come apart."""
    for folder in (PACKAGE, PACKAGE / "cli", PACKAGE / "eval"):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            if parts != ("__init__",):
                yield parts[0], ".".join(("ctx_embed", *parts)), path


def imported(source: str) -> Iterator[str]:
    """The parts of ctx_embed that a source imports, also inside functions and for type checkers."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "ctx_embed":
                yield rest.partition(".")[0]


def test_imports_run_one_way():
    assert {layer for layer, _, _ in modules()} == set(LEVEL)
    wrong = [
        f"{name} imports ctx_embed.{part}"
        for layer, name, path in modules()
        for part in imported(path.read_text(encoding="utf-8"))
        # The package's own public names, as __version__, stand above nothing.
        if part in LEVEL and part != layer and LEVEL[part] >= LEVEL[layer] + (LEVEL[layer] == 0)
    ]
    assert wrong == []
    # The test would find a wrong import.
    source = "def f():\n    from ctx_embed import cli, errors\n    import ctx_embed.index.ranking\n    import os\n"
    assert list(imported(source)) == ["cli", "errors", "index"]


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """What each file imports of the others, also inside functions; for type checkers alone does not count."""
    found = {}
    for name, source in sources.items():
        tree = ast.parse(source)
        unseen = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for part in node.body
            for inner in ast.walk(part)
        }
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import) and id(node) not in unseen:
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and id(node) not in unseen:
                parts = [f"{node.module}.{alias.name}" for alias in node.names]
                names |= {part if part in sources else str(node.module) for part in parts}
        found[name] = (names & sources.keys()) - {name}
    return found


def circles(imports: dict[str, set[str]]) -> list[str]:
    """The files that import themselves through others."""
    reached = {name: set(others) for name, others in imports.items()}
    for middle in imports:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return sorted(name for name, others in reached.items() if name in others)


def test_no_file_imports_itself_through_others():
    sources = {name.removesuffix(".__init__"): path.read_text(encoding="utf-8") for _, name, path in modules()}
    assert circles(graph(sources)) == []
    # The test would find a circle.
    sources = {"a": "import b", "b": "def f():\n    from c.d import g", "c.d": "from a import x", "e": "import a"}
    assert circles(graph(sources)) == ["a", "b", "c.d"]
    sources["c.d"] = f"if TYPE_CHECKING:\n    {sources['c.d']}"
    assert circles(graph(sources)) == []


SLOW = {"torch", "sentence_transformers", "transformers", "sklearn", "scipy", "faiss", "numpy", "datasets"}


# Runs commands in one process, and prints the exit code of each and what is loaded after it.
SCRIPT = """
import shlex, sys
from ctx_embed.cli.main import run
for command in sys.argv[1:]:
    sys.argv = ["ctx-embed", *shlex.split(command)]
    try:
        run()
    except SystemExit as ended:
        print("\\nloaded", ended.code, *sys.modules, file=sys.stderr)
"""


def loaded_after(*commands: str, **options: Any) -> list[tuple[str, set[str]]]:
    """Return the exit code of each command, and all modules that are loaded after it."""
    run = [sys.executable, "-c", SCRIPT, *commands]
    done = subprocess.run(run, capture_output=True, text=True, **{"cwd": PACKAGE.parent, **options})
    ends = [line.split() for line in done.stderr.splitlines() if line.startswith("loaded ")]
    assert len(ends) == len(commands), done.stderr
    return [(code, set(modules)) for _, code, *modules in ends]


def test_importing_the_package_loads_nothing_slow():
    script = "import ctx_embed, sys; dir(ctx_embed); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True).stdout
    assert "ctx_embed" in loaded.split()
    assert not SLOW & set(loaded.split())


HELP = ["--help", "--version", *(f"{name} --help" for name in COMMANDS)]
MISTAKES = [
    "explain",
    "explain x -o film.svg",
    "train pyproject.toml -o tests",
    "train x.tsv -o m --from default --dimension 5",
    "eval run --task XYZ",
    "eval compare nowhere nowhere",
    "encode nowhere.txt -o x.npy",
    "encode x.txt -o x.foo",
    "index query nowhere x --where 'year >'",
    "grep x nowhere",
    "grep x tests --include ''",
]


@pytest.mark.parametrize(("commands", "code", "slow"), [(HELP, "0", SLOW), (MISTAKES, "12", SLOW - {"numpy", "faiss"})])
def test_help_and_mistakes_load_nothing_slow(commands, code, slow):
    for command, (status, loaded) in zip(commands, loaded_after(*commands), strict=True):
        assert status in code, command
        assert "click" in loaded
        assert not slow & loaded, command


@pytest.mark.parametrize("package", ["ctx_embed", "ctx_embed.index", "ctx_embed.training"])
def test_a_package_lists_its_public_names_only(package):
    module = importlib.import_module(package)
    shown = {name for name in dir(module) if not name.startswith("__")}
    assert shown == {name for name in module.__all__ if not name.startswith("__")}
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing
