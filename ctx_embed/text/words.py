"""The words of a text, as full text indexes them and as queries ask for them.

SQLite's own tokenizer reads what :func:`indexed` writes, so that plain sqlite3 opens an index. Most texts stay as they
are but for :mod:`~ctx_embed.text.normalisation`. Otherwise the words are written between spaces:

- Chinese, Japanese and Korean as overlapping pairs of characters: 東京都 is found by 東京 and by 京都.
- C++, C#, F# and .NET are words of their own: cplusplus, csharp, fsharp and dotnet.
- æ, œ, ß, ø, ł and other letters that Unicode does not decompose are written without their strokes: ae, oe, ss, o, l.
- Words of more than 1,000 letters are cut, since SQLite would cut them inside a character.

Words by which a text is also found follow its last word, where they disturb no phrase: single characters of Chinese,
Japanese and Korean, and words cut by a hyphen at the end of a line, joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ctx_embed.text.normalisation import normalised, with_places

# Indexes name it; it rises when any text has other words.
VERSION = 1

LONGEST_WORD = 1000
# Letters that stand for others, which SQLite does not know.
FOLDED = str.maketrans(
    {"æ": "ae", "Æ": "AE", "ǽ": "ae", "Ǽ": "AE", "œ": "oe", "Œ": "OE", "ß": "ss", "ẞ": "SS", "þ": "th", "Þ": "TH"}
    | dict(zip("øØǿǾđĐðÐħĦıłŁŧŦ", "oOoOdDdDhHilLtT", strict=True))
)
_FOLDED = "".join(map(chr, FOLDED))
# Characters of scripts that are written without spaces or with endings on every word: Han, Kana, Bopomofo and Hangul.
_PAIRED = (
    "\u1100-\u11ff\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7fb\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNUSUAL = re.compile(f"[{_PAIRED}{_FOLDED}♯]")
_CUT = re.compile(r"-[ \t]*\r?\n")
_SHARP = re.compile("[A-Za-z]#")
_WORD = re.compile(
    rf"(?P<paired>[{_PAIRED}]+)"
    r"|(?<![\w.])\.(?P<net>[Nn][Ee][Tt])(?!\w)"
    r"|(?<!\w)(?P<sharp>[A-Za-z])[#♯](?![^\W\d_])"
    rf"|(?P<word>[^\W_{_PAIRED}]{{1,{LONGEST_WORD}}})(?P<plus>\+\+(?!\+))?(?P<cut>-[ \t]*\r?\n[ \t]*(?=[^\W\d_]))?"
)


class Word(NamedTuple):
    """A word as it is indexed, and where its text starts and stops, in characters."""

    word: str
    start: int
    stop: int


def _read_words(read: str) -> tuple[list[Word], list[Word]]:
    """Return the words of a normalised text, and the words by which it is also found."""
    words: list[Word] = []
    more: list[Word] = []
    cut: Word | None = None
    for found in _WORD.finditer(read):
        start, stop = found.span()
        if paired := found["paired"]:
            pairs = [
                Word(paired[at : at + 2], start + at, min(start + at + 2, stop))
                for at in range(max(len(paired) - 1, 1))
            ]
            words += pairs
            more += [Word(character, at, at + 1) for at, character in enumerate(paired, start) if len(paired) > 1]
        elif net := found["net"]:
            words.append(Word(f"dot{net}", start, stop))
            more.append(Word(net, start + 1, stop))
        elif sharp := found["sharp"]:
            words.append(Word(f"{sharp}sharp", start, stop))
        else:
            word = found["word"].translate(FOLDED)
            if found["plus"]:
                words.append(Word(f"{word}plusplus", start, found.end("plus")))
                more += [Word(word, start, found.end("word"))] if len(word) > 1 else []
            else:
                words.append(Word(word, start, found.end("word")))
                if cut is not None and word[0].islower():
                    more.append(Word(cut.word + word, cut.start, found.end("word")))
            cut = words[-1] if found["cut"] and not word[-1].isdigit() else None
            continue
        cut = None
    return words, more


def is_indexed_as_written(read: str) -> bool:
    """Return whether full text certainly indexes a normalised text by its own words; takes a tenth of reading them."""
    return not (
        "++" in read
        or ("#" in read and _SHARP.search(read))
        or ".net" in read.lower()
        or not (read.isascii() or _UNUSUAL.search(read) is None)
        or ("\n" in read and _CUT.search(read))
        or max(map(len, read.split()), default=0) > LONGEST_WORD
    )


def indexed(text: str) -> str:
    """Return ``text`` as full text indexes it: its words, and after them those by which it is also found."""
    read = normalised(text)
    if is_indexed_as_written(read):
        return read
    words, more = _read_words(read)
    return " ".join(word.word for word in (*words, *more))


def words(text: str) -> list[str]:
    """Return the words of a query, by which texts that have them are found."""
    return [word.word for word in _read_words(normalised(text))[0]]


def placed_words(text: str) -> Iterator[Word]:
    """Yield the words by which a text is found, with their places in it."""
    read, starts, stops = with_places(text)
    for of in _read_words(read):
        for word, start, stop in of:
            yield Word(word, int(starts[start]), int(stops[stop - 1]))
