from __future__ import annotations

import re

from ctx_embed.eval.reports import as_markdown, notes, tables


def test_a_table_for_each_kind_of_task(report):
    probes, similarity, retrieval, differences, costs = tables(report)
    assert probes.columns == ["", "MR", "R8"]
    (drawn, other), (floor, *published) = probes.sections
    assert drawn[:1] == ["drawn"]
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d", drawn[1])
    # A test part is scored once.
    assert re.fullmatch(r"\d+\.\d", drawn[2])
    assert other[0] == "a|b [v2]"
    assert floor == ["majority class", "50.0", "55.6"]
    assert published[0] == ["Contextualizer (paper)", "76.6", ""]
    assert [row[0] for row in published] == ["Contextualizer (paper)", "USE-T", "InferSent", "all-MiniLM-L6-v2"]
    assert len(similarity.sections) == 1
    assert retrieval.sections[1] == [["BM25", "48.6"]]
    assert re.fullmatch(r"\d+\.\d \(\d+\.\d, \d+\.\d\)", retrieval.sections[0][0][1])
    assert differences.title == "Difference from drawn in points, with p-value"
    assert [row[0] for row in differences.sections[0]] == ["a|b [v2]"]
    assert [row[0] for row in costs.sections[0]] == ["drawn", "a|b [v2]"]


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
    report["tasks"][0]["rows_by_subset"] = {"train": 1000, "test": 4000}
    report["tasks"][0]["repeated"] = 3256
    assert "MR: 3,256 of 4,000 test texts also occur in the training part" in notes(report)


def test_a_score_on_texts_seen_in_training_has_a_mark(report):
    report["results"][0]["labelled"] = 39
    assert tables(report)[0].sections[0][0][1].split()[0].endswith("†")
    assert any(
        line.startswith("† MR: 39 of 40 texts are among the labelled texts that drawn") for line in notes(report)
    )
    report["tasks"][0]["rows"] = 4000
    assert "†" not in tables(report)[0].sections[0][0][1]
    assert any(line.startswith("MR: 39 of 4,000 texts") for line in notes(report))


def test_markdown_keeps_its_columns(report):
    text = as_markdown(report)
    for block in text.split("\n\n"):
        if block.startswith("| "):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1
    assert "| a\\|b \\[v2] |" in text
    assert text.endswith(".\n")
