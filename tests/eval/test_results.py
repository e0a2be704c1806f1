import copy
import json
import re

import pytest

from ctx_embed.eval.evaluation import compare
from ctx_embed.eval.reports import FORMAT_VERSION, as_markdown, notes, read_results, tables
from ctx_embed.eval.scoring.probes import ProbeScore
from ctx_embed.eval.scoring.ranking import RetrievalScore, SimilarityScore
from ctx_embed.eval.scoring.score import difference
from tests.helpers.errors import error


def test_what_every_file_carries(report):
    packages = {"numpy", "scikit-learn", "scipy", "sentence-transformers", "torch"}
    assert set(report["versions"]) == {"ctx_embed", "python"} | packages
    assert report["format_version"] == FORMAT_VERSION
    assert [entry["fingerprint"] for entry in report["encoders"]] == ["f" * 64, None]
    assert report["encoders"][0]["cost"]["texts_per_second"] > 0
    probe, split, similarity, retrieval = report["tasks"]
    assert (probe["rows_by_label"], probe["floor"], probe["repeated"]) == ({"0": 20, "1": 20}, 50.0, 0)
    assert split["rows_by_subset"] == {"train": 30, "test": 9}
    assert (similarity["left_out"], len(similarity["gold"]["STS13_FNWN"])) == (12, 7)
    assert retrieval["metric"] == "nDCG@10 times 100"
    by_cell = {(result["encoder"], result["task"]): result for result in report["results"]}
    first, other = by_cell["drawn", "MR"], by_cell["a|b [v2]", "MR"]
    assert len(first["score"]["right"]) == 40
    low, high = first["interval"]
    assert low < first["mean"] <= high + 1e-9
    # The difference from the first encoder.
    assert "versus" not in first
    assert other["versus"]["encoder"] == "drawn"
    assert other["versus"]["value"] == pytest.approx(other["mean"] - first["mean"])
    assert other["versus"]["p"] < 0.01
    assert by_cell["drawn", "adi"]["measures"]["nDCG@10"] == by_cell["drawn", "adi"]["mean"]


def test_reading(report, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(report))
    assert read_results(tmp_path) == read_results(path) == report
    for content, message in (
        ("{", "not JSON"),
        ('{"format_version": 2}', "the format must be 1, got 2; run `ctx-embed eval run` again"),
    ):
        path.write_text(content)
        assert error(read_results, tmp_path).startswith(f"{path}: {message}")
    path.unlink()
    assert error(read_results, path).endswith(
        "cannot be read (No such file or directory); eval run -o DIR writes such a file"
    )


# Comparisons


def test_the_second_less_the_first_of_every_shared_task(report):
    differences = compare(report, report, ("drawn", "a|b [v2]"))
    versus = {r["task"]: r["versus"] for r in report["results"] if "versus" in r}
    assert list(differences) == ["MR", "R8", "STS13", "adi"]
    for task, found in differences.items():
        assert found.value == pytest.approx(versus[task]["value"])
        assert (found.p, list(found.interval)) == (versus[task]["p"], versus[task]["interval"])
    assert [found.test for found in differences.values()] == ["McNemar", "McNemar", "permutation", "permutation"]
    same = compare(report, report)
    assert all((found.value, found.p) == (0.0, 1.0) for found in same.values())


def test_other_data_are_not_compared(report):
    other = copy.deepcopy(report)
    for task in other["tasks"][1:]:
        task["sha256"] = "0" * 64
    assert list(compare(report, other)) == ["MR"]
    other["tasks"][0]["sha256"] = "0" * 64
    message = "the two reports must share a task on the same data, got none; there is nothing to compare"
    assert error(compare, report, other) == message


def test_other_protocols_seeds_or_folds_are_said(report):
    other = {**report, "protocol": "another", "seeds": [0, 1], "folds": 3}
    message = "measured differently (protocol quick and another; seeds [0] and [0, 1]; folds its own and 3)"
    with pytest.warns(UserWarning, match=re.escape(message)):
        compare(report, other)
    # Cosines know no protocol.
    of_cosines = [task for task in report["tasks"] if task["kind"] != "probe"]
    results = [result for result in report["results"] if result["task"] in {task["name"] for task in of_cosines}]
    compare(report, {**other, "tasks": of_cosines, "results": results})


