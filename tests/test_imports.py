"""Imports run one way, and what is slow to import is imported late."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctx_embed.cli.main import COMMANDS
from ctx_embed.errors import installation
from tests.size import LAYERS

PACKAGE = Path(__file__).parent.parent / "ctx_embed"


def modules() -> Iterator[tuple[str, str, str]]:
    """The layer, dotted name and source of each module; glob follows no link, so the two linked folders come apart."""
    for folder in (PACKAGE, PACKAGE / "cli", PACKAGE / "eval"):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            if parts != ("__init__",):
                yield parts[0], ".".join(("ctx_embed", *parts)), path.read_text(encoding="utf-8")


def imported(source: str, typing: bool = True) -> Iterator[str]:
    """The names that a source imports, also inside functions, and with ``typing`` those for type checkers alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typing:
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_run_one_way():
    assert {layer for layer, _, _ in modules()} == set(LAYERS)
    wrong = [
        f"{name} imports {found}"
        for layer, name, source in modules()
        for found in imported(source)
        # The package's own public names, as __version__, stand above nothing.
        if found.startswith("ctx_embed.") and found.split(".")[1] in LAYERS[LAYERS.index(layer) + 1 :]
    ]
    assert wrong == []


def test_no_file_imports_itself_through_others():
    sources = {name.removesuffix(".__init__"): source for _, name, source in modules()}
    reached = {}
    for name, source in sources.items():
        found = imported(source, typing=False)
        reached[name] = {each if each in sources else each.rpartition(".")[0] for each in found} - {name}
    for middle in sources:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    assert [name for name, others in reached.items() if name in others] == []


SLOW = {"torch", "sentence_transformers", "transformers", "sklearn", "scipy", "faiss", "numpy", "datasets"}


# Runs commands in one process, and prints the exit code of each and what is loaded after it.
SCRIPT = """
import json, os, shlex, sys, sysconfig
import ctx_embed
from ctx_embed.cli.main import run
dir(ctx_embed)
# A small part of Python's library is enough for the demo.
paths = sysconfig.get_paths
sysconfig.get_paths = lambda *given: paths(*given) if given else {"stdlib": os.path.dirname(json.__file__)}
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
    "encode pyproject.toml -o x.npy --model nowhere",
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


HEAVY = {"torch", "transformers", "sentence_transformers", "datasets"}
SCIENTIFIC = {"sklearn", "scipy", "pyarrow", "pandas"}
SEARCHES = [
    "encode texts.txt -o texts.npy",
    "explain cat",
    "index build texts.txt texts.index --chunk tokens:4",
    "index build notes notes.index",
    "index sync notes texts.index",
    "index query texts.index cat",
    "index similar texts.index 1 --mmr 0.5 --group id --not cat",
    "index facets texts.index source",
    "index delete texts.index 99",
    "index export texts.index exported",
    "index verify texts.index",
    "index compact texts.index",
    "index duplicates texts.index",
    "demo -k 1 --query copy",
    "index topics texts.index -k 2",  # takes the stop words of scikit-learn
]


def test_no_torch(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# A cat\n\nIt sat on the mat.\n")
    (tmp_path / "notes" / "b.txt").write_text("Wages\n\nThey rise.\n")
    (tmp_path / "texts.txt").write_text("the cat sat on the mat\nprices rise\nwages do not rise\nthe dog sat\n" * 2)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for command, (code, modules) in zip(SEARCHES, loaded_after(*SEARCHES, cwd=tmp_path, env=environment), strict=True):
        assert code == "0", command
        assert not modules & (HEAVY if "topics" in command else HEAVY | SCIENTIFIC), command


LEFT_OUT = "datasets pandas pyarrow rich scipy sentence_transformers sklearn torch transformers"
# Runs pieces of code where the light installation left libraries out, and prints a line for each error.
LIGHT = r"""
import importlib.util, sys
class Finder:
    def find_spec(name, *more):
        if name.partition(".")[0] in left_out:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder)
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in left_out else found(name, *more)
for code in sys.argv[1:]:
    try:
        exec(code, {})
    except Exception as error:
        print(type(error).__name__, error)
