"""The searches of an index, with the model that ships."""

import inspect
import json
import random
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.deadlines import within
from ctx_embed.errors import LateError
from ctx_embed.index import search as searching
from ctx_embed.index.database import Database
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.hits import SEARCHED_CHARACTERS, densest, highlights, snippet
from ctx_embed.index.nearest import Nearest
from ctx_embed.index.query import Options
from ctx_embed.index.search import Ranking, maximal_marginal_relevance, reciprocal_rank_fusion
from ctx_embed.index.words import FUNCTION_WORDS, Bm25, tokens_of
from ctx_embed.model import Model
from ctx_embed.text.normalisation import words as words_of
from tests.helpers.errors import error
from tests.index.support.cross_encoder import save_cross_encoder
from tests.index.support.hash_model import HashModel, hash_vectors
from tests.index.support.stored import ids

ARTICLES = Path(__file__).parents[2] / "docs" / "samples" / "articles.jsonl"
TEXTS = [
    "The central bank raised its interest rate. Savers get more for their money. Loans cost more.",
    "The boat lay on the bank of the river. Fish swam in the clear water. The angler waited.",
    "A bank lends money to a company. The company pays interest every year.",
]


@pytest.fixture(scope="module")
def articles(tmp_path_factory):
    rows = [json.loads(line) for line in ARTICLES.read_text(encoding="utf-8").splitlines()]
    with SearchIndex.create(tmp_path_factory.mktemp("articles") / "index") as index:
        metadata = [{name: row[name] for name in ("year", "section")} for row in rows]
        index.add([row["text"] for row in rows], [row["id"] for row in rows], metadata)
        yield index


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """An index of three documents cut into eight sentences."""
    metadata = [{"source": "a", "note": None}, {"source": "b"}, {"source": "a"}]
    with SearchIndex.create(tmp_path_factory.mktemp("cut") / "index", chunk="sentences") as index:
        index.add(TEXTS, ["rates", "river", "lending"], metadata)
        yield index


def test_a_vector_finds_what_its_text_finds_without_the_model(articles, cut):
    texts = ["a criminal attack", "a football match"]
    vectors = articles.embedder.queries(texts)
    expected = articles.search(texts, 5, mode="dense")
    for query in (vectors, 3 * vectors, vectors.tolist(), list(vectors.astype(np.float64))):
        found = articles.search(query, 5)
        assert [ids(hits) for hits in found] == [ids(hits) for hits in expected]
        assert articles.search(query[0], 5) == found[0]
        assert [hit.score for hit in found[0]] == pytest.approx([hit.score for hit in expected[0]], abs=1e-6)
    with SearchIndex.open(cut.path) as other:
        assert len(other.search(vectors[0])) == 8
        assert other._embedder is None


def test_similar_documents_leave_the_document_out_and_excluded_examples_push_away(articles, cut):
    text = articles.get("a23").text
    assert ids(articles.search(like="a23", k=3)) == ids(articles.search(text, 4, mode="dense"))[1:]
    several = articles.search(like=["a23", "a12"], k=30)
    assert len(several) == 22
    assert not {"a23", "a12"} & set(ids(several))
    for mode in ("words", "hybrid"):
        assert "a23" not in ids(articles.search(like="a23", mode=mode, k=30))
    # The passages of a document count together.
    hits = cut.search(like="rates", k=10)
    assert set(ids(hits)) == {"river", "lending"}
    assert (hits[0].id, len(hits)) == ("lending", 5)
    text = articles.get("a13").text
    query, avoided = articles.embedder.queries(["an injured athlete", text])
    moved = query - searching.EXCLUDED_WEIGHT * avoided
    hits = articles.search("an injured athlete", 24, exclude=text, mode="dense")
    vectors = articles.embedder.documents([hit.text for hit in hits])
    assert [hit.score for hit in hits] == pytest.approx(vectors @ moved / np.linalg.norm(moved), abs=1e-5)
    by_id = articles.search("an injured athlete", 24, exclude="a13", mode="dense")
    assert ids(by_id) == [name for name in ids(hits) if name != "a13"]
    assert len(articles.search("an injured athlete", 24, exclude=["a13", "computers"], mode="hybrid")) == 23
    assert len(articles.search(like="a12", exclude=("a13",), k=24)) == 22


