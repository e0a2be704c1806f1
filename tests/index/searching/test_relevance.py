"""Relevance: its definition, its calibration for any passages, and how an index keeps it."""

from __future__ import annotations

import json
import math
import warnings
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import ctx_embed
from ctx_embed import InputError, SearchIndex
from ctx_embed.index.ann.vector_index import VectorIndex
from ctx_embed.index.building.merging import merge_indexes
from ctx_embed.index.searching.relevance import (
    DEFAULT_RELEVANCE,
    Gumbel,
    KeptUnanswered,
    Stream,
    Unanswered,
    unanswered_questions,
    word_shares,
)
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.manifest import DOCUMENTS

PASSAGES = [
    "The printer XJ-4471 jams when the paper is damp.",
    "Prices rise faster than wages, and savings lose their value.",
    "Remove the cover and clean the rollers with a dry cloth.",
    "The cat sat on the mat and purred.",
]


@pytest.fixture(scope="module")
def embedder():
    return ctx_embed.load()


@pytest.fixture
def index(tmp_path):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(PASSAGES)
        yield index


def tuned(index):
    with closing(DocumentStore(index.path / DOCUMENTS)) as store:
        return json.loads(store.state().tuned)


def test_relevance_by_hand():
    unanswered = Unanswered(far=Gumbel(0.2, 0.1), near=Gumbel(0.4, 0.2))
    assert unanswered.far.below(0.2) == pytest.approx(math.exp(-1))
    assert unanswered.far.below(0.3) == pytest.approx(math.exp(-math.exp(-1)))
    assert unanswered.relevance(0.4) == pytest.approx((math.exp(-math.exp(-2)) + math.exp(-1)) / 2)
    # All words of the query count as two scales.
    assert unanswered.near.below(0.4, 2) == unanswered.near.below(0.8)
    assert unanswered.relevance(0.4, share=1.0) == pytest.approx(
        (math.exp(-math.exp(-4)) + math.exp(-math.exp(-2))) / 2
    )
    assert (unanswered.relevance(-1e9), unanswered.relevance(1e9)) == (0.0, 1.0)


def test_the_distribution_is_that_of_gumbel_samples():
    samples = np.random.default_rng(0).gumbel(0.25, 0.08, 200_000)
    near = 0.5 * samples + 0.3
    unanswered = Unanswered.of(samples, near)
    assert unanswered.far == pytest.approx((0.25, 0.08), abs=0.002)
    assert unanswered.near == pytest.approx((0.425, 0.04), abs=0.002)
    # Too few near questions: they are taken to score higher by what is usual.
    assert Unanswered.of(samples, near[:5]).near == pytest.approx((0.41, 0.08), abs=0.003)
    # Passages that repeat each other answer each other's questions.
    assert Unanswered.of(samples, near + 1).near == pytest.approx((0.49, 0.04), abs=0.003)
    assert Unanswered.of(np.full(256, 0.5)) is None
    assert Unanswered.of(samples[:5]) is None


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
        assert hits[0].text == PASSAGES[place]
        assert hits[0].relevance > DEFAULT_RELEVANCE
        assert index.search(query, 4, min_relevance=DEFAULT_RELEVANCE) == [
            hit for hit in hits if hit.relevance >= DEFAULT_RELEVANCE
        ]
    for mode in ("dense", "hybrid", "words"):
        assert index.search("Who was the first king of Denmark?", min_relevance=DEFAULT_RELEVANCE, mode=mode) == []


def test_a_stream_of_passages_agrees_with_an_index(index, embedder):
    seen = Stream(unanswered_questions(embedder.encode_query))
    assert seen.unanswered() is None
    for passage in PASSAGES:
        seen.add(embedder.encode_document([passage]))
    (hit,) = index.search("inflation", 1)
    share = word_shares("inflation", [hit.text])[0]
    assert seen.unanswered().relevance(hit.score, share) == pytest.approx(hit.relevance, abs=1e-4)


def test_hits_of_vectors_and_of_unknown_tokens_have_no_relevance(index, embedder):
    (hit,) = index.search(embedder.encode_query(["inflation"])[0], 1)
    assert hit.relevance is None
    assert "relevance" not in hit.as_dict()
    assert index.search(like=0, k=1)[0].relevance is None
    index.add(["ᚠᚢᚦ ᚨᚱᚲ"])
    (hit,) = index.search("ᚠᚢᚦ", min_relevance=1)
    assert (hit.relevance, hit.text) == (None, "ᚠᚢᚦ ᚨᚱᚲ")


def test_fused_queries_share_their_relevance(index):
    queries = ["inflation", "savings and wages"]
    best = index.search(queries, 1, fuse=True)[0]
    assert best.relevance >= max(hits[0].relevance for hits in index.search(queries, 1))


