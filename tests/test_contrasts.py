from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

TRIPLES = Path(__file__).parents[1] / "benchmarks" / "contrasts.tsv"


def test_the_half_for_testing_shares_no_text_with_the_other():
    if not TRIPLES.exists():
        pytest.skip("benchmarks are not beside an installed package")
    with TRIPLES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    counts = Counter((row["kind"], row["part"]) for row in rows)
    kinds = ("negation", "word order", "small words")
    assert counts == {(kind, part): 150 for kind in kinds for part in ("test", "development")}
    texts = {
        part: {row[column] for row in rows if row["part"] == part for column in ("text", "paraphrase", "contrast")}
        for part in ("test", "development")
    }
    assert not texts["test"] & texts["development"]
    assert all(len({row["text"], row["paraphrase"], row["contrast"]}) == 3 for row in rows)
