from __future__ import annotations

import json

from ctx_embed.systems import SYSTEMS
from ctx_embed.systems.registry import DESCRIPTIONS
from tests.helpers.cli import Command

COMMAND = Command("systems")
run, fails = COMMAND.succeeds, COMMAND.fails


def test_the_list():
    output = run()
    for name in (*SYSTEMS, "tfidf", "majority"):
        assert sum(line.startswith(f"{name} ") for line in output.splitlines()) == 1
    assert "lama                         15,360 parameters, O(n m heads); Mehta et al. 2019\n" in output


def test_json():
    rows = {row["name"]: row for row in json.loads(run("--json", "--dimension", "8"))}
    assert rows["lama"] == {
        "name": "lama",
        "kind": "system",
        **DESCRIPTIONS["lama"]._asdict(),
        "parameter_count": 2 * 30 * 8,
        "options": {
            "heads": 30,
            "context": "mean",
            "rank": 1,
            "layer": 0,
            "hidden": 0,
            "output_dimension": None,
            "max_seq_length": None,
        },
    }
    assert {name for name, row in rows.items() if row["kind"] == "system"} == set(SYSTEMS)
    assert {name for name, row in rows.items() if row["kind"] == "evaluation baseline"} == {"tfidf", "majority"}


def test_a_dimension_that_the_heads_do_not_divide():
    assert fails("--dimension", "7") == "heads must divide the dimension 7, got 4"


def test_a_dimension_that_no_memory_holds():
    assert "1000000000 is not in the range 1<=x<=2048" in fails("--dimension", "1000000000", code=2)
