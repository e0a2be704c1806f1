"""The derivation for a billion passages follows from the measured figures beside it."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

PASSAGES = 1_000_000_000
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
TABLE = [
    [cell.strip() for cell in line.strip("| ").split("|")]
    for line in PAGE.partition("| per passage |")[2].splitlines()[2:]
    if line.startswith("|")
]


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def test_embedding_takes_the_core_hours_of_its_rate():
    name, measured, total = TABLE[0]
    rate = number(re.search(r"([\d,]+) texts a second", name)[1])
    assert measured == f"{1e6 / rate:.1f} µs"
    assert total == f"{PASSAGES / rate / 3600:.1f} core-hours"


@pytest.mark.parametrize(("name", "measured", "total"), TABLE, ids=[row[0] for row in TABLE])
def test_a_billion_passages_take_what_one_takes_times_a_billion(name, measured, total):
    if measured.endswith(" µs"):
        assert total == f"{number(measured) * PASSAGES / 1e6 / 3600:,.1f} core-hours"
    else:
        assert measured.endswith(" bytes")
        assert total == f"{number(measured) * PASSAGES / 1e9:,.0f} GB"


def test_the_table_is_found():
    assert len(TABLE) >= 8
