"""The sizes that `make size` prints are counted, and a size above its mark is told from one within it."""

import subprocess

import pytest

from tests import size


def test_a_size_may_exceed_its_mark_by_3_percent():
    assert size.report({"query_files": 103}, {"query_files": 100}) == ("query files: 103 (mark 100, +3.0%): ok", True)
    text, fits = size.report({"query_files": 104}, {"query_files": 100})
    assert text == "query files: 104 (mark 100, +4.0%): more than 3% above its mark; make it smaller"
    assert not fits
    assert any(name.endswith("cli/main.py") for name in size.files_of("--version"))
    with pytest.raises(subprocess.CalledProcessError):
        size.files_of("nothing")


def test_a_function_with_one_use_is_one_whose_name_occurs_once_more(tmp_path, monkeypatch):
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "one.py").write_text(
        '__all__ = ["shown"]\n'
        "def step(): pass  # step, step\n"
        "def twice(): step()\n"
        "def unused(): twice(); twice()\n"
        "def shown(): unused; unused\n"
        "@property\ndef decorated(): shown()\n"
        "decorated\n"
    )
    monkeypatch.setattr(size, "ROOT", tmp_path)
    assert size.functions_with_one_use() == 1
