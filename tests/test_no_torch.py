"""Commands that embed and search import no torch: it alone takes seconds."""

import os
import subprocess
import sys

import pytest

from ctx_embed.errors import installation
from tests.test_imports import loaded_after

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
HEAVY = {"torch", "transformers", "sentence_transformers", "datasets"}
SCIENTIFIC = {"sklearn", "scipy", "pyarrow", "pandas"}
COMMANDS = [
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
    for command, (code, modules) in zip(COMMANDS, loaded_after(*COMMANDS, cwd=tmp_path, env=environment), strict=True):
        assert code == "0", command
        assert "ctx_embed" in modules
        assert not modules & (HEAVY if "topics" in command else HEAVY | SCIENTIFIC), command


LEFT_OUT = "datasets pandas pyarrow rich scipy sentence_transformers sklearn torch transformers"
# Runs pieces of code where the light installation left libraries out, and prints a line for each error.
LIGHT = r"""
import importlib.util, sys
for name in left_out:
    sys.modules[name] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in left_out else found(name, *more)
for code in sys.argv[1:]:
    try:
        exec(code, {})
    except Exception as error:
        print(type(error).__name__, error)
"""


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
    commands = ("build a.txt a.index", "query a.index enviroment --mode hybrid -k 1")
    arguments = "; ".join(f"main({['index', *each.split()]!r}, standalone_mode=False)" for each in commands)
    assert "environment" in in_light(tmp_path, f"from ctx_embed.cli.main import main; {arguments}")[-1]


def test_classifiers_need_scikit_learn_alone(tmp_path):
    (tmp_path / "a.tsv").write_text("good\tgreat food\ngood\tlovely staff\nbad\tcold soup\nbad\trude waiter\n" * 5)
    (tmp_path / "new.txt").write_text("great staff\n")
    commands = ["train", "a.tsv", "-o", "c"], ["predict", "c", "new.txt"]
    arguments = "; ".join(f"main({each!r}, standalone_mode=False)" for each in commands)
    code = f"from ctx_embed.cli.main import main; {arguments}"
    assert in_light(tmp_path, code, added=("sklearn", "scipy"))[-1].startswith("good\t")
