"""Query words that an index lacks."""

from __future__ import annotations

import pytest

from ctx_embed import SearchIndex
from ctx_embed.index.searching.by_words import respelled

TEXTS = [
    "The retrieval of documents by meaning",
    "Retrieving the machine parts AB1234 and AB1235",
    "A washing machine and its manual",
    "Mr Smith and Mr Smyth met the major",
    "The mayor of Zürich speaks",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    with SearchIndex.create(tmp_path_factory.mktemp("typos") / "index") as index:
        index.add(TEXTS)
        yield index


def corrected(index, query, mode="words", **options):
    return [(hit.id, hit.corrected) for hit in index.search(query, mode=mode, **options)]


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
def test_the_nearest_word_is_found_and_the_hit_says_so(index, typed, written, ids):
    found = corrected(index, f"the {typed}")
    assert {id for id, _ in found} == ids
    assert all(words == {typed: written} for _, words in found)
    assert corrected(index, typed, "hybrid")[0][1] == {typed: written}
    hit = index.search(typed, mode="words")[0]
    assert "**" in hit.as_dict(typed)["snippet"]


def test_a_corrected_query_means_what_it_was_meant_to(index):
    typed = index.search("a machne that washes clothes", 1, mode="hybrid")[0]
    right = index.search("a machine that washes clothes", 1, mode="hybrid")[0]
    assert (typed.id, typed.score, typed.relevance) == (right.id, right.score, right.relevance)


def test_what_stays_as_typed(index):
    assert corrected(index, "Smyth") == [(3, None)]  # one edit from "Smith"
    assert corrected(index, "mayor") == [(4, None)]  # one edit from "major", but the index has it
    assert corrected(index, "AB1236") == corrected(index, "MAYRO") == []
    assert corrected(index, "mayo") == []  # a word of the language
    assert corrected(index, '"washing machine" manaul') == [(2, {"manaul": "manual"})]
    assert corrected(index, "mxxhine") == []  # two edits of a short word
    assert all(words is None for _, words in corrected(index, "machne", "dense"))


def test_a_word_that_the_index_gains_is_no_longer_corrected(tmp_path):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(["a machine"])
        assert corrected(index, "machne") == [(0, {"machne": "machine"})]
        index.add(["Machne Software"])
        assert corrected(index, "machne") == [(1, None)]


def test_fused_queries_share_their_corrections(index):
    found = corrected(index, ["machne", "wahsing"], fuse=True)
    assert found[0] == (2, {"machne": "machine", "wahsing": "washing"})


def test_only_whole_words_are_respelled():
    assert respelled("machne machnes", {"machne": "machine"}) == "machine machnes"
    assert respelled("as typed", None) == "as typed"
