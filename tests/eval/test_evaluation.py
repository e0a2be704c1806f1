"""Evaluations of encoders on tasks, and the reports, comparisons and tables made of them."""

import csv
import io
import json
import re
import sys
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from ctx_embed import eval as front
from ctx_embed.eval import evaluation
from ctx_embed.eval.encoders import as_encoder, load_encoder
from ctx_embed.eval.evaluation import EvaluationOptions, compare, evaluate
from ctx_embed.eval.evaluator import ProbeEvaluator
from ctx_embed.eval.reports import FORMAT_VERSION, as_markdown, notes, read_results, tables
from ctx_embed.eval.scoring import score
from ctx_embed.eval.scoring.probes import PROTOCOLS, ProbeScore, frozen, mean_of_seeds
from ctx_embed.eval.scoring.ranking import RetrievalScore, SimilarityScore, paired, spearman
from ctx_embed.eval.scoring.score import difference
from tests.eval.conftest import encoder_of
from tests.helpers.errors import error

QUICK = EvaluationOptions("quick")


def test_scores_are_those_of_the_probe_and_of_the_correlation(folder, drawn):
    result = evaluate([drawn], ["MR", "STSB", "R8", "adi"], folder, EvaluationOptions(seeds=(5,)))
    rows = result.data["MR"].subsets["MR"]
    embeddings = drawn.encode([text for _, text in rows]).astype(np.float32)
    expected = PROTOCOLS["standard"].score(frozen(embeddings), [label for label, _ in rows], 5)
    assert result.scores["drawn", "MR"] == expected
    assert expected.mean > 90
    scores, first, second = zip(*result.data["STSB"].subsets["STSB_test"], strict=True)
    cosines = paired(drawn.encode(first), drawn.encode(second))
    assert result.scores["drawn", "STSB"].mean == pytest.approx(spearman(list(cosines), list(map(float, scores))))
    assert (len(result.scores["drawn", "R8"].folds), len(result.scores["drawn", "R8"].right)) == (1, 9)
    # The three documents with "good" stand together; what is relevant is among them.
    assert result.scores["drawn", "adi"].ndcg[0] > 60
    assert len(result.scores["drawn", "adi"].ndcg) == 2


def test_subsets_and_seeds_are_averaged_and_senteval_measures_all_pairs(folder, drawn):
    noisy = encoder_of("noisy", lambda texts: drawn.encode(texts)[:, 1:])
    options = [EvaluationOptions("quick", seeds, folds=4) for seeds in ((1,), (2,), (1, 2))]
    *alone, both = (evaluate([noisy], "MR", folder, of_seeds).scores["noisy", "MR"] for of_seeds in options)
    assert both == mean_of_seeds(alone)
    assert len(both.folds) == 8
    score = evaluate([drawn], "STS13", folder).scores["drawn", "STS13"]
    assert list(score.subsets) == ["STS13_FNWN", "STS13_headlines"]
    assert score.mean == np.mean(list(score.subsets.values()))
    result = evaluate([drawn], "STS13", folder, EvaluationOptions("senteval"))
    assert list(result.scores["drawn", "STS13"].subsets) == ["STS13_FNWN", "STS13_OnWN", "STS13_headlines"]
    assert result.data["STS13"].left_out == 0


def test_failures_are_reported_and_the_rest_continues(folder, drawn, tmp_path):
    mine = tmp_path / "mine.tsv"
    mine.write_text("a\tone\n")
    odd = encoder_of("odd", lambda texts: np.full((len(texts), 2), np.nan))
    told: list[str] = []
    result = evaluate([odd, drawn], ["CR", str(mine), "STSB"], folder, tell=told.append)
    assert list(result.scores) == [("drawn", "STSB")]
    assert told == [
        f"CR: {folder / 'senteval' / 'CR.tsv'} is missing; name a folder that holds it with --data or CTX_EMBED_DATA",
        "STSB: 10 rows, but the published set has 1379",
        f"{mine}: odd: returned NaN or infinity for the text 'one'",
        "STSB: odd: returned NaN or infinity for the text 'good day 0'",
        f"{mine}: all 1 rows are of the class 'a'; a probe needs at least two classes",
    ]
    assert result.failures == [told[0], *told[2:]]
    assert repr(result).endswith(": 1 score, 4 failed)")
    nothing = evaluate(encoder_of("flat", lambda texts: np.ones(len(texts))), "STSB", folder)
    assert "\n- failed: STSB: flat: must return a row" in str(nothing)
    assert result.asked == 6