"""


def calling(*arguments: str) -> str:
    return f"from ctx_embed.cli.main import main; main({arguments!r}, standalone_mode=False)"


def in_light(folder, *codes: str, added: tuple[str, ...] = ()) -> list[str]:
    left_out = " ".join(name for name in LEFT_OUT.split() if name not in added)
    command = [sys.executable, "-c", f"left_out = {left_out!r}.split()\n{LIGHT}", *codes]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.splitlines()


MISSING = {
    "from ctx_embed import TextClassifier": "needs sklearn, which the light installation leaves out: pip install",
    "import ctx_embed; ctx_embed.Contextualizer": "needs sentence_transformers, which the light installation",
    "import ctx_embed; ctx_embed.load()": "the default model on torch needs sentence_transformers",
    "from ctx_embed import stores; stores.open('x').describe()": "needs pyarrow, which the light installation",
    "import ctx_embed; ctx_embed.dedupe('a.parquet', 'b.parquet')": "a.parquet: Parquet needs pyarrow",
}
EXTRA = "from ctx_embed.errors import missing_extra; print(missing_extra('this', {!r}))"


def test_what_is_missing_is_one_line_in_python_too(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    *lines, documents, peers = in_light(tmp_path, *MISSING, EXTRA.format("documents"), EXTRA.format("peers"))
    for line, said in zip(lines, MISSING.values(), strict=True):
        assert said in line
        assert "pip install" in line
    # An extra brings no torch to a light installation.
    assert documents.startswith("this needs the extra documents: pip install ")
    assert "ctx-embed" not in documents
    assert "'pypdfium2>=5'" in documents
    assert peers == f"this needs the extra peers: {installation('peers')}"


def test_a_search_with_a_typo_needs_no_more(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"The committee discussed the environment {n}.\n" for n in range(40)))
    commands = ("index build a.txt a.index", "index query a.index enviroment --mode hybrid -k 1")
    assert "environment" in in_light(tmp_path, *(calling(*command.split()) for command in commands))[-1]


LABELLED = "good\tgreat food\ngood\tlovely staff\nbad\tcold soup\nbad\trude waiter\n" * 5
LENGTHS = "class Length:\n    def encode(self, texts):\n        return [[len(text), 1.0] for text in texts]\n"


def test_training_a_classifier_needs_scikit_learn_alone_and_prediction_not_even_faiss(tmp_path):
    (tmp_path / "a.tsv").write_text(LABELLED)
    (tmp_path / "new.txt").write_text("great staff\n")
    in_light(tmp_path, calling("train", "a.tsv", "-o", "c"), added=("sklearn", "scipy"))
    is_loaded = "import sys; print('faiss' in sys.modules)"
    said, loaded = in_light(tmp_path, calling("predict", "c", "new.txt"), is_loaded)
    assert (said[:5], loaded) == ("good\t", "False")


def test_an_evaluation_needs_scikit_learn_alone(tmp_path):
    (tmp_path / "a.tsv").write_text(LABELLED)
    (tmp_path / "own.py").write_text(LENGTHS)
    encoders = ["default", "tfidf", "default+words", "own:Length"]
    flags = [f"--encoder={name}" for name in encoders]
    code = calling("eval", "run", "--task", "a.tsv", "--protocol", "quick", "--no-cost", *flags)
    lines = in_light(tmp_path, code, added=("sklearn", "scipy"))
    scores = {found[1]: float(found[2]) for line in lines if (found := re.match(r"(\S+) +([\d.]+)†? ± ", line))}
    assert [*scores] == encoders
    assert min(score for name, score in scores.items() if name != "own:Length") == 100
    assert any("needs sklearn, which the light installation leaves out" in line for line in in_light(tmp_path, code))
