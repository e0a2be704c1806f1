"""The sizes that `make size` prints are counted, and a size above its mark is told from one within it."""

import gzip
import json
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
from click.testing import CliRunner

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


SCRIPT = Path(__file__).parents[1] / "benchmarks" / "development.py"
LAW = {"Keeping of bees": "No more than four hives may stand on a lot.", "Dogs": "Every dog must have a licence."}


@pytest.fixture
def development(monkeypatch):
    if not SCRIPT.exists():
        pytest.skip("benchmarks are not beside an installed package")
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import development

    return development


def test_the_command_compares_models_and_keyword_search(development, tmp_path):
    (tmp_path / "pairs").mkdir()
    rows = [json.dumps({"query": heading, "passage": section}) for heading, section in LAW.items()]
    with gzip.open(tmp_path / "pairs" / "heading_section_dc_code.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rows))
    output = tmp_path / "scores.json"
    command = ["default", "bm25", "--data", tmp_path, "--sets", "law", "--json", output]
    CliRunner().invoke(development.main, list(map(str, command)), catch_exceptions=False)
    first, second = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert (first["model"], first["measure"], first["score"], first["n"]) == ("default", "law", 100, 2)
    # BM25 finds "dog" for "Dogs", but nothing for bees.
    assert (second["model"], second["score"], second["p"]) == ("bm25", 50, 1)


def test_the_third_stage_leaves_these_files_out(development):
    recipe = (SCRIPT.parents[1] / "recipes" / "third-stage.toml").read_text(encoding="utf-8")
    sources = [name for name in re.findall(r'"pairs/(.*)"', recipe) if not name.startswith(("nli", "para"))]
    held_out = [f"{file}.jsonl.gz" for file in development.HELD_OUT.values()]
    assert sources
    assert not [(file, name) for file in held_out for name in sources if fnmatch(file, name)]
