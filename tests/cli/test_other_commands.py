import sys
import tempfile
import warnings

import pytest

from ctx_embed import loading
from ctx_embed.cli import demo
from tests.helpers.cli import Command

COMMAND = Command("demo")
run = COMMAND.run

DOCSTRINGS = {
    "garden.cat": "A dog barked at the cat\nin the garden.\n\nMore of it.",
    "city.train": "The train to the city was late again.",
    "film": "A dull film without one good idea. " * 9,
    "city.prices": "Prices in the city rise faster than wages.",
}


@pytest.fixture
def small(monkeypatch, tiny_model_path, tmp_path):
    """A few docstrings, the tiny model in place of the one that ships, and an own folder for temporary files."""
    monkeypatch.setattr(sys.modules["ctx_embed.cli.demo"], "standard_library_docstrings", lambda: dict(DOCSTRINGS))
    monkeypatch.setattr(loading, "DEFAULT_MODEL", tiny_model_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_queries_are_answered(small, monkeypatch):
    result = run("--query", DOCSTRINGS["city.train"], "--query", "dull film", "-k", "2")
    assert (result.exit_code, result.stderr) == (0, "")
    count, *answers = result.stdout.split("\n\n")
    assert count.startswith("4 docstrings indexed in ")
    assert count.endswith(f" s; {demo.RANKED}")
    first, second = (answer.splitlines() for answer in answers)
    assert first[0] == DOCSTRINGS["city.train"]
    assert first[1].endswith("  city.train: The train to the city was late again.")
    assert second[0] == "dull film"
    assert len(first) == len(second) == 3
    assert list(small.iterdir()) == []
    # The sample queries, and a line for each hit.
    lines = run("-k", "9").stdout.splitlines()
    assert len(lines) == 1 + len(demo.QUERIES) * (2 + len(DOCSTRINGS))
    assert set(demo.QUERIES) <= set(lines)
    assert any(line.endswith("  garden.cat: A dog barked at the cat in the garden.") for line in lines)
    monkeypatch.setattr(demo, "standard_library_docstrings", dict)
    assert COMMAND.fails().startswith("this Python has no source files of its standard library; ")


def test_docstrings_of_a_library(tmp_path, monkeypatch):
    package = '"""Package."""\nclass C:\n    """Class C."""\n    async def m(self):\n        """Method m."""\n'
    package += '    def _p(self):\n        """Private."""\n'
    files = {
        "_private.py": '"""Private."""\n',
        "one.py": '"""Module one."""\nraise SystemExit("never run")\n\ndef f():\n    """Function f."""\n',
        "two.py": 'def g():\n    """Function g."""\n    def h(): "Not seen."\n',
        "pack/__init__.py": package,
        "pack/copy.py": 'def again():\n    """Function f."""\ndef none(): pass\n',
        "pack/tests/test_x.py": '"""A test."""\n',
        "site-packages/other.py": '"""Not of the standard library."""\n',
        "broken.py": '"""Broken."""\ndef (\n',
    }
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "dead.py").symlink_to(tmp_path / "nowhere.py")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    assert demo.standard_library_docstrings() == {
        "one": "Module one.",
        "one.f": "Function f.",
        "two.g": "Function g.",
        "pack": "Package.",
        "pack.C": "Class C.",
        "pack.C.m": "Method m.",
    }


@pytest.mark.slow
def test_the_whole_demo():
    with warnings.catch_warnings():
        warnings.simplefilter("default", SyntaxWarning)
        result = run()
    assert result.exit_code == 0, result.output
    count, *answers = result.stdout.split("\n\n")
    assert int(count.split()[0]) > 4000
    first = [answer.splitlines()[1].split()[1] for answer in answers]
    best = ["csv", "threading.Thread.join", "shutil.copytree", "random.Random.choice", "webbrowser.open", "timeit"]
    assert all(found.startswith(name) for found, name in zip(first, best, strict=True)), first
