from __future__ import annotations

import json
import re

import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.reports import FORMAT_VERSION, read_results


def test_what_every_file_carries(report):
    assert set(report["versions"]) == {
        "ctx_embed",
        "numpy",
        "python",
        "scikit-learn",
        "scipy",
        "sentence-transformers",
        "torch",
    }
    assert report["format_version"] == FORMAT_VERSION
    assert (report["protocol"], report["seeds"]) == ("quick", [0])
    assert [entry["fingerprint"] for entry in report["encoders"]] == ["f" * 64, None]
    assert all(len(task["sha256"]) == 64 for task in report["tasks"])
    assert report["encoders"][0]["cost"]["texts_per_second"] > 0


def test_tasks(report):
    probe, split, similarity, retrieval = report["tasks"]
    assert (probe["rows_by_label"], probe["floor"], probe["repeated"]) == ({"0": 20, "1": 20}, 50.0, 0)
    assert split["rows_by_subset"] == {"train": 30, "test": 9}
    assert (similarity["left_out"], len(similarity["gold"]["STS13_FNWN"])) == (12, 7)
    assert retrieval["metric"] == "nDCG@10 times 100"
    assert list(report["published_sources"]) == [
        "Contextualizer (paper)",
        "USE-T",
        "InferSent",
        "all-MiniLM-L6-v2",
        "BM25",
    ]


def test_results_hold_what_each_row_got_and_the_difference_from_the_first_encoder(report):
    by_cell = {(result["encoder"], result["task"]): result for result in report["results"]}
    first, other = by_cell["drawn", "MR"], by_cell["a|b [v2]", "MR"]
    assert len(first["score"]["right"]) == 40
    low, high = first["interval"]
    assert low < first["mean"] <= high + 1e-9
    assert "versus" not in first
    versus = other["versus"]
    assert versus["encoder"] == "drawn"
    assert versus["value"] == pytest.approx(other["mean"] - first["mean"])
    assert versus["p"] < 0.01
    assert by_cell["drawn", "adi"]["measures"]["nDCG@10"] == by_cell["drawn", "adi"]["mean"]


def test_reading(report, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(report))
    assert read_results(tmp_path) == read_results(tmp_path / "results.json") == report


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the format must be 1, got None; run `ctx-embed eval run` again"),
        (
            '{"format_version": 1, "protocol": "quick"}',
            "must be a result of eval run, lacks protocol_title, seeds",
        ),
        ('{"format_version": 2}', "the format must be 1, got 2; run `ctx-embed eval run` again"),
    ],
)
def test_what_is_no_result(content, message, tmp_path):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / 'results.json'))}: {re.escape(message)}"):
        read_results(tmp_path)
    with pytest.raises(
        InputError, match=r"cannot be read \(No such file or directory\); eval run -o DIR writes such a file$"
    ):
        read_results(tmp_path / "absent.json")
