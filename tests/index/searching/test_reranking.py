"""Reranking, with the model that ships as the reranker of an index of another model, and with a small CrossEncoder."""

import json

import numpy as np
import pytest

from ctx_embed.index.model import IndexModel
from tests.helpers.errors import error
from tests.index.support.cross_encoder import save_cross_encoder
from tests.index.support.stored import ids

TEXTS = [
    "Hackers locked the hospital's computers.",
    "Prices rise faster than wages.",
    "A bank raised its rates.",
    "The striker scored two goals.",
    "Bees feed on a single crop.",
    "Rain fell all night on the town.",
]
QUERY = "a football match with many goals"


@pytest.fixture
def index(index):
    index.add(TEXTS)
    return index


def test_the_best_candidates_are_in_the_order_of_the_rerankers_cosines(index):
    plain = index.search(QUERY, 6, mode="dense")
    embedder = IndexModel.of(None)
    cosines = embedder.documents([hit.text for hit in plain]) @ embedder.queries([QUERY])[0]
    for candidates, k, offset in [(6, 6, 0), (4, 2, 0), (3, 2, 1), (1, 3, 0)]:
        # The reranker reads the candidates; what lies beyond them follows as it is.
        order = [*np.argsort(-cosines[:candidates], kind="stable"), *range(candidates, 6)][offset : offset + k]
        hits = index.search(QUERY, k, mode="dense", rerank="default", candidates=candidates, offset=offset)
        assert ids(hits) == [plain[place].id for place in order]
        expected = [float(cosines[place]) if place < candidates else None for place in order]
        assert [hit.reranked for hit in hits] == pytest.approx(expected, abs=1e-5)
        assert [hit.score for hit in hits] == pytest.approx([plain[place].score for place in order])
    assert ids(index.search(QUERY, 1, rerank="default")) == [3]
    assert plain[0].reranked is None
    assert [ids(hits) for hits in index.search([QUERY, "weather"], 1, rerank="default")] == [[3], [5]]
    assert set(ids(index.search([QUERY, "weather"], 2, rerank="default", fuse=True))) == {3, 5}
    assert ids(index.search(QUERY, 1, rerank="default", mmr=0.5, group="id", mode="hybrid")) == [3]
    assert len(index.search(like=3, rerank="default")) == 5
    assert index.search("", rerank="default", where="missing is not null") == []


def test_the_rerankers_cosines_take_the_place_of_ours_beside_the_words(index):
    query = "a striker who raised goals"
    plain = index.search(query, 6, mode="hybrid")
    embedder = IndexModel.of(None)
    cosines = embedder.documents([hit.text for hit in plain]) @ embedder.queries([query])[0]
    ours = np.maximum([hit.score for hit in plain], 0)
    words = 2 * np.array([hit.fused for hit in plain]) - ours / ours.max()
    assert sorted(words)[-2:] == pytest.approx([sorted(words)[-2], 1])
    expected = (np.maximum(cosines, 0) / cosines.max() + words) / 2
    order = np.argsort(-expected)
    hits = index.search(query, 6, mode="hybrid", rerank="default")
    assert ids(hits)[:3] == [plain[place].id for place in order[:3]]
    assert [hit.reranked for hit in hits] == pytest.approx(expected[order].tolist(), abs=1e-5)


@pytest.fixture
def cross_encoder(tmp_path, tokenizer):
    return save_cross_encoder(tmp_path / "cross", tokenizer)


def test_a_cross_encoder_scores_pairs(index, cross_encoder, tmp_path):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(cross_encoder))
    scores = model.predict([(QUERY, text) for text in TEXTS], show_progress_bar=False)
    model.save_pretrained(str(tmp_path / "saved"))
    for rerank in (model, str(cross_encoder), cross_encoder, tmp_path / "saved"):
        hits = index.search(QUERY, 6, rerank=rerank)
        assert [hit.reranked for hit in hits] == pytest.approx(sorted(map(float, scores), reverse=True), abs=1e-5)


def test_a_cross_encoder_calls_nothing_that_its_folder_names(index, cross_encoder, capfd):
    for name in ("torch.utils.collect_env.main", "evil.E", 5):
        for file, settings in (
            ("config.json", {"sentence_transformers": {"activation_fn": name}}),
            ("config.json", {"sbert_ce_default_activation_function": name}),
            ("config_sentence_transformers.json", {"model_type": "CrossEncoder", "activation_fn": name}),
        ):
            path = cross_encoder / file
            before = path.read_text() if path.exists() else "{}"
            path.write_text(json.dumps(json.loads(before) | settings))
            said = error(index.search, QUERY, 6, rerank=cross_encoder)
            assert said == f"{path}: the activation must be a layer of torch.nn, got {name!r}"
            path.write_text(before)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("query", "rerank", "message"),
    [
        ("a", "./nowhere", "./nowhere: no such model folder"),
        ("a", 5, "rerank must be a model or the name of one, got int"),
        (np.ones(8), "default", "rerank needs texts; a reranker cannot read vectors"),
    ],
)
def test_what_cannot_rerank_is_one_line(index, query, rerank, message):
    assert error(index.search, query, rerank=rerank) == message
