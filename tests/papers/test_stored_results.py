"""The page shows what the stored results of papers/results say."""

from __future__ import annotations

import json
import re

import pytest

from papers import EXPERIMENTS, page
from tests.docs.pages import ROOT

PAGE = (ROOT / "papers" / "README.md").read_text(encoding="utf-8")
TRIALS = "trials"
NAMES = sorted(path.stem for path in page.RESULTS.glob("*.json") if path.stem != TRIALS)


def test_the_page_has_the_claims_and_tables_of_the_stored_results():
    assert page.filled(PAGE) == PAGE, "run python -m papers.page"


def test_a_stored_result_that_differs_changes_the_page(monkeypatch, tmp_path):
    for file in page.RESULTS.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        (tmp_path / file.name).write_text(text.replace('"accuracy": 79.4', '"accuracy": 70.4'), encoding="utf-8")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    changed = page.filled(PAGE)
    assert "76.6, 70.4, 91.2, 85.0 %. **The claim holds in part.**" in " ".join(changed.split())


@pytest.mark.parametrize("name", NAMES)
def test_stored_results_say_where_they_come_from(name):
    run = page.stored(name)
    assert run["experiment"] in EXPERIMENTS
    assert re.fullmatch(rf"python -m papers {run['experiment']}( --.+)?", run["command"])
    assert run["seed"] == 0
    assert {cell["cell"] for cell in run["cells"]} <= {cell.key for cell in EXPERIMENTS[run["experiment"]].cells}
    if "recorded" in run:
        # Nobody stored which source and processor an earlier page's values came from.
        assert run["commit"] is run["processor"] is None
        assert all(re.fullmatch(r"[0-9a-f]{7}", cell["recorded"]) for cell in run["cells"])
    else:
        assert re.fullmatch(r"[0-9a-f]{7,}(, [0-9a-f]{7,})*", run["commit"])
        assert run["processor"]


def test_the_page_says_what_the_trials_say():
    text = " ".join(PAGE.split())
    for trial in json.loads((page.RESULTS / f"{TRIALS}.json").read_text(encoding="utf-8"))["trials"]:
        assert trial["says"] in text
        assert all(f"{accuracy:.1f}" in trial["says"] for accuracy in trial["accuracy"])
