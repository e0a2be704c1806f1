"""Encoders taught alike: what is kept, and the page."""

import json

from papers import rivals
from tests.docs.pages import ROOT


def test_the_page_has_the_table():
    assert rivals.table() in (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8"), "python -m papers.rivals"


def test_a_new_row_takes_the_place_of_its_encoder_and_seed(monkeypatch, tmp_path):
    stored = json.loads(rivals.STORED.read_text(encoding="utf-8"))
    monkeypatch.setattr(rivals, "STORED", tmp_path / "rivals.json")
    row = stored["rows"][0]
    rivals.keep({"rows": [row], "speeds": stored["speeds"]})
    rivals.keep({"rows": [{**row, "seed": 7, "MR": row["MR"] + 2}]})
    rivals.keep({"rows": [{**row, "CR": row["CR"] + 2}]})
    found = [line.split(" | ") for line in rivals.table().splitlines()[2:]]
    assert [(line[1], line[3], line[4]) for line in found] == [("2", f"{row['MR'] + 1:.1f}", f"{row['CR'] + 1:.1f}")]
