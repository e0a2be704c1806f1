from dataclasses import replace

import numpy as np
import pytest

from ctx_embed import eval as front
from ctx_embed.encoders import Encoder
from ctx_embed.eval.encoders import load_encoder
from ctx_embed.eval.evaluation import EvaluationOptions, evaluate
from ctx_embed.eval.scoring import score
from ctx_embed.eval.scoring.probes import PROTOCOLS, frozen, mean_of_seeds
from ctx_embed.eval.scoring.ranking import paired, spearman
from ctx_embed.eval.tasks.catalogue import find_tasks
from ctx_embed.eval.tasks.data import DataReader
from tests.helpers.errors import error

QUICK = EvaluationOptions("quick")


def test_scores_are_those_of_the_probe_and_of_the_correlation(folder, drawn):
    tasks = find_tasks(["MR", "STSB", "R8", "adi"])
    result = evaluate([drawn], tasks, DataReader(folder), EvaluationOptions(seeds=(5,)))
    rows = result.data["MR"].subsets["MR"]
    embeddings = drawn.encode([text for _, text in rows]).astype(np.float32)
    expected = PROTOCOLS["standard"].score(frozen(embeddings), [label for label, _ in rows], 5)
    assert result.scores["drawn", "MR"] == expected
    assert expected.mean > 90
    scores, first, second = zip(*result.data["STSB"].subsets["STSB_test"], strict=True)
    cosines = paired(drawn.encode(first), drawn.encode(second))
    assert result.scores["drawn", "STSB"].mean == pytest.approx(spearman(list(cosines), list(map(float, scores))))
    assert len(result.scores["drawn", "R8"].folds) == 1
    assert len(result.scores["drawn", "R8"].right) == 9
    # The three documents with "good" stand together; what is relevant is among them.
    assert result.scores["drawn", "adi"].ndcg[0] > 60
    assert len(result.scores["drawn", "adi"].ndcg) == 2


def test_subsets_and_seeds_are_averaged_and_senteval_measures_all_pairs(folder, drawn):
    noisy = Encoder("noisy", lambda texts: drawn.encode(texts)[:, 1:])
    of_seeds = [
        evaluate([noisy], "MR", DataReader(folder), EvaluationOptions("quick", seeds, folds=4)).scores["noisy", "MR"]
        for seeds in ((1,), (2,), (1, 2))
    ]
    assert of_seeds[2] == mean_of_seeds(of_seeds[:2])
    assert len(of_seeds[2].folds) == 8
    result = evaluate([drawn], find_tasks(["STS13"]), DataReader(folder))
    score = result.scores["drawn", "STS13"]
    assert list(score.subsets) == ["STS13_FNWN", "STS13_headlines"]
    assert score.mean == np.mean(list(score.subsets.values()))
    result = evaluate([drawn], find_tasks(["STS13"]), DataReader(folder), EvaluationOptions("senteval"))
    assert list(result.scores["drawn", "STS13"].subsets) == ["STS13_FNWN", "STS13_OnWN", "STS13_headlines"]
    assert result.data["STS13"].left_out == 0


def test_failures_are_reported_and_the_rest_continues(folder, drawn, tmp_path):
    mine = tmp_path / "mine.tsv"
    mine.write_text("a\tone\n")
    odd = Encoder("odd", lambda texts: np.full((len(texts), 2), np.nan))
    told: list[str] = []
    tasks = find_tasks(["CR", str(mine), "STSB"])
    result = evaluate([odd, drawn], tasks, DataReader(folder), tell=told.append)
    assert list(result.scores) == [("drawn", "STSB")]
    assert told == [
        f"CR: {folder / 'senteval' / 'CR.tsv'} is missing; name a folder that holds it with --data or CTX_EMBED_DATA",
        "STSB: 10 rows, but the published set has 1379",
        f"{mine}: encoder 'odd' returned NaN or infinity for the text 'one'",
        "STSB: encoder 'odd' returned NaN or infinity for the text 'good day 0'",
        f"{mine}: all 1 rows are of the class 'a'; a probe needs at least two classes",
    ]
    assert result.failures == [told[0], *told[2:]]
    assert result.asked == 6