def test_baselines_of_which_the_majority_is_shown_once(folder):
    result = evaluate(["majority", "tfidf", "random"], ["MR", "STS13", "adi"], folder)
    assert result.scores["tfidf", "MR"].mean == 100.0
    assert result.scores["majority", "MR"].mean == result.scores["majority", "MR"].floor == 50.0
    assert result.scores["tfidf", "adi"].mean > result.scores["random", "adi"].mean
    # The majority has no cosines; it was not asked for them.
    assert (result.asked, result.failures) == (7, ["STS13: all 7 pairs have the same cosine; there is nothing to rank"])
    shown = result.report
    assert [row[0] for row in tables(shown)[0].sections[0]] == ["majority", "tfidf", "random"]
    assert all(row[0] != "majority class" for row in tables(shown)[0].sections[1])
    # Another encoder with the same score is no such row.
    shown["encoders"][0]["name"] = shown["results"][0]["encoder"] = "other"
    assert tables(shown)[0].sections[1][0][0] == "majority class"


def test_an_interrupted_run_resumes_and_damaged_scores_are_made_anew(folder, drawn, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    run = partial(evaluate, [drawn], ["MR", "STS13", "adi"], folder, QUICK)
    whole = run().scores
    with monkeypatch.context() as patch:
        patch.setattr(score, "score_collection", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(cache=tmp_path / "cache")
    for done in ("score_probe", "score_similarity"):
        monkeypatch.setattr(score, done, stopped)
    assert run(cache=tmp_path / "cache").scores == whole
    monkeypatch.undo()
    # A damaged score is computed again.
    for cell in (tmp_path / "cache" / "scores").iterdir():
        content = cell.read_text()
        for damaged in ("", "{", content[:-20]):
            cell.write_text(damaged)
            assert run(cache=tmp_path / "cache").scores == whole
            assert cell.read_text() == content


def test_other_data_seeds_protocols_encoders_and_versions_are_other_cells(folder, drawn, tmp_path, monkeypatch):
    path, found = folder / "senteval" / "MR.tsv", []
    rows = path.read_text()
    others = EvaluationOptions("quick", (1,)), EvaluationOptions(), EvaluationOptions("quick", folds=3)
    cells = [(drawn, options, rows) for options in (QUICK, QUICK, *others)]
    cells += [(replace(drawn, key="other"), QUICK, rows), (drawn, QUICK, rows + "1\tgood\n")]
    cells += [(encoder, QUICK, rows) for encoder in (load_encoder("tfidf"), replace(drawn, key=None))]
    for encoder, options, content in cells:
        path.write_text(content)
        evaluate([encoder], ["MR"], folder, options, cache=tmp_path / "cache")
        found.append(len(list((tmp_path / "cache" / "scores").iterdir())))
    assert found == [1, 1, 2, 3, 4, 5, 6, 7, 7]
    for name in ("__version__", "FORMAT"):
        monkeypatch.setattr(evaluation, name, "another")
        evaluate([drawn], ["MR"], folder, QUICK, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "scores").iterdir())) == 9


def test_what_cannot_be_evaluated(folder, drawn, report, tmp_path):
    message = "unknown protocol 'quik': did you mean 'quick'? known are paper, quick, "
    assert error(EvaluationOptions, "quik").startswith(message)
    assert error(EvaluationOptions, seeds=(1, 1)).startswith("seeds must be 1 to 9 different integers, got [1, 1]")
    assert error(EvaluationOptions, "senteval", (1, 2)) == "senteval has one seed of its own, 1111, got 2 seeds"
    message = "encoder names must differ, got drawn, drawn; rename with as_encoder(encoder, name)"
    assert error(evaluate, [drawn, drawn], ["MR"], folder) == message
    said = error(evaluate, [load_encoder("majority")], ["STSB", "adi"], folder)
    assert said.startswith("majority can only be scored on probe tasks, got none; add one")
    (tmp_path / "file").touch()
    for taken in (tmp_path / "file" / "new", tmp_path / "file"):
        said = error(evaluate, [drawn], ["MR"], folder, QUICK, cache=taken)
        assert said == f"cannot create the folder {taken}: Not a directory"
    assert error(front.write_report, report, taken) == f"cannot create the folder {taken}: File exists"


def test_the_front_door_takes_names_and_folders(folder, tmp_path):
    mine = tmp_path / "mine.tsv"
    labels = [("bad\tdull", "good\tfine")[n % 2] for n in range(60)]
    mine.write_text("".join(f"{label} film {n}\n" for n, label in enumerate(labels)))
    evaluation = front.evaluate("tfidf", [str(mine), "MR"], folder, front.EvaluationOptions("quick"))
    assert repr(evaluation) == f"Evaluation(tfidf on {mine}, MR: 2 scores)"
    assert all("| tfidf |" in shown for shown in (str(evaluation), evaluation._repr_markdown_()))
    front.write_report(evaluation, tmp_path / "results")
    differences = front.compare(evaluation, tmp_path / "results")
    assert {task: difference.value for task, difference in differences.items()} == {str(mine): 0, "MR": 0}
    assert "unknown task 'MRR': did you mean 'MR'" in error(front.evaluate, "tfidf", "MRR", folder)


