"""Reranking, with the model that ships as the reranker of an index of another model, and with a small CrossEncoder."""

from __future__ import annotations

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.embedder import Embedder
from ctx_embed.index.searching import reranking
from ctx_embed.index.searching.reranking import VectorCache

TEXTS = [
    "Hackers locked the hospital's computers.",
    "Prices rise faster than wages.",
    "A bank raised its rates.",
    "The striker scored two goals.",
    "Bees feed on a single crop.",
    "Rain fell all night on the town.",
]
QUERY = "a football match with many goals"


class Counting:
    """The shipped model, which counts the texts that it embeds."""

    def __init__(self) -> None:
        from ctx_embed.numpy_model import Embedder as Runtime
        from ctx_embed.numpy_model.saved import DEFAULT_MODEL

        self.model = Runtime.load(DEFAULT_MODEL)
        self.seen: list[str] = []

    def get_embedding_dimension(self) -> int:
        return self.model.dimension

    def encode_query(self, texts, **options) -> np.ndarray:
        return self.model.encode_query(texts)

    def encode_document(self, texts, **options) -> np.ndarray:
        self.seen += texts
        return self.model.encode_document(texts)

    def children(self) -> list:
        return []

    def state_dict(self) -> dict:
        return {}


@pytest.fixture
def index(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add(TEXTS)
        yield index


def ids(hits) -> list:
    return [hit.id for hit in hits]


def test_the_best_candidates_are_in_the_order_of_the_rerankers_cosines(index):
    plain = index.search(QUERY, 6)
    embedder = Embedder.of(None)
    cosines = embedder.documents([hit.text for hit in plain]) @ embedder.queries([QUERY])[0]
    for candidates, k, offset in [(6, 6, 0), (4, 2, 0), (3, 2, 1), (1, 3, 0)]:
        pool = max(candidates, k + offset)
        order = np.argsort(-cosines[:pool], kind="stable")[offset : offset + k]
        hits = index.search(QUERY, k, rerank="default", candidates=candidates, offset=offset)
        assert ids(hits) == [plain[place].id for place in order]
        assert [hit.reranked for hit in hits] == pytest.approx([float(cosines[place]) for place in order], abs=1e-5)
        assert [hit.score for hit in hits] == pytest.approx([plain[place].score for place in order])
    assert ids(index.search(QUERY, 1, rerank="default")) == [3]
    assert plain[0].reranked is None
    assert [ids(hits) for hits in index.search([QUERY, "weather"], 1, rerank="default")] == [[3], [5]]
    assert set(ids(index.search([QUERY, "weather"], 2, rerank="default", fuse=True))) == {3, 5}
    assert ids(index.search(QUERY, 1, rerank="default", mmr=0.5, group="id", mode="hybrid")) == [3]
    assert len(index.search(like=3, rerank="default")) == 5
    assert index.search("", rerank="default", where="missing = 1") == []


def test_cached_vectors_are_used_and_equal(index, tmp_path):
    model = Counting()
    fresh = index.search(QUERY, 6, rerank=model)
    assert not (index.path / "reranking").exists()
    model.seen.clear()
    first = index.search(QUERY, 6, rerank=model, cache=True)
    assert sorted(model.seen) == sorted(TEXTS)
    index.add(["A new text."])
    second = index.search(QUERY, 7, rerank=model, cache=True)
    assert model.seen[len(TEXTS) :] == ["A new text."]
    assert ids(first) == ids(fresh)
    assert [hit.reranked for hit in first] == pytest.approx([hit.reranked for hit in fresh])
    assert [hit for hit in second if hit.id != 6] == first
    assert index.verify(embed=False) == []
    cache = VectorCache(index.path)
    assert cache.read("another model", index.embedder.dimension, TEXTS) == {}


def test_the_cache_is_bounded_and_the_oldest_make_way(index, monkeypatch):
    monkeypatch.setattr(reranking, "MOST_CACHED", 3)
    cache = VectorCache(index.path)
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    cache.write("m", ["a", "b"], vectors[:2])
    cache.write("m", ["c", "d"], vectors[2:])
    found = cache.read("m", 2, ["a", "b", "c", "d", "a\ud800"])
    assert sorted(found) == ["b", "c", "d"]
    np.testing.assert_array_equal(found["d"], vectors[3])
    assert cache.read("m", 3, ["d"]) == cache.read("n", 2, ["d"]) == {}


def test_a_damaged_or_locked_cache_costs_time_but_no_search(index, monkeypatch):
    import sqlite3

    monkeypatch.setattr(reranking, "PATIENCE_SECONDS", 0.01)
    model = Counting()
    expected = index.search(QUERY, 3, rerank=model, cache=True)
    file = index.path / "reranking" / "vectors.sqlite"
    file.write_bytes(b"no database at all" * 400)
    for leftover in file.parent.glob("*-wal"):
        leftover.unlink()
    assert index.search(QUERY, 3, rerank=model, cache=True) == expected
    assert index.search(QUERY, 3, rerank=model, cache=True) == expected
    other = sqlite3.connect(file)
    other.execute("BEGIN IMMEDIATE")
    index.upsert(["one more"], [2])
    assert len(index.search(QUERY, 3, rerank=model, cache=True)) == 3
    other.close()


def test_a_cross_encoder_scores_pairs(index, tmp_path, tokenizer):
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    config = BertConfig(
        vocab_size=200, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=1
    )
    folder = tmp_path / "cross"
    BertForSequenceClassification(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    model = CrossEncoder(str(folder))
    scores = model.predict([(QUERY, text) for text in TEXTS], show_progress_bar=False)
    for rerank in (model, str(folder), folder):
        hits = index.search(QUERY, 6, rerank=rerank)
        assert [hit.reranked for hit in hits] == pytest.approx(sorted(map(float, scores), reverse=True), abs=1e-5)
    with pytest.raises(InputError, match="a CrossEncoder has none"):
        index.search(QUERY, rerank=model, cache=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rerank": "./nowhere"}, "./nowhere: no such model folder"),
        ({"rerank": 5}, "rerank must be a model or the name of one, got int"),
        ({"cache": True}, "cache stores the vectors of a reranker; give rerank too"),
        ({"query": np.ones(8), "rerank": "default"}, "rerank needs texts; a reranker cannot read vectors"),
    ],
)
def test_what_cannot_rerank_is_one_line(index, arguments, message):
    with pytest.raises(InputError) as caught:
        index.search(**{"query": "a", **arguments})
    assert str(caught.value) == message