def test_it_stays_the_same_when_opened_again(index, embedder):
    before = [hit.relevance for hit in index.search("inflation")]
    assert index.describe()["tuned"] == {}
    with SearchIndex.open(index.path, embedder) as other:
        assert [hit.relevance for hit in other.search("inflation")] == pytest.approx(before, abs=1e-6)


def test_an_index_without_it_computes_it_in_memory(index, embedder):
    before = [hit.relevance for hit in index.search("inflation")]
    with closing(DocumentStore(index.path / DOCUMENTS)) as store, store.writing():
        store.store_tuned("{}")
    with SearchIndex.open(index.path, embedder) as other:
        assert [hit.relevance for hit in other.search("inflation")] == pytest.approx(before, abs=1e-6)
    # Reading writes nothing; the next change stores it.
    assert tuned(index) == {}
    index.update_metadata(0, {"seen": True})
    assert tuned(index)["unanswered"]["rows"] == 4


def test_near_questions_are_not_answered_by_their_own_document(index):
    texts = [f"Report {number}. {PASSAGES[number % 4]} {PASSAGES[(number + number // 4) % 4]}" for number in range(40)]
    index.add(texts + texts)
    found = []
    for most in (0, 1_000):
        kept = KeptUnanswered(index.embedder.queries, most)
        with closing(DocumentStore(index.path / DOCUMENTS)) as store, store.reading():
            vectors = VectorIndex.of(IndexFolder(index.path))
            snapshot = replace(store.snapshot(), tuned="{}")
            found.append(kept.of(vectors, store, snapshot))
    # Searching finds what comparing does.
    assert found[0].far == pytest.approx(found[1].far, abs=1e-5)
    assert found[0].near == pytest.approx(found[1].near, abs=1e-5)
    # The second copy of each report would answer with a cosine near 1.
    assert found[0].near.location < 0.9


def test_unknown_tokens_of_its_own_questions_warn_of_nothing(index):
    texts = [f"{'ᚠᚢᚦ ' * 12}The report {number} is here." for number in range(20)]
    index.add(texts)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        index.delete(0)
        index.upsert(texts, [f"copy {number}" for number in range(20)])
    assert tuned(index)["unanswered"]["rows"] == 44
    assert [str(warning.message) for warning in seen] == []


def test_it_follows_changes(index, tmp_path):
    first = tuned(index)["unanswered"]
    index.add([f"Chapter {number}: {PASSAGES[number % 4]}" for number in range(40)])
    more = tuned(index)["unanswered"]
    assert (more["rows"], more["documents"]) == (44, 44)
    # The best of more passages scores higher.
    assert more["far"][0] > first["far"][0]
    index.add(["A single passage changes little."])
    assert tuned(index)["unanswered"] == more
    index.delete(index.ids()[4:])
    fewer = tuned(index)["unanswered"]
    assert fewer["documents"] == 4
    assert fewer["far"] == pytest.approx(first["far"], abs=1e-6)
    index.compact()
    assert tuned(index)["unanswered"] == fewer | {"rows": 4}
    merge_indexes([index.path, _copy(index, tmp_path)], tmp_path / "merged")
    with SearchIndex.open(tmp_path / "merged") as merged:
        assert tuned(merged)["unanswered"]["rows"] == 8


def _copy(index, folder):
    with SearchIndex.create(folder / "copy") as copy:
        copy.add(PASSAGES, [f"copy {number}" for number in range(4)])
    return folder / "copy"


def test_upserts_and_deletions_without_a_model_keep_it_usable(index):
    with SearchIndex.open(index.path) as other:
        other.delete([1, 2])
        # The model was not loaded only to delete.
        assert other._embedder is None
        assert other.search("why does my printer jam?", min_relevance=DEFAULT_RELEVANCE)[0].id == 0
    index.upsert([PASSAGES[1]] * 4, [0, 1, 2, 3])
    assert tuned(index)["unanswered"]["documents"] == 4


def test_a_new_model_gives_a_new_distribution(index, hash_model):
    before = tuned(index)["unanswered"]
    index.reembed(hash_model)
    assert tuned(index)["unanswered"] != before


@pytest.mark.parametrize("value", [-0.1, 1.5, "high", True, math.nan])
def test_a_wrong_relevance_is_one_line(index, value):
    with pytest.raises(InputError, match=r"^min_relevance must be a number from 0 to 1, got "):
        index.search("inflation", min_relevance=value)


def test_min_relevance_needs_texts(index):
    with pytest.raises(InputError, match=r"^min_relevance needs queries that are texts; use threshold"):
        index.search(like=0, min_relevance=0.9)


def test_pages_of_relevant_hits_do_not_overlap_or_leave_out(index):
    texts = [hit.text for hit in index.search("printer paper", 4) if hit.relevance >= 0.5]
    pages = [index.search("printer paper", 1, offset=place, min_relevance=0.5) for place in range(4)]
    assert [hit.text for page in pages for hit in page] == texts