def test_several_queries_become_one_ranking(articles):
    queries = ["a criminal attack", "a football match", "stars and planets"]
    hits = articles.search(queries, 6, fuse=True, mode="dense")
    by_vectors = articles.search(articles.embedder.queries(queries), 6, fuse=True, mode="dense")
    assert by_vectors == [replace(hit, relevance=None) for hit in hits]
    lists = articles.search(queries, 24, mode="dense")
    sums, best = Counter(), {}
    for found in lists:
        for rank, hit in enumerate(found, 1):
            sums[hit.id] += 1 / (60 + rank)
            best[hit.id] = max(best.get(hit.id, -1), hit.score)
    expected = [(name, pytest.approx(fused), best[name]) for name, fused in sums.most_common(6)]
    assert [(hit.id, hit.fused, hit.score) for hit in hits] == expected
    assert articles.search("a criminal attack", 3, fuse=True, mode="dense")[0].id == "a23"


def test_rankings_are_fused_and_made_various_by_hand():
    def ranking(rows, cosines):
        return Ranking(np.array(rows), np.array(cosines), np.array(cosines), np.zeros(2), True)

    fused = reciprocal_rank_fusion([ranking([7, 3], [0.9, 0.8]), ranking([3, 5], [0.7, 0.1])], 2)
    assert (fused.rows.tolist(), fused.cosines.tolist()) == ([3, 7, 5], [0.8, 0.9, 0.1])
    assert fused.values.tolist() == [1 / 62 + 1 / 61, 1 / 61, 1 / 62]
    vectors = np.array([[1, 0], [0.98, 0.199], [0, 1]], np.float32)
    relevance = np.array([0.9, 0.85, 0.5])
    assert maximal_marginal_relevance(relevance, vectors, 3, 1.0) == [0, 1, 2]
    assert maximal_marginal_relevance(relevance, vectors, 3, 0.5) == [0, 2, 1]
    assert maximal_marginal_relevance(relevance, vectors, 2, 0.0) == [0, 2]
    assert maximal_marginal_relevance(relevance, vectors, 9, 0.95) == [0, 1, 2]
    assert maximal_marginal_relevance(np.empty(0), np.empty((0, 2), np.float32), 3, 0.5) == []


def test_groups_have_their_best_passage_and_hits_the_text_around_them(cut):
    query = "interest on money"
    plain = cut.search(query, 8, mode="dense")
    assert len(plain) == 8
    groups = cut.search(query, 8, group="id", mode="dense")
    assert groups == [plain[ids(plain).index(name)] for name in dict.fromkeys(ids(plain))]
    by_source = cut.search(query, 8, group="source", mode="dense")
    assert [hit.metadata["source"] for hit in by_source] == ["a", "b"]
    assert sorted(ids(cut.search(query, 8, group="note", mode="dense"))) == ["lending", "rates", "river"]
    assert cut.search(query, 1, group="id", offset=1, mode="dense") == groups[1:2]
    assert len(cut.search("interest", 8, group="id", mode="hybrid")) == 3
    (hit,) = cut.search("the angler", 1, context=1)
    assert (hit.text, hit.context) == ("The angler waited.", "Fish swam in the clear water. The angler waited.")
    assert cut.search("fish", 1, context=1)[0].context == TEXTS[1]
    assert cut.search("fish", 1)[0].context is None


