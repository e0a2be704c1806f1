from __future__ import annotations

import hashlib
import io
import json

import pytest
from rich.console import Console

from ctx_embed.eval.encoders import Encoder
from ctx_embed.eval.evaluation import Evaluation
from ctx_embed.eval.probes import ProbeScore
from ctx_embed.eval.reports import as_json, notes, tables
from ctx_embed.eval.similarity import SimilarityScore
from ctx_embed.eval.task_data import TaskData
from ctx_embed.eval.tasks import TASKS


@pytest.fixture
def evaluation() -> Evaluation:
    encoder = Encoder("models/[v2]", lambda texts: pytest.fail("not to be called"), "ab" * 32)
    return Evaluation(
        "standard",
        3,
        [TASKS["CR"], TASKS["MPQA"], TASKS["STS13"]],
        [encoder],
        {
            "CR": TaskData("data", {"CR": [("1", "good"), ("0", "bad"), ("1", "fine")]}),
            "STS13": TaskData("data", {"STS13_FNWN": [("1.0", "a", "b")], "STS13_OnWN": [("2.0", "c", "d")]}, 81),
        },
        {
            (encoder.name, "CR"): ProbeScore((80.0, 83.0), (0.1, 1.0), 200 / 3),
            (encoder.name, "STS13"): SimilarityScore({"STS13_FNWN": 60.0, "STS13_OnWN": 71.0}),
        },
        ["MPQA: absent"],
    )


def printed(evaluation: Evaluation) -> list[list[str]]:
    stream = io.StringIO()
    for title, table in tables(evaluation).items():
        print(title, file=stream)
        Console(file=stream, width=120).print(table)
    lines = [line for line in stream.getvalue().splitlines() if line[:1] not in "┏┡├└"]
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines]


def test_tables(evaluation):
    assert printed(evaluation) == [
        ["Accuracy in %, mean ± standard deviation over 10 folds"],
        ["", "CR", "MPQA"],
        ["models/[v2]", "81.5 ± 2.1", ""],
        ["majority class", "66.7", ""],
        ["Contextualizer (paper)", "79.0", "85.3"],
        ["USE-T", "87.4", "87.0"],
        ["all-MiniLM-L6-v2", "83.3", "87.7"],
        ["Spearman's rank correlation times 100"],
        ["", "STS13"],
        ["models/[v2]", "65.5"],
    ]


def test_notes(evaluation):
    lines = notes(evaluation)
    assert lines[0] == "protocol standard, seed 3"
    assert lines[1].startswith("Contextualizer (paper): Maupome and Meurs 2022")
    assert lines[-1] == ("STS13: mean over 2 subsets (STS13_FNWN, STS13_OnWN), without 81 pairs that stand in STSB-dev")
    assert len(lines) == 5


def test_json_is_whole_and_unrounded(evaluation):
    report = json.loads(json.dumps(as_json(evaluation)))
    assert sorted(report.pop("versions")) == [
        "ctx_embed",
        "numpy",
        "python",
        "scikit-learn",
        "scipy",
        "sentence-transformers",
        "torch",
    ]
    first, second = report.pop("tasks")
    assert first == {
        "name": "CR",
        "kind": "probe",
        "source": "data",
        "rows": 3,
        "sha256": hashlib.sha256(b"1\tgood\n0\tbad\n1\tfine\n").hexdigest(),
        "published": {"Contextualizer (paper)": 79.0, "USE-T": 87.4, "all-MiniLM-L6-v2": 83.3},
        "rows_by_label": {"0": 1, "1": 2},
    }
    assert (second["rows_by_subset"], second["left_out"]) == ({"STS13_FNWN": 1, "STS13_OnWN": 1}, 81)
    assert report == {
        "format_version": 1,
        "protocol": "standard",
        "seed": 3,
        "units": "accuracies in percent, Spearman's rank correlations times 100",
        "encoders": [{"name": "models/[v2]", "fingerprint": "ab" * 32}],
        "results": [
            {
                "encoder": "models/[v2]",
                "task": "CR",
                "mean": 81.5,
                "std": pytest.approx(4.5**0.5),
                "majority_floor": 200 / 3,
                "folds": [80.0, 83.0],
                "Cs": [0.1, 1.0],
            },
            {
                "encoder": "models/[v2]",
                "task": "STS13",
                "mean": 65.5,
                "subsets": {"STS13_FNWN": 60.0, "STS13_OnWN": 71.0},
            },
        ],
        "failures": ["MPQA: absent"],
    }
