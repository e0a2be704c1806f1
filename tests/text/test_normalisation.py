# ruff: noqa: RUF001
"""What stands for the same is read the same way, whatever signs it is written with; words as SQLite reads them."""

import sqlite3
import unicodedata
from contextlib import closing

from hypothesis import example, given, strategies as st

from ctx_embed.text import normalisation
from ctx_embed.text.normalisation import indexed, normalised, placed_words, with_places, words

ODD = "eﬁम👩🏴กｶ①⅓ſ \x0c\x85\xad\u0301\u0307\u094d\u2000\u200b\u200c\u200d\ufe0f\uff9e\u1112\u1161\u11ab\U000e0067"
odd_texts = st.text(st.one_of(st.sampled_from(f"{ODD}\ud800\udc00"), st.characters()))
ODD_PARTS = [*"ac#日本語한ßÆéﬁ\u200b\x0c_ 9", "C++", "F#", ".NET", "++", "-\n"]
FTS5 = "CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='unicode61 remove_diacritics 2')"


READ = {
    "The ﬁrst ﬁnancial oﬃce": "The first financial office",
    "Ｆｕｌｌｗｉｄｔｈ，１２３": "Fullwidth,123",
    "𝐛𝐨𝐥𝐝 𝒾𝓉𝒶𝓁𝒾𝒸 𝔣𝔯𝔞𝔨𝔱𝔲𝔯 𝟙𝟚𝟛": "bold italic fraktur 123",
    "ﾊﾟｿｺﾝ": "パソコン",
    "H₂O at 20℃, 5㎏": "H2O at 20°C, 5kg",
    "1ᵉʳ Straſſe": "1er Strasse",
    "cafe\u0301 \u1112\u1161\u11ab": "café 한",
    "one\x0ctwo\x0bthree\x85four\x97five\x00six\x1fseven\x7feight": "one two three four five six seven eight",
    "a\u2003b\u202fc\u3000d": "a b c d",
    "a\u2028b\u2029c": "a\nb\nc",
    "pho\xadto pho\u200bto\ufeff \u202epho\u2060to": "photo photo photo",
    "photo\xad\nvoltaic photo\xad- cut\xad\u200bs\xad": "photo-\nvoltaic photo-- cuts-",
    "non\u2011breaking": "non-breaking",
    "Product\u2122 ①apple 10⁶ 2⅓ x⁻¹": "Product TM  1 apple 10 6 2 1/3 x \u2212¹",
    "half \ud800 an emoji \ud83d\ude00": "half \ufffd an emoji 😀",
    # Joiners stay only where scripts and emoji need them.
    "pa\u200dss\u200cword hi\U000e0068\U000e0069": "password hi",
    "❤\ufe0f\u200d🔥 ❤\ufe0f": "❤\u200d🔥 ❤",
    "ภาษา\u200bไทย": "ภาษา ไทย",
}
ORDINARY = [
    "Plain English, of course: \t5 < 6\r\n",
    "“Quotes” – dashes — and… ½ cup of crème brûlée, 20 m² at 5 °C for 3 €; don´t",
    "naïve façade Łódź İstanbul groß Æneas œuvre",
    "Кошка спит на диване. Η γάτα κοιμάται.",
    "北京今天下雨。東京タワー 한국어",
    "क्\u200dष क्\u200cष می\u200cخواهم",
    "👩\u200d👩\u200d👧 👋🏽 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
]


def test_what_stands_for_the_same_reads_the_same_and_ordinary_texts_stay():
    assert {text: normalised(text) for text in READ} == READ
    for texts in (list(READ.values()), ORDINARY):
        assert [normalised(text) for text in texts] == texts
    # A text that needs nothing is returned itself.
    text = "Plain text.\n"
    assert normalised(text) is text


