"""People find what they search, however a text writes it, and SQLite reads the words that we write for it."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_embed.text.normalisation import LONGEST_WORD, indexed, normalised, placed_words, words

ODD = [*"ac#日本語한ßÆéﬁ\u200b\x0c_ 9", "C++", "F#", ".NET", "++", "-\n"]
FTS5 = "CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='{} remove_diacritics 2')"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("昨日、東京都で雨が降りました。", "京都"),
        ("The 北京 office opened.", "北京"),
        ("我的猫很可爱。", "猫"),
        ("어제 학교에서 공부했다", "학교"),
        ("ﾊﾟｿｺﾝを買う", "パソコン"),
        ("A book on C++17 and more.", "c++"),
        ("A book on F#, and more.", "f#"),
        ("Runs on .NET and more.", ".net"),
        ("Open it in Notepad++ now.", "notepad"),
        ("The Encyclopædia of 1771", "encyclopaedia"),
        ("Die Straße ist lang", "strasse"),
        ("DIE STRASSE IST LANG", "straße"),
        ("un cœur simple", "coeur"),
        ("Łódź and Tromsø", "lodz"),
        ("a photo-\nvoltaic cell", "photovoltaic"),
        ("a photo-\n   voltaic cell", "voltaic"),
        ("a photo\xad\nvoltaic cell", "photovoltaic"),
        ("an oﬃce", "office"),
    ],
)
def test_a_text_is_found_by_what_people_type(text, query):
    found = [
        word
        for word in words(query)
        if word.casefold() in {of.word.casefold() for of in placed_words(text)}
        or word.casefold() in {of.casefold() for of in tokens(indexed(text))}
    ]
    assert found == words(query)


OTHERS = [("The C language", "C++ C#"), ("A net of nets", ".NET"), ("ten-\n20 photos", "ten20"), ("i + +", "i++")]


@pytest.mark.parametrize(("text", "query"), OTHERS)
def test_other_words_are_not_found(text, query):
    assert not set(map(str.lower, words(query))) & set(tokens(indexed(text)))


def test_phrases_hold_across_unusual_words():
    for text, phrase in (
        ("A photo-\nvoltaic cell", "photo voltaic cell"),
        ("the C++ compiler in 北京市 today", "C++ compiler in 北京市 today"),
        ("Encyclopædia of the .NET world", "encyclopaedia of the .net world"),
    ):
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(FTS5.format("porter unicode61"))
            connection.execute("INSERT INTO texts VALUES (?)", (indexed(text),))
            match = f'"{" ".join(words(phrase))}"'
            assert connection.execute("SELECT count(*) FROM texts WHERE texts MATCH ?", (match,)).fetchone() == (1,)


def test_ordinary_texts_are_indexed_as_they_are():
    for text in ("Plain English: 5 < 6.\n", "crème brûlée — “à la carte”…", "Кошка спит. #tag # heading"):
        assert indexed(text) is text


def test_words_point_into_the_original():
    text = "an oﬃce in 東京都, photo-\nvoltaic; Straße C++"
    places = {word: text[start:stop] for word, start, stop in placed_words(text)}
    assert places["office"] == "oﬃce"
    assert places["京都"] == "京都"
    assert places["photovoltaic"] == "photo-\nvoltaic"
    assert places["Strasse"] == "Straße"
    assert places["Cplusplus"] == "C++"


def tokens(text: str) -> list[str]:
    """Return the tokens that SQLite makes of a text."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(FTS5.format("unicode61"))
        connection.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(texts, instance)")
        connection.execute("INSERT INTO texts VALUES (?)", (text,))
        return [token for (token,) in connection.execute('SELECT term FROM tokens ORDER BY "offset"')]


@pytest.mark.parametrize("text", ["日" * 10_923, "é" * 20_000, "x" * 40_000, "ab" * 17_000 + " end"])
def test_no_word_is_longer_than_sqlite_reads(text):
    found = tokens(indexed(text))
    assert found
    assert max(map(len, found)) <= LONGEST_WORD


@given(st.lists(st.sampled_from(ODD)).map("".join))
def test_both_ways_to_write_a_text_have_the_same_words(text):
    read = normalised(text)
    listed = [word.word for word in placed_words(text)]
    assert tokens(indexed(text)) == tokens(" ".join(listed))
    assert listed[: len(words(text))] == words(text)
    assert indexed(read) == indexed(text)


@given(st.text())
def test_words_of_any_text_are_within_it(text):
    for word, start, stop in placed_words(text):
        assert word
        assert 0 <= start < stop <= len(text)
