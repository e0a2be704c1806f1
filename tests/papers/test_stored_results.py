"""The page shows what the stored results of papers/results say."""

import json
import re

from papers import EXPERIMENTS, page, rivals
from papers.experiment import PAPERS
from papers.lama import OWN_RATES, RATES
from tests.docs.pages import ROOT

PAGE = (ROOT / "papers" / "README.md").read_text(encoding="utf-8")


def test_the_page_has_the_claims_and_tables_of_the_stored_results(monkeypatch, tmp_path):
    assert page.filled(PAGE) == PAGE, "run python -m papers.page"
    # A result that differs changes the page.
    for file in page.RESULTS.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        (tmp_path / file.name).write_text(text.replace('"accuracy": 79.4', '"accuracy": 70.4'), encoding="utf-8")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    changed = page.filled(PAGE)
    assert "76.6, 70.4, 91.2, 85.0 %. **The claim holds in part.**" in " ".join(changed.split())


def test_figures_of_the_papers_come_from_one_file():
    """The programs of papers/ hold no accuracies: the papers' are in published.json, ours in results."""
    theirs = re.compile(r"\b\d\d\.\d\b")
    assert len(theirs.findall(json.dumps(PAPERS))) >= 60
    for file in (ROOT / "papers").glob("*.py"):
        assert not theirs.findall(file.read_text(encoding="utf-8")), file


def test_a_run_of_some_cells_leaves_the_others_as_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "RESULTS", tmp_path)

    def store(commit, **figures):
        cells = [{"cell": cell, "figures": of, "parts": [of]} for cell, of in figures.items()]
        run = {"command": "python -m papers table2 --quick --option start=0.1 --option head=random"}
        run |= {"claim": "none", "commit": commit, "processor": "one", "cells": cells}
        (tmp_path / "run").write_text(json.dumps(run))
        page.store(tmp_path / "run")
        return page.stored("table2-quick-head=random")

    store("abc1234", first={"ms": 70}, second={"ms": 80}, third={})
    run = store("def5678", first={"ms": 71}, second={}, fourth={"ms": 90}, fifth={})
    figures = {"first": {"ms": 71}, "second": {"ms": 80}, "fourth": {"ms": 90}}
    assert run["cells"] == [{"cell": cell, "figures": of} for cell, of in figures.items()]
    assert (run["commit"], run["processor"]) == ("abc1234, def5678", "one")
    assert "claim" not in run


def test_the_text_around_the_tables_says_what_the_stored_results_say():
    two, three, torch, redrawn = map(page.found_in, ("table2", "table3", page.TORCH, page.REDRAWN))
    published = {
        (cell.row, cell.column): cell.published for of in ("table2", "table3") for cell in EXPERIMENTS[of].cells
    }
    above = [run["accuracy"] - published[place] for place, run in two.items()]
    plain = [place for place in torch if place[0] != "uniform"]
    initial = [three[place]["accuracy"] - torch[place]["accuracy"] for place in plain]
    off = [abs(torch[place]["accuracy"] - published[place]) for place in plain]
    seeded, anew = (run["uniform", "K 5"]["accuracy"] - run["uniform", "K 1"]["accuracy"] for run in (torch, redrawn))
    rates = {"SAN": {}, "TE": {}}
    for rate in RATES:
        found = page.found_in(f"lama-table3-paper-learning_rate={rate}-epochs=5")
        for row in rates:
            rates[row] |= {rate: max(found[row, "R8"]["valid"])} if (row, "R8") in found else {}
    assert [max(of, key=of.__getitem__) for of in rates.values()] == [OWN_RATES["san"], OWN_RATES["transformer"]]
    says = [
        *(f"({', '.join(f'{best:.1f} with {rate}' for rate, best in of.items())})" for of in rates.values()),
        f"Both encoders are {min(above):.1f} to {max(above):.1f} points above the paper's",
        f"**Our initial weights add {min(initial):.1f} to {max(initial):.1f} points** to ones and learned",
        f"ones and learned are within {max(off):.1f} points of the paper",
        f"they add {seeded:.1f} points if the text seeds the context and {anew:.1f} if it is",
    ]
    gains = [page.pretraining.gain(page.found_in("pretraining"), task) for task in page.TABLE4_TASKS]
    within = all(abs(float(gain)) <= 2 * float(error) for gain, _, error in map(str.split, gains))
    text = " ".join(PAGE.split())
    assert within == ("**No gain exceeds two standard errors**" in text)
    assert [line for line in says if line not in text] == []


def test_the_page_has_the_tables_and_the_rate_that_is_best_for_all():
    text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    content = json.loads(rivals.STORED.read_text(encoding="utf-8"))
    assert rivals.table() in text, "python -m papers.rivals"
    assert rivals.rates_table(content) in text, "python -m papers.rivals --rates"
    best = {
        name: min((row["distance"], row["rate"]) for row in content["rates"] if row["encoder"] == name)[1]
        for name in rivals.WITH_RATES
    }
    assert set(best.values()) == {rivals.RATE}


def test_a_new_row_takes_the_place_of_its_encoder_and_seed(tmp_path):
    published, stored = json.loads(rivals.STORED.read_text(encoding="utf-8")), tmp_path / "rivals.json"
    row = published["rows"][0]
    rivals.keep(stored, {"rows": [row], "speeds": published["speeds"]})
    rivals.keep(stored, {"rows": [{**row, "seed": 7, "MR": row["MR"] + 2}]})
    rivals.keep(stored, {"rows": [{**row, "CR": row["CR"] + 2}]})
    found = [line.split(" | ") for line in rivals.table(stored).splitlines()[2:]]
    assert [(line[1], line[3], line[4]) for line in found] == [("2", f"{row['MR'] + 1:.1f}", f"{row['CR'] + 1:.1f}")]