def test_several_seeds_are_compared_by_rows():
    first, second = (ProbeScore((50.0,), (1.0,), 50.0, right, 2) for right in ("2210", "1100"))
    found = difference(first, second, {})
    assert (found.value, found.test) == (pytest.approx(100 * (0.5 + 0.5 + 0.5 + 0) / 4), "permutation")


def test_scores_of_other_rows():
    probes = [ProbeScore((50.0,), (1.0,), 50.0, right) for right in ("11", "1")]
    pairs = [SimilarityScore({name: 1.0}, {name: (0.1,)}) for name in "ab"]
    for scores in (probes, pairs, (RetrievalScore((1.0,), (1.0,), (1.0,)), pairs[0])):
        assert error(difference, *scores, {}) == "the two scores must cover the same rows, got different ones"


# Tables


def test_a_table_for_each_kind_of_task(report):
    probes, similarity, retrieval, differences, costs = tables(report)
    assert probes.columns == ["", "MR", "R8"]
    (drawn, other), (floor, *published) = probes.sections
    # A test part is scored once.
    assert re.fullmatch(r"drawn \d+\.\d ± \d+\.\d \d+\.\d", " ".join(drawn))
    assert other[0] == "a|b [v2]"
    assert floor == ["majority class", "50.0", "55.6"]
    assert published[0] == ["Contextualizer (paper)", "76.6", ""]
    assert len(similarity.sections) == 1
    assert retrieval.sections[1] == [["BM25", "48.6"]]
    assert re.fullmatch(r"\d+\.\d \(\d+\.\d, \d+\.\d\)", retrieval.sections[0][0][1])
    assert differences.title == "Difference from drawn in points, with p-value"
    assert [row[0] for row in costs.sections[0]] == ["drawn", "a|b [v2]"]
    text = as_markdown(report)
    for block in text.split("\n\n"):
        if block.startswith("| "):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert "| a\\|b \\[v2] |" in text
    assert text.endswith(".\n")


def test_differences_show_sign_and_p(report):
    compared = [result for result in report["results"] if "versus" in result]
    for result, (value, p) in zip(compared, [(-1.25, 0.0411), (0.0, 0.0002)], strict=False):
        result["versus"] |= {"value": value, "p": p}
    report["encoders"].append({**report["encoders"][1], "name": "third"})
    report["results"].append({**compared[0], "encoder": "third"})
    rows = tables(report)[3].sections[0]
    assert rows[0][1:3] == ["-1.2 (p 0.041)", "+0.0 (p < 0.001)"]
    assert rows[1] == ["third", "-1.2 (p 0.041)", "", "", ""]


def test_notes(report):
    report["tasks"][0]["repeated"] = 3
    lines = notes(report)
    assert lines[0] == "protocol quick (stratified 5-fold, standardised inside the fold, C = 0.01), seed 0"
    assert lines[1].startswith("Contextualizer (paper): Maupome and Meurs 2022")
    left_out = "without 12 pairs that also occur in STSB-dev"
    assert f"STS13: mean over 2 subsets (STS13_FNWN, STS13_headlines), {left_out}" in lines
    assert "MR: 3 of 40 texts occur more than once and may fall on both sides of a split" in lines
    report["tasks"][0] |= {"rows_by_subset": {"train": 1000, "test": 4000}, "repeated": 3256}
    assert "MR: 3,256 of 4,000 test texts also occur in the training part" in notes(report)


def test_a_score_on_texts_seen_in_training_has_a_mark(report):
    report["results"][0]["labelled"] = 39
    for rows, mark, said in ((40, "†", "† MR: 39 of 40 texts are among the labelled"), (4000, "", "MR: 39 of 4,000")):
        report["tasks"][0]["rows"] = rows
        assert tables(report)[0].sections[0][0][1].split()[0].endswith(mark)
        assert ("†" in tables(report)[0].sections[0][0][1]) == bool(mark)
        assert any(line.startswith(said) for line in notes(report))