# Results
def test_what_every_file_carries(report, tmp_path):
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
    assert (other["versus"]["encoder"], other["versus"]["value"]) == ("drawn", other["mean"] - first["mean"])
    assert other["versus"]["p"] < 0.01
    assert by_cell["drawn", "adi"]["measures"]["nDCG@10"] == by_cell["drawn", "adi"]["mean"]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(report))
    assert read_results(tmp_path) == read_results(path) == report
    path.write_text("{")
    assert error(read_results, tmp_path).startswith(f"{path}: not JSON")
    path.write_text('{"format_version": 2}')
    assert error(read_results, tmp_path).startswith(f"{path}: the format must be 1, got 2; run `ctx-embed eval run` ag")
    path.unlink()
    said = "cannot be read (No such file or directory); eval run -o DIR writes such a file"
    assert error(read_results, path).endswith(said)


def test_the_second_less_the_first_of_every_shared_task(report):
    differences = compare(report, report, ("drawn", "a|b [v2]"))
    versus = {r["task"]: r["versus"] for r in report["results"] if "versus" in r}
    assert list(differences) == ["MR", "R8", "STS13", "adi"]
    for task, found in differences.items():
        assert json.loads(json.dumps({"encoder": "drawn", **asdict(found)})) == versus[task]
    assert [found.test for found in differences.values()] == ["McNemar", "McNemar", "permutation", "permutation"]
    assert all((found.value, found.p) == (0.0, 1.0) for found in compare(report, report).values())
    # Tasks on other data are not compared.
    other = {**report, "tasks": [report["tasks"][0], *({**task, "sha256": "0" * 64} for task in report["tasks"][1:])]}
    assert list(compare(report, other)) == ["MR"]
    other["tasks"] = [{**task, "sha256": "0" * 64} for task in report["tasks"]]
    message = "the two reports must share a task on the same data, got none; there is nothing to compare"
    assert error(compare, report, other) == message
    # Other protocols, seeds or folds are said.
    other = {**report, "protocol": "another", "seeds": [0, 1], "folds": 3}
    message = "measured differently (protocol quick and another; seeds [0] and [0, 1]; folds its own and 3)"
    with pytest.warns(UserWarning, match=re.escape(message)):
        compare(report, other)
    # Cosines know no protocol.
    results = [result for result in report["results"] if result["task"] in ("STS13", "adi")]
    compare(report, {**other, "tasks": report["tasks"][2:], "results": results})
    # Several seeds are compared by rows, which must be the same.
    found = difference(*(ProbeScore((50.0,), (1.0,), 50.0, right, 2) for right in ("2210", "1100")), {})
    assert (found.value, found.test) == (pytest.approx(100 * (0.5 + 0.5 + 0.5 + 0) / 4), "permutation")
    probes = [ProbeScore((50.0,), (1.0,), 50.0, right) for right in ("11", "1")]
    pairs = [SimilarityScore({name: 1.0}, {name: (0.1,)}) for name in "ab"]
    for scores in (probes, pairs, (RetrievalScore((1.0,), (1.0,), (1.0,)), pairs[0])):
        assert error(difference, *scores, {}) == "the two scores must cover the same rows, got different ones"