def test_baselines(folder):
    result = evaluate(["tfidf", "majority", "random"], ["MR", "STS13", "adi"], DataReader(folder))
    assert result.scores["tfidf", "MR"].mean == 100.0
    assert result.scores["majority", "MR"].mean == result.scores["majority", "MR"].floor == 50.0
    assert result.scores["tfidf", "adi"].mean > result.scores["random", "adi"].mean
    # The majority has no cosines; it was not asked for them.
    assert (result.asked, result.failures) == (7, ["STS13: all 7 pairs have the same cosine; there is nothing to rank"])


def test_an_interrupted_run_resumes(folder, drawn, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    tasks = find_tasks(["MR", "STS13", "adi"])

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(score, "score_collection", stopped)
        with pytest.raises(KeyboardInterrupt):
            evaluate([drawn], tasks, DataReader(folder), QUICK, cache=cache)
    for done in ("score_probe", "score_similarity"):
        monkeypatch.setattr(score, done, stopped)
    again = evaluate([drawn], tasks, DataReader(folder), QUICK, cache=cache)
    monkeypatch.undo()
    assert again.scores == evaluate([drawn], tasks, DataReader(folder), QUICK).scores


def test_other_data_seeds_protocols_and_encoders_are_other_cells(folder, drawn, tmp_path):
    path, found = folder / "senteval" / "MR.tsv", []
    more = path.read_text() + "1\tgood\n"
    for encoder, options, rows in (
        (drawn, QUICK, ""),
        (drawn, QUICK, ""),
        (drawn, EvaluationOptions("quick", (1,)), ""),
        (drawn, EvaluationOptions(), ""),
        (drawn, EvaluationOptions("quick", folds=3), ""),
        (replace(drawn, key="other"), QUICK, ""),
        (drawn, QUICK, more),
        (load_encoder("tfidf"), QUICK, ""),
        (replace(drawn, key=None), QUICK, ""),
    ):
        path.write_text(rows or path.read_text())
        evaluate([encoder], find_tasks(["MR"]), DataReader(folder), options, cache=tmp_path / "cache")
        found.append(len(list((tmp_path / "cache" / "scores").iterdir())))
    assert found == [1, 1, 2, 3, 4, 5, 6, 7, 7]


def test_a_damaged_score_is_computed_again(folder, drawn, tmp_path):
    tasks = find_tasks(["MR"])
    first = evaluate([drawn], tasks, DataReader(folder), QUICK, cache=tmp_path / "cache")
    (cell,) = (tmp_path / "cache" / "scores").iterdir()
    whole = cell.read_text()
    for damaged in ("", "{", whole[:-20]):
        cell.write_text(damaged)
        assert evaluate([drawn], tasks, DataReader(folder), QUICK, cache=tmp_path / "cache").scores == first.scores
        assert cell.read_text() == whole


def test_what_cannot_be_evaluated(folder, drawn):
    for options, message in (
        ({"protocol": "quik"}, "unknown protocol 'quik': did you mean 'quick'? known are paper, quick, "),
        ({"seeds": (1, 1)}, "seeds must be 1 to 9 different integers, got [1, 1]"),
    ):
        assert error(EvaluationOptions, **options).startswith(message)
    message = "encoder names must differ, got drawn, drawn; rename with as_encoder(encoder, name)"
    assert error(evaluate, [drawn, drawn], find_tasks(["MR"]), DataReader(folder)) == message
    said = error(evaluate, [load_encoder("majority")], find_tasks(["STSB", "adi"]), DataReader(folder))
    assert said.startswith("majority can only be scored on probe tasks, got none; add one")


def test_the_front_door_takes_names_and_folders(folder, tmp_path):
    mine = tmp_path / "mine.tsv"
    labels = [("bad\tdull", "good\tfine")[n % 2] for n in range(60)]
    mine.write_text("".join(f"{label} film {n}\n" for n, label in enumerate(labels)))
    evaluation = front.evaluate("tfidf", [str(mine), "MR"], folder, front.EvaluationOptions("quick"))
    assert repr(evaluation) == f"Evaluation(tfidf on {mine}, MR: 2 scores)"
    assert "| tfidf |" in str(evaluation)
    assert "| tfidf |" in evaluation._repr_markdown_()
    front.write_report(evaluation, tmp_path / "results")
    differences = front.compare(evaluation, tmp_path / "results")
    assert {task: difference.value for task, difference in differences.items()} == {str(mine): 0, "MR": 0}
    assert "unknown task 'MRR': did you mean 'MR'" in error(front.evaluate, "tfidf", "MRR", folder)
