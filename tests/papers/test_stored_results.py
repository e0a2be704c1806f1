"""The page shows what the stored results of papers/results say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from papers import EXPERIMENTS
from papers.settling import COUNTS, MOST, SHOWN
from papers.settling import ROWS as ROWS_OF_SETTLING
from tests.docs.pages import ROOT

PAGE = (ROOT / "papers" / "README.md").read_text(encoding="utf-8")
STORED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "papers/results").glob("*.json")}


def figures_of(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the figures of an experiment's cells by row and column."""
    return {(cell["row"], cell["column"]): cell["figures"] for cell in STORED[name]["cells"]}


def line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def accuracy(figures: dict[str, Any]) -> str:
    return f"{figures['accuracy']:.1f}" + (f" ± {figures['std']:.1f}" if "std" in figures else "")


def of_figure4() -> list[str]:
    found = figures_of("lama-figure4")
    rows = {row: row if row != "Contextualizer" else "Contextualizer, u in place of heads" for row, _ in found}
    counts = ("1", "4", "16", "64")
    return [line(title, *(f"{found[row, n]['parameters']:,}" for n in counts)) for row, title in rows.items()]


def of_figure2() -> list[str]:
    cells = STORED["figure2"]["cells"]
    return [
        line(
            cell["row"],
            cell["column"].split()[1],
            cell["settings"].get("initial", {}).get("matrices", "") or f"u {cell['settings']['architecture']['rank']}",
            f"{cell['figures']['parameters']:,}",
            accuracy(cell["figures"]),
        )
        for cell in cells
    ]


def of_settling() -> list[str]:
    found = figures_of("settling")
    by_count = [
        line(row, *(accuracy(found[row, f"K {count}"]) if count in counts else "" for count in COUNTS))
        for row, counts in ROWS_OF_SETTLING.items()
    ]
    titles = {
        "length": ("length of z^k", 1),
        "cosine": ("cos(c^k, c^(k-1))", 3),
        "turn": ("cos(z^k, z^(k-1))", 3),
        "accuracy_at": ("accuracy at c^k", 1),
        "agreement": ("same as c^K, %", 1),
        "certain": ("certain, %", 1),
    }
    by_step = [
        line(
            f"{row}: {title}",
            # The first step has none before it.
            *("" if (name, k) == ("turn", 1) else f"{found[row, f'K {MOST}'][name][k - 1]:.{digits}f}" for k in SHOWN),
        )
        for row in ROWS_OF_SETTLING
        for name, (title, digits) in titles.items()
    ]
    return [*by_count, *by_step]


ROWS = {"figure2": of_figure2, "lama-figure4": of_figure4, "settling": of_settling}


@pytest.mark.parametrize("name", STORED)
def test_the_claim_and_the_table_on_the_page_are_those_stored(name):
    assert " ".join(STORED[name]["claim"].split()) in " ".join(PAGE.split())
    missing = [row for row in ROWS[name]() if row not in PAGE.splitlines()]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("name", STORED)
def test_stored_results_say_where_they_come_from(name):
    report = STORED[name]
    assert report["experiment"] == name in EXPERIMENTS
    assert re.fullmatch(r"[0-9a-f]{7,}", report["commit"])
    assert report["command"] == f"python -m papers {name}"
    assert report["processor"]
    assert report["seed"] == 0
    assert [cell["cell"] for cell in report["cells"]] == [cell.key for cell in EXPERIMENTS[name].cells]