def test_groups_are_found_below_many_passages_of_one_document(index, monkeypatch):
    monkeypatch.setattr(searching, "DEEPER", 2)
    index.add(["same"] * 50 + ["other"] * 50 + ["third"], metadata=[{"n": n // 50} for n in range(101)])
    first, *others = [hit.metadata["n"] for hit in index.search("same", 3, group="n")]
    assert (first, set(others)) == (0, {1, 2})
    assert [hit.metadata["n"] for hit in index.search("same", 3, group="n", threshold=0.99)] == [0]


def test_phrases_and_quoted_words_must_occur(articles, cut, monkeypatch):
    assert ids(articles.search('"asked for a ransom" football', mode="words")) == ["a23"]
    assert len(articles.search("asked for a ransom prices", mode="words")) > 1
    # A phrase or a word that no passage has is mere words.
    for quoted in ('"ransom a for" football', '"zebra" ransom'):
        plain = quoted.replace('"', "")
        assert ids(articles.search(quoted, mode="words")) == ids(articles.search(plain, mode="words")) != []
    phrase, plain = articles.search(['"asked for a ransom"', "football"], 5, mode="hybrid")
    assert (ids(phrase), len(plain)) == (["a23"], 5)
    assert len(articles.search('"ransom a for"', 5, mode="hybrid")) == 5
    assert ids(articles.search('"asked for" "a ransom"', mode="hybrid", where="year = 2021")) == ["a23"]
    assert ids(articles.search('"asked for" "a ransom"', mode="hybrid", where="year = 2022")) == []
    # Prose that quotes, in more words than anybody types, requires nothing.
    prose = ['a "ransom" for the prices ' * times for times in (6, 7)]
    few, many = ({hit.id for hit in articles.search(text, 99, mode="words")} for text in prose)
    assert few == {"a23"} < many
    for mode in ("hybrid", "words"):
        assert ids(articles.search("prices \u201cRANSOM\u201d", mode=mode)) == ["a23"]
        having = {name for name in articles.ids() if {"and", "from"} <= {*words_of(articles[name].text.lower())}}
        assert {*ids(articles.search('"and" "from" prices', 99, mode=mode))} == having
    # A dense query reads the marks as any other text.
    assert len(articles.search('"ransom a for"', 5, mode="dense")) == 5
    # An inch, an apostrophe and a lone mark begin no phrase.
    for query in ('a 5" ransom and a 6" hospital', 'ransom "', '" ransom', '""', '" "'):
        assert ("a23" in ids(articles.search(query, mode="words"))) == ("ransom" in query)
    assert cut.search(like="river", mode="words") == cut.search(like=["river"], mode="words")
    # Common words beside a phrase may be missing in a large index.
    monkeypatch.setattr("ctx_embed.index.words.LARGE", 3)
    with closing(IndexFolder(articles.path)) as folder:
        (row,) = folder.read(lambda view: Bm25(view).best('"asked for a ransom" zebra', 10, None))
    assert ids(articles.search('"asked for a ransom" zebra', mode="words")) == [articles.ids()[row]] == ["a23"]


@pytest.mark.parametrize("mode", ["hybrid", "words"])
def test_function_words_in_capitals_count(tmp_path, mode, monkeypatch):
    words = sorted(word for word in FUNCTION_WORDS if len(word) > 1)
    assert {"it", "us", "who", "or"} <= set(words)
    with SearchIndex.create(tmp_path / "index") as index:
        fillers = [f"Support of group {number}." for number in range(9)]
        index.add([*fillers, *(f"Support of group 9, {word.upper()}." for word in words)], [*range(9), *words])

        def by_words(query):
            return {hit.id: round(hit.fused or hit.score, 6) for hit in index.search(query, k=len(index), mode=mode)}

        monkeypatch.setattr("ctx_embed.index.words.COMMON_PART", 1e-9)
        for large in (20_000, 3):
            monkeypatch.setattr("ctx_embed.index.words.LARGE", large)
            for word in words:
                # Two of them may have one stem: it and its.
                first = next(iter(by_words(f"{word.upper()} support")))
                assert tokens_of([first]) == tokens_of([word])
        # Without capitals, in capitals throughout, or alone, a function word is what it was.
        assert by_words("it support") == by_words("IT SUPPORT") == by_words("It support")
        for query in ("it", "IT"):
            assert ids(index.search(query, k=1, mode=mode)) == ["it"]


def test_what_cannot_be_searched_for_is_one_line(articles):
    for arguments, message in (
        ({"modes": "dense"}, "unknown option 'modes': did you mean 'mode'"),
        ({"query": None, "like": "a23", "min_relevance": 0.9}, "min_relevance needs queries that are texts; use"),
        ({"group": "nosuch"}, "group: no document has the field 'nosuch'; known are id, section, year"),
        ({"query": 5}, "the query must be a text, a vector or a list of texts or vectors, got an int"),
        ({"query": ["a", 5]}, "query 2 must be a string, got an int"),
        ({"group": 5}, "group must be 'id' or a metadata field, got an int"),
        ({"exclude": 5}, "exclude: no document has the id 5"),
        ({"exclude": "x", "mode": "words"}, "exclude needs mode 'dense' or 'hybrid', got 'words'"),
        ({"like": "a23"}, "give search either a query or like, not both"),
        ({"query": None, "like": []}, "like must have at least one id, got an empty list"),
        ({"query": [0.5, 1.0]}, "query 1 must have shape (320,), got (2,)"),
        ({"query": np.ones((2, 2, 8))}, "query 1 must be a string, got a ndarray"),
        ({"query": "x" * 1_000_001}, "the query must have at most 1,000,000 characters, got 1,000,001"),
        ({"query": None, "like": ["x"] * 1_001}, "like must have at most 1,000 ids, got 1,001"),
        ({"exclude": ["x"] * 10_001}, "exclude must have at most 10,000 texts and ids, got 10,001"),
        ({"exclude": ["x" * 500_001] * 2}, "exclude must have at most 1,000,000 characters, got 1,000,002"),
        ({"query": np.ones(320), "mode": "hybrid"}, "mode 'hybrid' needs texts; search with vectors in mode 'dense'"),
        ({"rerank": "./nowhere"}, "./nowhere: no such model folder"),
        ({"rerank": 5}, "rerank must be a model or the name of one, got int"),
        ({"query": np.ones(320), "rerank": "default"}, "rerank needs texts; a reranker cannot read vectors"),
    ):
        said = error(articles.search, **{"query": "a text", **arguments})
        assert message in said
        assert "\n" not in said


def test_hybrid_is_the_default_for_texts_and_dense_for_vectors(index):
    query = index.embedder.queries(["cat dog"])[0]
    near = query + 0.1 * np.eye(len(query))[0]
    index.add(["a cat among many other animals", "cat dog"], ["by meaning", "by words"], embeddings=[query, near])
    assert ids(index.search("cat dog", mode="dense")) == ["by meaning", "by words"]
    # Where both are best once, the better one by words comes first.
    assert ids(index.search("cat dog", mode="hybrid")) == ["by words", "by meaning"]
    assert index.search("cat dog") == index.search("cat dog", mode="hybrid")
    for asked in ({"query": query}, {"like": "by words"}):
        assert index.search(**asked) == index.search(**asked, mode="dense")
    # Quotations in a document are no phrases of those like it.
    index.add(["the cow said “so be it” and slept", "a cow slept", 'it "is so" said a pig'], [0, 1, 2])
    assert ids(index.search(like=0, mode="words")) == [1, 2]


def test_options_are_declared_once():
    declared = get_type_hints(Options)
    parameters = inspect.signature(SearchIndex.search).parameters
    assert set(parameters) - {"self", "query", "like"} == set(declared)
    assert all(parameters[name].default == getattr(Options, name) for name in declared)


def test_hits_are_short_and_have_their_documents_on_request(tmp_path):
    text = "First line.\nPrices rise.\n" + "Rain fell all night. " * 40
    with SearchIndex.create(tmp_path / "index", chunk="sentences") as index:
        index.add([text], ["book"], [{"source": "book.txt", "line": 7, "page": 2}])
        (hit,) = index.search("inflation", 1, where="line = 7", mode="dense")
        assert (hit.text.strip(), hit.line, hit.page, hit.document) == ("Prices rise.", 8, 2, None)
        assert text[hit.start : hit.stop] == hit.text
        assert index.source(hit).label == "book.txt:8"
        found = index.search("inflation", 20, document=True, mode="dense")
        assert {hit.document for hit in found} == {text}
        assert found[0].as_dict()["document"] == text
        assert "document" not in hit.as_dict()
        assert repr(hit).startswith(f"Hit('book', {hit.score:.4f}, 'Prices rise.")
        assert len(repr(hit)) < 120
        assert repr(found).endswith(f" ... {len(found) - 10} more]")
        assert len(repr(found)) < 1500


@pytest.fixture(scope="module")
def sentences_index(tmp_path_factory):
    generator = random.Random(0)
    words = [f"word{number}" for number in range(60)]
    with SearchIndex.create(tmp_path_factory.mktemp("pages") / "index", HashModel()) as index:
        texts = [" ".join(generator.choices(words, k=generator.randint(2, 9))) for _ in range(1500)]
        index.add(texts, metadata=[{"n": number % 40} for number in range(1500)])
        yield index


@pytest.mark.parametrize("mode", ["hybrid", "dense", "words"])
@pytest.mark.parametrize("options", [{}, {"threshold": 0.2, "where": "n < 30"}, {"group": "n"}])
def test_pages_agree(sentences_index, mode, options):
    """Hits are the same whether they are asked for at once or in pages."""

    def search(query, k, **more):
        return ids(sentences_index.search(query, k, mode=mode, **options, **more))

    for query in ("word1 word2", "word5", '"word7 word8" word9'):
        every = search(query, 400)
        assert [name for at in range(0, 400, 40) for name in search(query, 40, offset=at)] == every
        assert len(set(every)) == len(every)
    queries = ["word1", "word2"]
    parts = [name for at in range(0, 300, 50) for name in search(queries, 50, fuse=True, offset=at)]
    assert parts == search(queries, 300, fuse=True)
    assert search("word1", 5, offset=10_000) == []
    if not options:
        # The marginal relevance of relevance alone keeps the order.
        assert search("word3 word4", 30, mmr=1.0) == search("word3 word4", 30)
        assert search("word3 word4", 2, mmr=0.3, offset=1) == search("word3 word4", 3, mmr=0.3)[1:]
        # A threshold is a cosine, and makes room for hits that reach it.
        for query in ("word1 word2", "word5", "word11 word30"):
            every = [hit for hit in sentences_index.search(query, 1500, mode=mode) if hit.score >= 0.6]
            assert search(query, 3, threshold=0.6) == ids(every[:3])


def test_a_search_ends_where_cosines_fall_below_the_threshold(sentences_index, monkeypatch):
    depths, best = [], Nearest.best
    monkeypatch.setattr(Nearest, "best", lambda *given: depths.append(given[2]) or best(*given))
    for mode in ("hybrid", "dense"):
        assert sentences_index.search("word1 word2", mode=mode, threshold=1.0) == []
    assert depths == [searching.DEPTH, searching.DENSE_DEPTH]


@pytest.fixture(scope="module")
def abstracts(tmp_path_factory):
    """An index of 260 short texts, 60 of which occur twice, and its folder."""
    rows = [json.loads(line)["text"].split() for line in ARTICLES.read_text(encoding="utf-8").splitlines()]
    generator = random.Random(1)
    texts = [" ".join(generator.choices(generator.choice(rows), k=generator.randint(4, 40))) for _ in range(200)]
    folder = tmp_path_factory.mktemp("late") / "index"
    with SearchIndex.create(folder) as index:
        index.add([*texts, *texts[:120:2]], metadata=[{"n": number % 9} for number in range(260)])
        yield index, folder


QUESTIONS = ("a storm on the coast", "who won the election", '"of the" city', "word of the year is hygge", "")


@pytest.mark.parametrize("options", [{}, {"where": "n < 5"}, {"exclude": "sports"}, {"threshold": 0.1}, {"like": [7]}])
def test_a_second_look_orders_the_best_by_three_shares(abstracts, options):
    index, _ = abstracts
    for question in [None] if "like" in options else QUESTIONS:
        search = partial(index.search, question, mode="hybrid", **options)
        plain, hits = search(k=260, late=False), search(k=260)
        assert {hit.id for hit in plain} == {hit.id for hit in hits}
        assert hits == search(k=260, late=True)
        if not any(hit.late for hit in hits):
            assert plain == hits
            continue
        # Without a threshold, the first ones are those that were looked at, with those tied with the last of them.
        looked = {hit.id for hit in hits if hit.late is not None}
        if "threshold" not in options:
            last = plain[min(searching.LOOKED_AT, len(plain)) - 1].fused
            assert looked == {hit.id for hit in plain if hit.fused >= last}
            fused, most = {hit.id: hit.fused for hit in plain}, max(hit.late or 0 for hit in hits)
            expected = [(2 * fused[hit.id] + (hit.late or 0) / most) / 3 for hit in hits]
            assert [hit.fused for hit in hits] == pytest.approx(expected, abs=1e-9)
        # Equal texts have equal scores, and the one that was added first comes first.
        scores = {}
        for hit in hits:
            assert scores.setdefault(hit.text, (hit.late, hit.fused)) == (hit.late, hit.fused) or hit.late is None
        assert [hit for at in range(0, 260, 13) for hit in search(13, offset=at)] == hits
        assert search(30, mmr=1.0) == hits[:30]
        firsts = {hit.metadata["n"]: hit.id for hit in reversed(hits)}
        assert set(ids(search(9, group="n"))) == set(firsts.values())
        if "like" not in options:
            relevant = [hit for hit in hits if hit.relevance is None or hit.relevance >= 0.4]
            assert search(260, min_relevance=0.4) == relevant


def test_what_is_not_relevant_enough_is_read_in_ever_larger_parts(abstracts, monkeypatch):
    sizes, fetch = [], Database.fetch
    monkeypatch.setattr(Database, "fetch", lambda self, rows: sizes.append(len(rows)) or fetch(self, rows))
    assert abstracts[0].search(QUESTIONS[0], 1, mode="dense", min_relevance=1.0) == []
    assert sum(sizes) == 260
    assert len(sizes) < 20


def test_a_reranker_takes_the_place_of_the_cosines_alone(abstracts):
    index, _ = abstracts
    for question in QUESTIONS[:3]:
        hits = index.search(question, 10)
        again = index.search(question, 10, rerank=index.embedder.backend, candidates=200)
        assert ids(again) == ids(hits)
        assert [hit.reranked for hit in again] == pytest.approx([hit.fused for hit in hits], abs=1e-6)
        without = index.search(question, 10, rerank=index.embedder.backend, candidates=200, late=False)
        assert [hit.reranked for hit in again] != [hit.reranked for hit in without]


def test_second_looks_are_for_hybrid_searches_with_a_model_of_the_package(abstracts, index):
    for mode in ("dense", "words"):
        hits = abstracts[0].search("lighthouse", mode=mode)
        assert hits == abstracts[0].search("lighthouse", mode=mode, late=False)
        assert "late" not in hits[0].as_dict()
    assert 0 < abstracts[0].search("storm on the coast")[0].as_dict()["late"] <= 1
    index.add(TEXTS)
    assert index.search("bank", late=False) == index.search("bank")
    many = abstracts[0].search(["storm", "election"])
    assert many == [abstracts[0].search(query) for query in ("storm", "election")]
    assert abstracts[0].search(["storm", "election"], 5, fuse=True)[0].late is None
    sums = Counter()
    for query in QUESTIONS[:2]:
        for rank, hit in enumerate(abstracts[0].search(query, searching.DEPTH), 1):
            sums[hit.id] += 1 / (60 + rank)
    hits = abstracts[0].search(QUESTIONS[:2], 20, fuse=True)
    assert [hit.fused for hit in hits] == pytest.approx(sorted(sums.values(), reverse=True)[:20])
    assert [hit.fused for hit in hits] == pytest.approx([sums[hit.id] for hit in hits])


def test_torch_looks_again_as_numpy_does(abstracts, shipped_model):
    index, folder = abstracts
    hits = index.search(QUESTIONS[0], 30)
    with SearchIndex.open(folder, shipped_model) as on_torch:
        others = on_torch.search(QUESTIONS[0], 30)
    assert [hit.late for hit in others] == pytest.approx([hit.late for hit in hits], abs=1e-4)
    assert ids(others)[:5] == ids(hits)[:5]


def test_a_search_ends_at_its_deadline_and_leaves_the_index_as_it_was(articles):
    for mode in ("dense", "words", "hybrid"):
        before = articles.search("a bank", mode=mode)
        with pytest.raises(LateError, match=r"took longer than 1e-09 s; ask for less, or give it a later deadline"):
            articles.search("a bank", mode=mode, deadline=1e-9)
        assert articles.search("a bank", mode=mode, deadline=60) == before
    store = articles._folder
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    late = pytest.raises(LateError, match=r"took longer than 0.01 s")
    with late, within(0.01), store.reading(), store.reporting_errors():
        store.connection.execute(endless).fetchall()
    assert len(articles.search("a bank", 3)) == 3


def test_the_densest_part_of_a_long_text_has_the_most_words_and_no_other_is_read(monkeypatch):
    filler = "lorem ipsum " * 5_000
    text = f"{filler}hammer {filler}The hammer, the anvil and the tongs.{filler}anvil"
    ((start, stop),) = densest(["hammers", "anvil", "tongs"], [text])
    assert "The hammer, the anvil and the tongs." in text[start:stop]
    assert stop - start <= SEARCHED_CHARACTERS
    assert densest(["hammer"], ["a hammer", filler[:300]]) == [(0, 8), (0, 300)]
    assert all(stop - start < 800 for start, stop in densest(["hammer"], [text] * 1_000))
    read = []
    monkeypatch.setattr("ctx_embed.index.hits.indexed", lambda text: read.append(len(text)) or text)
    assert "**hammer**, the **anvil**" in snippet("hammer anvil tongs", text)
    assert sum(read) <= SEARCHED_CHARACTERS
    highlights([text], ["hammer"], np.ones((1, 1)), lambda parts: np.ones((len(parts), 1)))
    assert SEARCHED_CHARACTERS < sum(read) <= 2 * SEARCHED_CHARACTERS


def test_the_largest_searches_are_answered_and_larger_ones_refused(articles):
    vectors = hash_vectors([f"text {number}" for number in range(3000)])
    relevance = np.linspace(1, 0, 3000)
    start = time.process_time()
    order = maximal_marginal_relevance(relevance, vectors, 3000, 0.5)
    assert time.process_time() - start < 4
    assert sorted(order) == list(range(3000))
    with pytest.raises(InputError, match="candidates must be at most 4096 with mmr, got 5000"):
        Options(mmr=0.5, candidates=5000)
    texts = [f"text {number} of a bank" for number in range(10_000)]
    assert len(articles.search("a bank", exclude=texts)) == 10
    assert len(articles.search(" ".join(texts[:500]))) == 10


@pytest.mark.filterwarnings("ignore::ctx_embed.errors.UnknownTextsWarning")
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_text_without_known_tokens_is_no_dense_hit_and_such_a_query_finds_nothing_by_meaning(tmp_path, dtype):
    unknown = ["日本語", "☃☃☃", ""]
    partly_read = SearchIndex.create(tmp_path / "index", dtype=dtype)
    partly_read.add(["Prices rise faster than wages.", *unknown, "A bank raised its rates.", "Rain fell all night."])
    search = partial(partly_read.search, mode="dense")
    varied = search("inflation", mmr=0.5, group="id", exclude="日本語")
    for hits in (search("inflation"), search(["inflation", "weather"], fuse=True), varied):
        assert sorted(ids(hits)) == [0, 4, 5]
    assert sorted(ids(partly_read.search(like=0))) == [4, 5]
    assert partly_read.search(like=1) == partly_read.search(like=[1, 2], exclude=4, mmr=0.1) == []
    for query in unknown:
        for options in ({}, {"exclude": "A bank raised its rates."}, {"mmr": 0.5}, {"threshold": -1}, {"exclude": 4}):
            assert search(query, **options) == []
        by_words = [1] if query == "日本語" else []
        assert ids(partly_read.search(query)) == ids(partly_read.search(query, mode="words")) == by_words
        assert [ids(hits) for hits in search([query, "inflation"], 1)] == [[], [0]]
    partly_read.close()


CANDIDATES = [
    "Hackers locked the hospital's computers.",
    "Prices rise faster than wages.",
    "A bank raised its rates.",
    "The striker scored two goals.",
    "Bees feed on a single crop.",
    "Rain fell all night on the town.",
]
QUERY = "a football match with many goals"


@pytest.fixture
def texts(index):
    index.add(CANDIDATES)
    return index


def test_the_best_candidates_are_in_the_order_of_the_rerankers_cosines(texts):
    plain = texts.search(QUERY, 6, mode="dense")
    embedder = Model.of()
    cosines = embedder.documents([hit.text for hit in plain]) @ embedder.queries([QUERY])[0]
    for candidates, k, offset in [(6, 6, 0), (4, 2, 0), (3, 2, 1), (1, 3, 0)]:
        # The reranker reads the candidates; what lies beyond them follows as it is.
        order = [*np.argsort(-cosines[:candidates], kind="stable"), *range(candidates, 6)][offset : offset + k]
        hits = texts.search(QUERY, k, mode="dense", rerank="default", candidates=candidates, offset=offset)
        assert ids(hits) == [plain[place].id for place in order]
        expected = [float(cosines[place]) if place < candidates else None for place in order]
        assert [hit.reranked for hit in hits] == pytest.approx(expected, abs=1e-5)
        assert [hit.score for hit in hits] == pytest.approx([plain[place].score for place in order])
    assert plain[0].reranked is None
    assert [ids(hits) for hits in texts.search([QUERY, "weather"], 1, rerank="default")] == [[3], [5]]
    assert {*ids(texts.search([QUERY, "weather"], 2, rerank="default", fuse=True))} == {3, 5}
    assert len(texts.search(like=3, rerank="default")) == 5
    # Hits vary by their own vectors, among the reranked ones.
    hits = texts.search(QUERY, 6, mode="dense", rerank="default")
    vectors = texts._folder.read(lambda view: view.vectors.get(np.array(ids(hits))))
    varied = maximal_marginal_relevance(np.array([hit.reranked for hit in hits]), vectors, 6, 0.3)
    assert varied != sorted(varied)
    assert texts.search(QUERY, 6, mode="dense", rerank="default", mmr=0.3) == [hits[place] for place in varied]
    assert texts.search("", rerank="default", where="missing is not null") == []


def test_the_rerankers_cosines_take_the_place_of_ours_beside_the_words(texts):
    query = "a striker who raised goals"
    plain = texts.search(query, 6, mode="hybrid")
    embedder = Model.of()
    cosines = embedder.documents([hit.text for hit in plain]) @ embedder.queries([query])[0]
    ours = np.maximum([hit.score for hit in plain], 0)
    words = 2 * np.array([hit.fused for hit in plain]) - ours / ours.max()
    assert sorted(words)[-2:] == pytest.approx([sorted(words)[-2], 1])
    expected = (np.maximum(cosines, 0) / cosines.max() + words) / 2
    order = np.argsort(-expected)
    hits = texts.search(query, 6, mode="hybrid", rerank="default")
    assert ids(hits)[:3] == [plain[place].id for place in order[:3]]
    assert [hit.reranked for hit in hits] == pytest.approx(expected[order].tolist(), abs=1e-5)


def test_a_cross_encoder_scores_pairs_and_calls_nothing_that_its_folder_names(texts, tmp_path, tokenizer, capfd):
    from sentence_transformers import CrossEncoder

    cross_encoder = save_cross_encoder(tmp_path / "cross", tokenizer)
    model = CrossEncoder(str(cross_encoder))
    scores = model.predict([(QUERY, text) for text in CANDIDATES], show_progress_bar=False)
    model.save_pretrained(str(tmp_path / "saved"))
    for rerank in (model, str(cross_encoder), cross_encoder, tmp_path / "saved"):
        hits = texts.search(QUERY, 6, rerank=rerank)
        assert [hit.reranked for hit in hits] == pytest.approx(sorted(map(float, scores), reverse=True), abs=1e-5)
    for name, file, settings in (
        ("torch.utils.collect_env.main", "config.json", {"sentence_transformers": {"activation_fn": "NAME"}}),
        (5, "config.json", {"sbert_ce_default_activation_function": "NAME"}),
        ("evil.E", "config_sentence_transformers.json", {"model_type": "CrossEncoder", "activation_fn": "NAME"}),
    ):
        path = cross_encoder / file
        before = path.read_text() if path.exists() else "{}"
        path.write_text(json.dumps(json.loads(before) | settings).replace('"NAME"', json.dumps(name)))
        said = error(texts.search, QUERY, 6, rerank=cross_encoder)
        assert said == f"{path}: the activation must be a layer of torch.nn, got {name!r}"
        path.write_text(before)
    assert capfd.readouterr().out == ""
