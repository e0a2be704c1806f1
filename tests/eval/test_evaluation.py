from __future__ import annotations

import numpy as np
import pytest

from ctx_embed.eval.encoders import Encoder
from ctx_embed.eval.evaluation import evaluate
from ctx_embed.eval.probes import standard
from ctx_embed.eval.similarity import spearman
from ctx_embed.eval.task_data import DataReader
from ctx_embed.eval.tasks import find_tasks


def test_scores_are_those_of_the_probe_and_of_the_correlation(folder, drawn):
    result = evaluate([drawn], find_tasks(["MR", "STSB"]), DataReader(folder), seed=5)
    rows = result.data["MR"].subsets["MR"]
    embeddings = drawn.encode([text for _, text in rows]).astype(np.float32)
    assert result.scores["drawn", "MR"] == standard(embeddings, [label for label, _ in rows], 5)
    assert result.scores["drawn", "MR"].mean > 90
    scores, first, second = zip(*result.data["STSB"].subsets["STSB_test"], strict=True)
    expected = spearman(drawn.encode(first), drawn.encode(second), list(map(float, scores)))
    assert result.scores["drawn", "STSB"].mean == pytest.approx(expected)


def test_a_task_shared_by_encoders_is_read_once_and_subsets_are_averaged(folder, drawn):
    other = Encoder("other", lambda texts: drawn.encode(texts)[:, ::-1])
    result = evaluate([drawn, other], find_tasks(["STS13"]), DataReader(folder))
    assert list(result.scores) == [("drawn", "STS13"), ("other", "STS13")]
    score = result.scores["other", "STS13"]
    assert list(score.subsets) == ["STS13_FNWN", "STS13_headlines"]
    assert score.mean == np.mean(list(score.subsets.values()))


def test_what_fails_is_told_and_the_rest_goes_on(folder, drawn, tmp_path):
    mine = tmp_path / "mine.tsv"
    mine.write_text("a\tone\n")
    odd = Encoder("odd", lambda texts: np.full((len(texts), 2), np.nan))
    told: list[str] = []
    tasks = find_tasks(["CR", str(mine), "STSB"])
    result = evaluate([odd, drawn], tasks, DataReader(folder), tell=told.append)
    assert list(result.scores) == [("drawn", "STSB")]
    assert told == [
        f"CR: {folder / 'senteval' / 'CR.tsv'} is missing; name a folder that holds it with --data or CTX_EMBED_DATA",
        "STSB: 10 rows, the published set has 1379",
        f"{mine}: encoder 'odd' gives NaN or infinity for the text 'one'",
        "STSB: encoder 'odd' gives NaN or infinity for the text 'good day 0'",
        f"{mine}: all 1 rows are of the class 'a', a probe needs two classes or more",
    ]
    assert result.failures == [told[0], *told[2:]]