def test_plain_characters_are_those_that_stay():
    for code in range(0x110000):
        character = chr(code)
        if normalisation._PLAIN.fullmatch(character):
            assert normalisation._read(character) == unicodedata.normalize("NFC", character) == character


@given(odd_texts)
@example("❤\ufe0f\u200d🔥")
@example("a\ufe0f\u200d")
@example("\u2000①\u200d")
def test_reading_twice_changes_nothing_and_each_character_and_word_knows_its_original(text):
    read, starts, stops = with_places(text)
    assert read == normalised(text) == normalised(read)
    read.encode()
    assert not any(unicodedata.category(character) == "Cc" and character not in "\t\n\r" for character in read)
    assert len(starts) == len(stops) == len(read)
    original = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert all((starts[1:] >= starts[:-1]) & (stops[1:] >= stops[:-1]))
    assert all((starts < stops) & (stops <= len(original)))
    for word, start, stop in placed_words(text):
        assert word
        assert 0 <= start < stop <= len(original)


def test_places_point_into_the_original():
    text = "The oﬃce of pho\xadto\u200bs: cafe\u0301s"
    read, starts, stops = with_places(text)
    written = {}
    for word in ("The", "office", "photos", "cafés"):
        start = read.index(word)
        written[word] = text[starts[start] : stops[start + len(word) - 1]]
    assert written == {"The": "The", "office": "oﬃce", "photos": "pho\xadto\u200bs", "cafés": "cafe\u0301s"}


def test_other_words_are_not_found_and_ordinary_texts_indexed_as_they_are():
    for text, query in (
        ("The C language", "C++ C#"),
        ("A net", ".NET"),
        ("ten-\n20 photos", "ten20"),
        ("i + +", "i++"),
    ):
        assert not set(map(str.lower, words(query))) & set(tokens(indexed(text))), query
    for text in ("Plain English: 5 < 6.\n", "crème brûlée — “à la carte”…", "Кошка спит. #tag # heading"):
        assert indexed(text) is text


def tokens(text: str) -> list[str]:
    """Return the tokens that SQLite makes of a text."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(FTS5)
        connection.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(texts, instance)")
        connection.execute("INSERT INTO texts VALUES (?)", (text,))
        return [token for (token,) in connection.execute('SELECT term FROM tokens ORDER BY "offset"')]


def test_no_word_is_longer_than_sqlite_reads():
    for text in ("日" * 10_923, "é" * 20_000, "x" * 40_000, "ab" * 17_000 + " end"):
        assert max(map(len, tokens(indexed(text)))) <= normalisation.LONGEST_WORD


@given(st.lists(st.sampled_from(ODD_PARTS)).map("".join))
def test_both_ways_to_write_a_text_have_the_same_words(text):
    read = normalised(text)
    listed = [word.word for word in placed_words(text)]
    assert sorted(tokens(indexed(text))) == sorted(tokens(" ".join(listed)))
    assert set(words(text)) <= set(listed)
    assert indexed(read) == indexed(text)


@given(st.text(alphabet="a\xad\u200b\u200c\u200dé_1\n-"))
def test_a_soft_hyphen_is_a_hyphen_where_no_letter_follows_its_run(text):
    inside = [place for place, character in enumerate(text) if character == "\xad"]
    ends = [text[place:].lstrip("\xad\u200b\u200c\u200d")[:1] for place in inside]
    kept = [place for place, end in zip(inside, ends, strict=True) if not end.isalnum()]
    written = ["-" if place in kept else "" if c in "\xad\u200b\u200c\u200d" else c for place, c in enumerate(text)]
    assert normalised(text) == "".join(written)


@given(st.lists(st.sampled_from("\u0301\u0316\u0327\u0344\u05b0\u0f71\u0f73\u3099"), min_size=60, max_size=90))
def test_many_marks_are_composed_as_few(marks):
    text = f"é{''.join(marks)}e"
    assert normalised(text) == with_places(text)[0] == unicodedata.normalize("NFC", text)
