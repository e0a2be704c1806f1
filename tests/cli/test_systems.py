import json

from ctx_embed.systems import DESCRIPTIONS, SYSTEMS
from tests.helpers.cli import Command


def test_systems_and_baselines():
    assert "\nlama   " in Command("systems").succeeds()
    rows = {row["name"]: row for row in json.loads(Command("systems").succeeds("--json", "--dimension", "8"))}
    facts = {"kind": "system", "parameter_count": 2 * 30 * 8, **DESCRIPTIONS["lama"]._asdict()}
    assert facts.items() <= rows["lama"].items()
    assert rows["lama"]["options"].items() >= {"heads": 30, "context": "mean"}.items()
    assert {name for name, row in rows.items() if row["kind"] == "system"} == set(SYSTEMS)
    assert rows.keys() == {*SYSTEMS, "tfidf", "majority"}
