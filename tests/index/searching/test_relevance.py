"""Relevance: its definition and order, and that it is never stale; query words that an index lacks."""

import math
import warnings

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.model import IndexModel, unrelated_cosines
from ctx_embed.index.searching.by_words import respelled
from ctx_embed.index.searching.hits import (
    BASE,
    DEFAULT_RELEVANCE,
    DEVIATIONS,
    PASSAGES,
    WORDS,
    relevance,
    word_shares,
)
from ctx_embed.loading import load_embedder

TEXTS = [
    "The printer XJ-4471 jams when the paper is damp.",
    "Prices rise faster than wages, and savings lose their value.",
    "Remove the cover and clean the rollers with a dry cloth.",
    "The cat sat on the mat and purred.",
]


@pytest.fixture(scope="module")
def embedder():
    return load_embedder(None)


@pytest.fixture
def index(tmp_path, embedder):
    with SearchIndex.create(tmp_path / "index", embedder) as index:
        index.add(TEXTS)
        yield index


def test_relevance_by_hand():
    unrelated = (0.1, 0.05)
    highest = PASSAGES * math.sqrt(2 * math.log(100))
    for cosine, share in ((0.1, 0.0), (0.35, 0.5), (0.2, 1.0)):
        height = DEVIATIONS * (cosine - 0.1) / 0.05 + WORDS * share + BASE - highest
        assert relevance(unrelated, cosine, share, 97) == pytest.approx(math.exp(-math.exp(-height)))
    assert relevance(unrelated, 1e9, 0.0, 1) == 1
    assert relevance(unrelated, -1e9, 1.0, 1) == 0


def test_unrelated_questions_of_a_model(embedder):
    unrelated = unrelated_cosines(embedder.encode_query)
    vectors = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # Random directions have the mean cosine 0 and the deviation 1 / sqrt(dimension).
    assert unrelated_cosines(lambda texts: vectors[: len(texts)]) == pytest.approx((0, 0.05), abs=0.002)
    assert unrelated is not None
    assert 0 < unrelated[0] < 0.2
    # The same questions move with any scale of cosines, so does the relevance of a cosine.
    assert unrelated_cosines(lambda texts: np.zeros((len(texts), 4))) is None
    assert unrelated_cosines(lambda texts: np.ones((len(texts), 4), np.float32) / 2) is None


@pytest.mark.parametrize(
    ("query", "text", "share"),
    [
        ("What jams the printers?", "the PRINTER jammed", 1.0),
        ("What jams the printers?", "a printer", 0.5),
        ("art", "part of an article", 0.0),
        ("art", "an art, the arts", 1.0),
        ("max_value", "the value", 0.5),
        ("who are they", "they are", 2 / 3),
        ("?!", "anything", 0.0),
        ("été", "L'ÉTÉ dernier", 1.0),
    ],
)
def test_the_share_of_a_querys_words(query, text, share):
    assert word_shares(query, [text, ""]) == pytest.approx([share, 0.0])


def test_an_answer_is_relevant_and_noise_is_not(index):
    for query, place in [("inflation", 1), ("why does my printer jam?", 0), ("XJ-4471", 0), ("how to clean it", 2)]:
        hits = index.search(query, 4)
        assert hits[0].text == TEXTS[place]
        assert hits[0].relevance > DEFAULT_RELEVANCE
        assert index.search(query, 4, min_relevance=DEFAULT_RELEVANCE) == [
            hit for hit in hits if hit.relevance >= DEFAULT_RELEVANCE
        ]
    for mode in ("dense", "hybrid", "words"):
        assert index.search("Who was the first king of Denmark?", min_relevance=DEFAULT_RELEVANCE, mode=mode) == []


def test_hits_of_vectors_and_of_unknown_tokens_have_no_relevance(index, embedder):
    (hit,) = index.search(embedder.encode_query(["inflation"])[0], 1)
    assert (hit.relevance, "relevance" in hit.as_dict()) == (None, False)
    assert index.search(like=0, k=1)[0].relevance is None
    index.add(["ᚠᚢᚦ ᚨᚱᚲ"])
    (hit,) = index.search("ᚠᚢᚦ", min_relevance=1)
    assert (hit.relevance, hit.text) == (None, "ᚠᚢᚦ ᚨᚱᚲ")


def test_fused_queries_share_their_relevance_and_pages_leave_nothing_out(index):
    queries = ["inflation", "savings and wages"]
    best = index.search(queries, 1, fuse=True)[0]
    assert best.relevance >= max(hits[0].relevance for hits in index.search(queries, 1))
    texts = [hit.text for hit in index.search("printer paper", 4) if hit.relevance >= 0.5]
    pages = [index.search("printer paper", 1, offset=place, min_relevance=0.5) for place in range(4)]
    assert [hit.text for page in pages for hit in page] == texts


