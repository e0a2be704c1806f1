"""A text that the shipped model cannot read is like no other, in any search by meaning."""

from __future__ import annotations

import numpy as np
import pytest

from ctx_embed import SearchIndex
from tests.index.support.stored import ids

UNKNOWN = ["日本語", "======", ""]
TEXTS = ["Prices rise faster than wages.", *UNKNOWN, "A bank raised its rates.", "Rain fell all night."]

pytestmark = pytest.mark.filterwarnings("ignore:.*too few words that the model knows")


@pytest.fixture(params=["float32", "float16", "int8"])
def index(request, tmp_path):
    with SearchIndex.create(tmp_path / "index", dtype=request.param) as index:
        index.add(TEXTS)
        yield index


def test_a_text_without_known_tokens_is_no_dense_hit(index):
    for k in (1, 3, 6, 100):
        assert set(ids(index.search("inflation", k, mode="dense"))) <= {0, 4, 5}
    assert sorted(ids(index.search("inflation", mode="dense"))) == [0, 4, 5]
    assert sorted(ids(index.search(["inflation", "weather"], mode="dense", fuse=True))) == [0, 4, 5]
    assert sorted(ids(index.search("inflation", mode="dense", mmr=0.5, group="id", exclude="日本語"))) == [0, 4, 5]
    assert sorted(ids(index.search(like=0))) == [4, 5]
    assert index.search(like=1) == index.search(like=[1, 2], exclude=4, mmr=0.1) == []


@pytest.mark.parametrize("query", UNKNOWN)
def test_a_query_without_known_tokens_finds_nothing_by_meaning(index, query):
    for options in ({}, {"exclude": "A bank raised its rates."}, {"mmr": 0.5}, {"threshold": -1}, {"exclude": 4}):
        assert index.search(query, mode="dense", **options) == []
    by_words = [1] if query == "日本語" else []
    assert ids(index.search(query)) == ids(index.search(query, mode="words")) == by_words
    assert [ids(hits) for hits in index.search([query, "inflation"], 1, mode="dense")] == [[], [0]]


def test_zero_vectors_can_be_given(index):
    zeros = np.zeros((1, index.embedder.dimension))
    (identifier,) = index.add(["inflation"], embeddings=zeros)
    assert index.search(zeros[0]) == []
    assert identifier not in ids(index.search("inflation", mode="dense"))
    assert ids(index.search("inflation", 1, mode="words")) == [identifier]
    assert index.verify() is not None