def test_a_table_for_each_kind_of_task_with_sign_and_p_of_each_difference(report):
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
    for block in re.findall(r"(?:^\| .*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert "| a\\|b \\[v2] |" in text
    assert text.endswith(".\n")
    compared = [result for result in report["results"] if "versus" in result]
    for result, (value, p) in zip(compared, [(-1.25, 0.0411), (0.0, 0.0002)], strict=False):
        result["versus"] |= {"value": value, "p": p}
    report["encoders"].append({**report["encoders"][1], "name": "third"})
    report["results"].append({**compared[0], "encoder": "third"})
    rows = tables(report)[3].sections[0]
    assert rows[0][1:3] == ["-1.2 (p 0.041)", "+0.0 (p < 0.001)"]
    assert rows[1] == ["third", "-1.2 (p 0.041)", "", "", ""]


def test_a_report_as_files(report, tmp_path, monkeypatch):
    for suffix in (".json", ".md", ".csv", ".tex", ".svg", ".png"):
        front.write_report(report, tmp_path / f"report{suffix}")
    assert read_results(tmp_path / "report.json") == report
    assert (tmp_path / "report.md").read_text() == as_markdown(report)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report.csv").read_bytes().decode(), newline="")))
    measured = {(row["encoder"], row["task"]): row for row in rows if row["source"] == "measured"}
    assert measured.keys() == {(result["encoder"], result["task"]) for result in report["results"]}
    for result in report["results"]:
        row = measured[result["encoder"], result["task"]]
        assert [float(row[name]) for name in ("score", "low", "high")] == [result["mean"], *result["interval"]]
        assert (row["p"] == "") == ("versus" not in result)
    published = {(row["encoder"], row["task"]): row["score"] for row in rows if row["source"] == "published"}
    assert published["USE-T", "MR"] == "81.4"
    # LaTeX: as many cells in each row of a table, and every mark escaped.
    text = (tmp_path / "report.tex").read_text()
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == len(tables(report))
    for block in re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL):
        lines = block.replace("\\midrule\n", "").splitlines()
        assert {(line.count(" & "), line[-3:]) for line in lines} == {(lines[0].count(" & "), " \\\\")}
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[%#_]|±", body)
    assert "\na|b {[}v2] & " in body
    # The plot names each encoder, and is the same each time.
    drawn = (tmp_path / "report.svg").read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("drawn", "a|b [v2]", "texts per second", "mean of 4 tasks"))
    front.write_report(report, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == drawn
    for entry in report["encoders"]:
        entry["cost"] = None
    said = "a plot needs an encoder with a score on every task and a measured cost, got none"
    assert error(front.write_report, report, tmp_path / "no.svg") == said
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert error(front.write_report, report, tmp_path / "no.png").startswith("a plot needs the extra plot: pip install")
    assert not list(tmp_path.glob("*no.*"))


def test_notes_and_the_mark_of_a_score_on_texts_seen_in_training(report):
    report["tasks"][0]["repeated"] = 3
    lines = notes(report)
    assert lines[0] == "protocol quick (stratified 5-fold, standardised inside the fold, C = 0.01), seed 0"
    assert lines[1].startswith("Contextualizer (paper): Maupome and Meurs 2022")
    left_out = "without 12 pairs that also occur in STSB-dev"
    assert f"STS13: mean over 2 subsets (STS13_FNWN, STS13_headlines), {left_out}" in lines
    assert "MR: 3 of 40 texts occur more than once and may fall on both sides of a split" in lines
    report["tasks"][0] |= {"rows_by_subset": {"train": 1000, "test": 4000}, "repeated": 3256}
    assert "MR: 3,256 of 4,000 test texts also occur in the training part" in notes(report)
    report["results"][0]["labelled"] = 39
    for rows, mark, said in ((40, "†", "† MR: 39 of 40 texts are among the labelled"), (4000, "", "MR: 39 of 4,000")):
        report["tasks"][0]["rows"] = rows
        shown = tables(report)[0].sections[0][0][1]
        assert (shown.count("†"), shown.split()[0][-1:] == "†") == (len(mark), bool(mark))
        assert any(line.startswith(said) for line in notes(report))


# An evaluator for the trainer of sentence-transformers
LABELS = ["0", "1"] * 10
TEXTS = [f"{('a dull film', 'the good cat')[i % 2]} {'and rain ' * (i % 5)}" for i in range(20)]


def test_it_gives_the_score_of_the_probe(tiny_model, tmp_path):
    evaluator = ProbeEvaluator(LABELS, TEXTS, name="mine", seed=2)
    metrics = evaluator(tiny_model)
    expected = PROTOCOLS["quick"].score(frozen(as_encoder(tiny_model).encode(TEXTS)), LABELS, 2)
    assert metrics == {"mine_accuracy": expected.mean / 100, "mine_std": expected.std / 100}
    assert evaluator.primary_metric == "mine_accuracy"
    # Of a file, series, arrays and generators it gives the same.
    table, path = pd.DataFrame({"label": LABELS, "text": TEXTS}), tmp_path / "mine.tsv"
    table.to_csv(path, sep="\t", header=False, index=False)
    expected = ProbeEvaluator(LABELS, TEXTS)(tiny_model)
    assert ProbeEvaluator.from_file(path)(tiny_model) == expected
    for labels, texts in ((table["label"], table["text"]), map(np.array, (LABELS, TEXTS)), map(iter, (LABELS, TEXTS))):
        assert ProbeEvaluator(labels, texts)(tiny_model) == expected
    assert error(ProbeEvaluator, LABELS, table).startswith("texts must be a list of strings, got a DataFrame; give one")
    said = "there must be as many labels as texts, got 20 labels and 1 texts"
    assert error(ProbeEvaluator, LABELS, TEXTS[:1]) == said
    assert error(ProbeEvaluator, LABELS, TEXTS, protocol="x").startswith("unknown protocol 'x'")
