import gzip
import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from click.testing import CliRunner

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
