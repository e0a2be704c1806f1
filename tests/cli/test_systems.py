from __future__ import annotations

import json

from ctx_embed.systems import DESCRIPTIONS, SYSTEMS
from tests.helpers.cli import Command

COMMAND = Command("systems")
run = COMMAND.succeeds


def test_the_list():
    output = run()
    for name in (*SYSTEMS, "tfidf", "majority"):
        assert sum(line.startswith(f"{name} ") for line in output.splitlines()) == 1
    assert "lama                         15,360 parameters, O(n m heads); Mehta et al. 2019\n" in output


def test_json():
    rows = {row["name"]: row for row in json.loads(run("--json", "--dimension", "8"))}
    options = {"heads": 30, "context": "mean", "rank": 1, "layer": 0, "hidden": None}
    options |= {"output_dimension": None, "max_seq_length": None}
    facts = {"name": "lama", "kind": "system", "parameter_count": 2 * 30 * 8, "options": options}
    assert rows["lama"] == facts | DESCRIPTIONS["lama"]._asdict()
    kinds = {"system": set(SYSTEMS), "evaluation baseline": {"tfidf", "majority"}}
    for kind, names in kinds.items():
        assert {name for name, row in rows.items() if row["kind"] == kind} == names