def test_it_is_the_same_in_every_process_and_after_any_change(index, embedder, tmp_path):
    def relevances(index) -> list[float]:
        return [hit.relevance for hit in index.search("why does my printer jam?")]

    before = relevances(index)
    with SearchIndex.open(index.path, embedder) as other:
        assert relevances(other) == before
    added = index.add([f"Chapter {number}: {TEXTS[number % 4]}" for number in range(40)])
    assert relevances(index)[0] < before[0]
    index.delete(added)
    assert relevances(index) == before
    index.compact()
    assert relevances(index) == before
    with SearchIndex.create(tmp_path / "again", embedder) as again:
        again.add(TEXTS)
        assert relevances(again) == before


def test_a_search_embeds_its_queries_alone(index, monkeypatch):
    asked = []
    queries = IndexModel.queries
    monkeypatch.setattr(IndexModel, "queries", lambda self, texts: asked.extend(texts) or queries(self, texts))
    with SearchIndex.open(index.path) as other:
        assert other.search("inflation")[0].relevance is not None
    assert asked == ["inflation"]


def test_another_model_brings_its_own_scale_and_no_warning(index, hash_model):
    before = index.search(TEXTS[0])[0].relevance
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.reembed(hash_model)
        after = index.search(TEXTS[0])[0].relevance
    assert after > DEFAULT_RELEVANCE
    assert after != before


WRITTEN = [
    "The retrieval of documents by meaning",
    "Retrieving the machine parts AB1234 and AB1235",
    "A washing machine and its manual",
    "Mr Smith and Mr Smyth met the major",
    "The mayor of Zürich speaks",
]


@pytest.fixture(scope="module")
def typos(tmp_path_factory):
    with SearchIndex.create(tmp_path_factory.mktemp("typos") / "index") as typos:
        typos.add(WRITTEN)
        yield typos


def corrected(typos, query, mode="words", **options):
    return [(hit.id, hit.corrected) for hit in typos.search(query, mode=mode, **options)]


@pytest.mark.parametrize(
    ("typed", "written", "ids"),
    [
        ("machne", "machine", {1, 2}),  # a letter is missing
        ("mahcine", "machine", {1, 2}),  # two letters are swapped
        ("retreival", "retrieval", {0, 1}),
        ("Zurrich", "zürich", {4}),
        ("wahsing", "washing", {2}),  # "wash" is its stem
        ("washign", "washing", {2}),  # no stem can be cut off
        ("docmunets", "documents", {0}),  # two edits of a long word
    ],
)
def test_the_nearest_word_is_found_and_the_hit_says_so(typos, typed, written, ids):
    hits = typos.search(f"the {typed}", mode="words")
    assert {hit.id for hit in hits} == ids
    assert all(hit.corrected == {typed: written} for hit in hits)
    assert "**" in hits[0].as_dict(typed)["snippet"]
    assert corrected(typos, typed, "hybrid")[0][1] == {typed: written}


def test_a_corrected_query_means_what_it_was_meant_to(typos):
    found = corrected(typos, ["machne", "wahsing"], fuse=True)
    assert found[0] == (2, {"machne": "machine", "wahsing": "washing"})
    typed = typos.search("a machne that washes clothes", 1, mode="hybrid")[0]
    right = typos.search("a machine that washes clothes", 1, mode="hybrid")[0]
    assert (typed.id, typed.score, typed.relevance) == (right.id, right.score, right.relevance)


def test_what_stays_as_typed(typos):
    assert corrected(typos, "Smyth") == [(3, None)]  # one edit from "Smith"
    assert corrected(typos, "mayor") == [(4, None)]  # one edit from "major", but the index has it
    assert corrected(typos, "AB1236") == corrected(typos, "MAYRO") == []
    assert corrected(typos, "mayo") == []  # a word of the language
    assert corrected(typos, '"washing machine" manaul') == [(2, {"manaul": "manual"})]
    assert corrected(typos, "mxxhine") == []  # two edits of a short word
    assert all(words is None for _, words in corrected(typos, "machne", "dense"))


def test_a_word_that_the_index_gains_is_no_longer_corrected(tmp_path):
    with SearchIndex.create(tmp_path / "index") as typos:
        typos.add(["a machine"])
        assert corrected(typos, "machne") == [(0, {"machne": "machine"})]
        typos.add(["Machne Software"])
        assert corrected(typos, "machne") == [(1, None)]


def test_only_whole_words_are_respelled():
    assert respelled("machne machnes", {"machne": "machine"}) == "machine machnes"
    assert respelled("as typed", None) == "as typed"
