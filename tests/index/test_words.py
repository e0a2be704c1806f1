import random
import sqlite3
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ctx_embed import SearchIndex
from ctx_embed.errors import LateError
from ctx_embed.index import snippet, words as by_words
from ctx_embed.index.database import DATABASE, Database
from ctx_embed.index.folder import IndexFolder
from ctx_embed.index.search import shares_of_best
from ctx_embed.index.words import Bm25, respelled, varints
from tests.index.support.hash_model import HashModel

TEXTS = ["the cats were running", "a dog ran", "café in Paris", "running shoes for a cat and a running cat", ""]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index that no test changes."""
    with SearchIndex.create(tmp_path_factory.mktemp("words") / "index", HashModel()) as index:
        index.add(TEXTS)
        yield index


def found(index, query, **options):
    return [hit.id for hit in index.search(query, mode="words", **options)]


def test_words_are_stemmed_and_ranked_by_bm25(index):
    assert found(index, "cat runs") == [3, 0]
    assert found(index, "CAFE") == [2]
    assert found(index, "zebra") == found(index, "") == found(index, "?!") == []
    assert found(index, "dog cat", k=1) == [1]
    many = " ".join(f"word{number}" for number in range(1000))
    assert found(index, f"cat {many}", k=10**30) == [3, 0]
    assert len(index.search("cat", k=10**30)) == 5
    # No word is an operator.
    for query in ['NEAR("cat b")', "cat AND NOT dog", 'cat" OR "x', "cat*", "text:cat", "(cat", "^cat", "cat'"]:
        assert 3 in found(index, query)


@settings(max_examples=25)
@given(query=st.text(max_size=40))
def test_any_text_is_a_query(index, query):
    hits, words = index.search(query, k=5, mode="hybrid"), found(index, query)
    assert [hit.fused for hit in hits] == sorted((hit.fused for hit in hits), reverse=True)
    assert set(words) <= {hit.id for hit in hits}
    assert found(index, f"{query}\n") == words
    assert snippet(query, TEXTS[3], "", "").strip("…") in TEXTS[3]


def test_hybrid_is_the_mean_of_both_scores_as_shares_of_the_best(index):
    cosines = {hit.id: hit.score for hit in index.search("cat runs", k=5, mode="dense")}
    with closing(sqlite3.connect(index.path / DATABASE)) as connection:
        by_words = dict(connection.execute("SELECT rowid, -rank FROM words WHERE words MATCH 'cat OR runs'"))
    assert sorted(by_words) == sorted(found(index, "cat runs"))
    fused = {
        row: (max(cosine, 0) / max(cosines.values()) + by_words.get(row, 0) / max(by_words.values())) / 2
        for row, cosine in cosines.items()
    }
    hits = index.search("cat runs", k=5, mode="hybrid")
    assert [hit.id for hit in hits] == sorted(cosines, key=lambda row: -fused[row])
    assert {hit.id: hit.fused for hit in hits} == pytest.approx(fused)
    assert index.search("cat runs", k=2, mode="hybrid") == hits[:2]
    # Scores are cosines in every mode.
    for hit in [*hits, *index.search("cat runs", mode="words")]:
        assert hit.score == pytest.approx(cosines[hit.id], abs=1e-7)
    for scores, shares in (([0.4, 0.2, -0.1], [1, 0.5, 0]), ([-0.3, -0.1], [0, 0]), ([0, 0], [0, 0]), ([], [])):
        assert shares_of_best(scores).tolist() == shares


def test_common_words_of_a_large_index_are_left_out_where_rarer_ones_are(index, monkeypatch):
    monkeypatch.setattr(by_words, "LARGE", 3)
    monkeypatch.setattr(by_words, "COMMON_PART", 0.4)

    def best(view) -> None:
        search = Bm25(view)
        assert list(search.best("dog running", 10, None)) == [1]
        assert list(search.best("running", 10, None)) == [3, 0]

    with closing(IndexFolder(index.path)) as folder:
        folder.read(best)


def test_a_snippet_is_the_part_with_most_matches_and_short_whatever_the_text():
    for query, text, expected in (
        ("cats", "The cat ran.", "The **cat** ran."),
        ("zebra", "The cat ran.", "The cat ran."),
        ("cat", "", ""),
        ("how is the cat", "The cat is how it is.", "The **cat** is how it is."),
        ("to be or not to be", "To be, or not.", "**To** **be**, **or** **not**."),
        ("zebra", "word " * 30, "word " * 23 + "word…"),
    ):
        assert snippet(query, text) == expected
    text = "cat " + "filler " * 60 + "the cat and the dog slept " + "filler " * 60
    part = snippet("cat dog", text, "<b>", "</b>")
    assert "the <b>cat</b> and the <b>dog</b> slept" in part
    assert part.startswith("…")
    assert len(part.split()) <= 26
    for text in ("x" * 100_000 + " cat " + "y" * 100_000, "猫" * 100_000, "cat " * 100_000):
        part = snippet("cat 猫", text)
        assert "**" in part
        assert len(part) < 1000


MARKED = (
    ("京都", "昨日、東京都で雨が降りました。", "昨日、東**京都**で雨が降りました。"),
    ("猫", "我的猫很可爱。", "我的**猫**很可爱。"),
    ("북", "어제 동북 학교", "어제 동**북** 학교"),
    ("학교", "어제 학교에서 공부했다", "어제 **학교**에서 공부했다"),
    ("パソコン", "ﾊﾟｿｺﾝを買う", "**ﾊﾟｿｺﾝ**を買う"),
    ("c++", "Books on C++17 and C.", "Books on **C++**17 and C."),
    ("C#", "Books on C#, and C.", "Books on **C#**, and C."),
    (".net", "Written for .NET users", "Written for **.NET** users"),
    ("notepad", "Open it in Notepad++ now.", "Open it in **Notepad**++ now."),
    ('"C++ compiler in 北京市"', "the C++ compiler in 北京市", "the **C++** **compiler** in **北京市**"),
    ('"encyclopaedia strasse"', "Die Encyclopædia-Straße", "Die **Encyclopædia**-**Straße**"),
    ("coeur", "un cœur simple", "un **cœur** simple"),
    ("lodz", "Łódź and Tromsø", "**Łódź** and Tromsø"),
    ("straße", "DIE STRASSE IST", "DIE **STRASSE** IST"),
    ("photovoltaic cells", "a photo-\nvoltaic cell", "a **photo-\nvoltaic** **cell**"),
    ("voltaic", "a photo-\n   voltaic cell", "a photo-\n   **voltaic** cell"),
    ("photovoltaic", "a photo\xad\nvoltaic cell", "a **photo\xad\nvoltaic** cell"),
    ("offices", "an oﬃce", "an **oﬃce**"),
    ('"photo voltaic cell"', "a photo-\nvoltaic cell", "a **photo**-\n**voltaic** **cell**"),
)


def test_what_people_search_is_found_and_marked(tmp_path, hash_model, monkeypatch):
    with SearchIndex.create(tmp_path / "index", hash_model) as index:
        index.add([*TEXTS, "C", "the C language, a net of words"])
        for query, text, marked in MARKED:
            index.add([text], ids=["text"])
            for large in (100, 3):
                monkeypatch.setattr(by_words, "LARGE", large)
                for _ in range(2):  # the second search of a large index reads lists
                    assert found(index, query) == ["text"]
            [hit] = index.search(query, mode="words")
            assert hit.as_dict(query)["snippet"] == marked
            assert index.verify() == []
            index.delete(["text"])
            assert found(index, query) == []
            assert index.verify() == []


WORDS = ["run", "running", "runs", "café", "cafe", "x1", "ne'er", "data", "ßtraße", *(f"w{n}" for n in range(200))]


def texts(generator: random.Random, count: int) -> list[str]:
    weights = [1 / (place + 1) for place in range(len(WORDS))]
    return [" ".join(generator.choices(WORDS, weights, k=generator.choice([1, 3, 5, 5, 5, 150]))) for _ in range(count)]


@pytest.fixture
def listed(tmp_path, monkeypatch):
    for name, value in {"LARGE": 0, "COMMON_PART": 1.1, "KEPT_POSTINGS": 500, "LENGTHS_AT_ONCE": 100}.items():
        monkeypatch.setattr(by_words, name, value)
    with SearchIndex.create(tmp_path / "index", HashModel(), "Flat") as listed:
        yield listed


@pytest.fixture
def read(listed):
    """Yield what calls work with a search by FTS5, one by the word lists of an index that stays open, and the view."""

    def found(work, view):
        view.words._searched = True
        return work(Bm25(view), view.words, view)

    with closing(IndexFolder(listed.path)) as folder:
        yield lambda work: folder.read(partial(found, work))


def both(read, query: str, k: int, allowed=None) -> tuple[dict[int, float], dict[int, float]]:
    """Return the rows and scores that FTS5 finds, and those of the word lists."""
    return read(lambda slow, quick, _: (slow.best(query, k, allowed), quick.best(query, k, allowed)))


def agree(read, generator: random.Random, count: int) -> None:
    found = 0
    for _ in range(count):
        query = " ".join(generator.choices([*WORDS, "unknown"], k=generator.randint(1, 8)))
        positions = read(lambda slow, quick, view: len(view.rows))
        allowed = None if generator.random() < 0.5 else np.array([generator.random() < 0.3 for _ in range(positions)])
        slow, quick = both(read, query, generator.choice([1, 10, 100, 10_000]), allowed)
        assert list(quick) == list(slow), query
        assert list(quick.values()) == pytest.approx(list(slow.values()), rel=1e-12)
        found += len(quick)
    assert found


def test_the_order_is_that_of_sqlite_after_every_change(listed, read):
    generator = random.Random(0)
    for change in (
        lambda: listed.add(texts(generator, 1200), ids=list(range(1200))),
        lambda: listed.delete(generator.sample(range(1200), 300)),
        lambda: listed.upsert(texts(generator, 100), generator.sample(range(1200), 100)),
        listed.compact,
    ):
        change()
        agree(read, generator, 30)


def test_a_search_that_ends_early_leaves_no_scores_to_the_next_one(listed, read, monkeypatch):
    listed.add(["dog cat", "dog", "cat"])

    def ended(slow, quick, view) -> None:
        def run(statement, values=()):
            if values == ("cat",):
                raise LateError("late")
            return Database.run(view.store, statement, values)

        with monkeypatch.context() as patch:
            patch.setattr(view.store, "run", run)
            with pytest.raises(LateError):
                quick.best("dog cat", 3, None)

    read(ended)
    slow, quick = both(read, "dog cat", 3)
    assert quick == pytest.approx(slow)


def test_a_word_of_several_tokens_is_left_to_sqlite_and_queries_without_hits(listed, read):
    assert both(read, "nothing", 3) == ({}, {})
    # U+19B0 is a letter to Python, and the end of a word to SQLite, whose tables of Unicode are older.
    word = "a\u19b0b"
    listed.add([f"{word} c", "b a c", "c"])
    assert read(lambda _, quick, view: quick._best_by_lists([word], 3, None)) is None
    assert [list(found) for found in both(read, word, 3)] == [[0], [0]]
    for query, allowed in (("nothing", None), ("b", np.array([False, False, True])), ("!?", None)):
        assert both(read, query, 3, allowed) == ({}, {})
    listed.delete([0, 1, 2])
    assert both(read, "c", 3) == ({}, {})
    # The varints of SQLite.
    assert varints(b"\x05\x81\x00\x82\x80\x01\x7f").tolist() == [5, 128, 2 * 128 * 128 + 1, 127]
    assert varints(b"").tolist() == []


def corrected(typos, query, mode="words", **options):
    return [(hit.id, hit.corrected) for hit in typos.search(query, mode=mode, **options)]


def test_the_nearest_word_is_found_and_what_stays_as_typed(tmp_path):
    typos = SearchIndex.create(tmp_path / "index")
    typos.add(["The retrieval of documents by meaning", "Retrieving the machine parts AB1234 and AB1235"])
    typos.add(["A washing machine and its manual", "Mr Smith and Mr Smyth met the major", "The mayor of Zürich speaks"])
    for typed, written, ids in (
        ("machne", "machine", {1, 2}),  # a letter is missing
        ("mahcine", "machine", {1, 2}),  # two letters are swapped
        ("retreival", "retrieval", {0, 1}),
        ("Zurrich", "zürich", {4}),
        ("wahsing", "washing", {2}),  # "wash" is its stem
        ("washign", "washing", {2}),  # no stem can be cut off
        ("docmunets", "documents", {0}),  # two edits of a long word
    ):
        hits = typos.search(f"the {typed}", mode="words")
        assert {hit.id: hit.corrected for hit in hits} == {each: {typed: written} for each in ids}
        assert "**" in hits[0].as_dict(typed)["snippet"]
        assert corrected(typos, typed, "hybrid")[0][1] == {typed: written}
    # A corrected query means what it was meant to.
    found = corrected(typos, ["machne", "wahsing"], fuse=True)
    assert found[0] == (2, {"machne": "machine", "wahsing": "washing"})
    typed = typos.search("a machne that washes clothes", 1, mode="hybrid")[0]
    right = typos.search("a machine that washes clothes", 1, mode="hybrid")[0]
    assert (typed.id, typed.score, typed.relevance) == (right.id, right.score, right.relevance)
    assert corrected(typos, "Smyth") == [(3, None)]  # one edit from "Smith"
    assert corrected(typos, "mayor") == [(4, None)]  # one edit from "major", but the index has it
    assert corrected(typos, "AB1236") == corrected(typos, "MAYRO") == []
    assert corrected(typos, "mayo") == []  # a word of the language
    assert corrected(typos, '"washing machine" manaul') == [(2, {"manaul": "manual"})]
    # No passage has the phrase, so it goes without its marks, and the hits say so.
    assert corrected(typos, '"manual washing"')[0][1] == {'"manual washing"': "manual washing"}
    assert corrected(typos, "mxxhine") == []  # two edits of a short word
    assert all(words is None for _, words in corrected(typos, "machne", "dense"))
    # Only whole words are respelled.
    assert respelled("machne machnes", {"machne": "machine"}) == "machine machnes"
    assert respelled("as typed", None) == "as typed"

    # A word that the index gains is no longer corrected.
    typos.add(["Machne Software"])
    assert corrected(typos, "machne") == [(5, None)]
    typos.close()
