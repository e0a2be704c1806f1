"""How all texts are read: characters that mean the same are written the same way before words are made.

The model's words, full text, highlights and deduplication all read :func:`normalised` texts; what is stored and shown
stays as it was written.

- Compatibility characters become what they stand for (Unicode's NFKC): ligatures, fullwidth and mathematical letters,
  presentation forms, unit signs. Raised and encircled signs and fractions become words of their own, as 10⁶ is not
  106 and 2⅓ is not 21/3. Latin-1 and the ellipsis stay, as ordinary texts have them and vocabularies know them.
- Composed characters are written as one (NFC).
- Control characters become spaces, but for tabs and line ends, and so do the wide spaces beyond Latin-1.
- Soft hyphens, zero-width and direction marks, variation selectors and tags are removed. But a soft hyphen at the end
  of a word is a hyphen, joiners (U+200C, U+200D) stay after letters of scripts that write with them and after emoji,
  tags after the black flag, and a zero-width space becomes a space in the scripts of South-East Asia, which separate
  words by it.
- Lone surrogates become U+FFFD.

Full text reads the words of normalised texts. SQLite's own tokenizer reads what :func:`indexed` writes, so that plain
sqlite3 opens an index. Most texts stay as they are. Otherwise the words are written between spaces:

- Chinese, Japanese and Korean as overlapping pairs of characters: 東京都 is found by 東京 and by 京都.
- C++, C#, F# and .NET are words of their own: cplusplus, csharp, fsharp and dotnet.
- æ, œ, ß, ø, ł and other letters that Unicode does not decompose are written without their strokes: ae, oe, ss, o, l.
- Words of more than 1,000 letters are cut, since SQLite would cut them inside a character.

Words by which a text is also found follow its last word, where they disturb no phrase: single characters of Chinese,
Japanese and Korean, and words cut by a hyphen at the end of a line, joined.

Source: Unicode Standard Annex 15, Unicode Normalization Forms; Unicode Technical Standard 51, Unicode Emoji.
"""

import re
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.deadlines import CHARACTERS_AT_ONCE, in_pieces, require_time, timely
from ctx_embed.texts import well_formed

# Indexes and fingerprints include this number. Increase it when any text is read differently.
VERSION = 1

# Characters that stay as they are next to any of these; a text of these characters alone needs no work.
_PLAIN_CHARACTERS = (
    "\t\n\r -~\xa0-\xac\xae-\u0131\u0134-\u013e\u0141-\u0148\u014a-\u017e\u0180-\u01c3\u01cd-\u01f0\u01f4-\u02af"
    "\u0388-\u038a\u038e-\u03ce\u0400-\u0481\u048a-\u052f\u2012-\u2015\u2018-\u2022\u2026\u2030\u20ac"
    "\u3001\u3002\u3041-\u3096\u30a1-\u30fa\u30fc\u4e00-\u9fff\uac00-\ud7a3"
)
_PLAIN, _ODD = re.compile(f"[{_PLAIN_CHARACTERS}]*"), re.compile(f"[^{_PLAIN_CHARACTERS}]+")
_INVISIBLE = re.compile(
    "[\u034f\u061c\u180b-\u180f\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e0fff]"
)
_TAGS, _JOINERS = "\U000e0020-\U000e007f", "\xad\u200b\u200c\u200d"
_SOUTH_EAST_ASIA = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
# First come characters that stay only in some context, with that context; all others are removed.
_DEPENDENT = re.compile(f"[{_JOINERS}{_TAGS}]")
_JOINED = "\u0600-\u18af\u2600-\u27bf\u2b00-\u2bff\U0001f300-\U0001faff"
# After these no character depends on one before it.
_INDEPENDENT = re.compile(
    f"[^{_JOINERS}{_TAGS}{_JOINED}]|[^{_JOINERS}{_TAGS}](?![\u200b-\u200d{_TAGS}])|[{_JOINERS}]|(?=\U0001f3f4)"
)
# A run of soft hyphens and joiners is read at once: looking beyond it from each would take quadratic time.
CONTEXT = re.compile(
    f"(?P<kept>[{_JOINED}][\u200c\u200d]|\U0001f3f4[{_TAGS}]+)|(?P<space>[{_SOUTH_EAST_ASIA}]\u200b)"
    rf"|(?P<inside>[{_JOINERS}]+(?=[^\W_]))|[{_JOINERS}]+|[{_TAGS}]+"
)
# Stands for a removed character as long as positions refer to the original text.
_REMOVED = "\0"
# Marks, and the vowels and final consonants of Hangul, may be composed with what stands before them.
_COMPOSING = re.compile("[\u1160-\u11ff\ud7b0-\ud7fb]")
_STARTING = rf"\w{_PLAIN_CHARACTERS}\u2000-\u20cf\u2100-\u2bff\ue000-\uf8ff\U0001f000-\U0001fbff\U00020000-\U0010fffd"
_APART = re.compile(rf"(?=[{_STARTING}])(?!{_COMPOSING.pattern})")
# Python's NFC puts marks in order in quadratic time, so longer runs are not given to it.
_MANY_MARKS = re.compile(rf"[^{_STARTING}]{{65}}")

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
_CUT, _SPACE_ENDS = re.compile(r"-[ \t]*\r?\n"), re.compile(r"\s(?=\S)")
_SHARP = re.compile("[A-Za-z]#")
_WORD = (
    rf"(?P<paired>[{_PAIRED}]+)"
    r"|(?<![\w.])\.(?P<net>[Nn][Ee][Tt])(?!\w)"
    r"|(?<!\w)(?P<sharp>[A-Za-z])[#♯](?![^\W\d_])"
    rf"|(?P<word>[^\W_{_PAIRED}]{{1,{LONGEST_WORD}}})(?P<plus>\+\+(?!\+))?(?P<cut>-[ \t]*\r?\n[ \t]*(?=[^\W\d_]))?"
)
# The same, with runs of characters between words, of which a full stop may begin one.
_WORD_OR_RUN = re.compile(rf"{_WORD}|(?P<between>(?=[\W_]{{16}})(?:[^\w{_PAIRED}]|_){{16,4096}})(?![Nn])")


def _read(character: str) -> str:
    """Return the text that a character is read as, whatever its neighbours are."""
    category = unicodedata.category(character)
    if character in "\t\n\r":
        return character
    if category == "Cc":
        return " "
    if _INVISIBLE.match(character):
        return ""
    if character < "\u0100" or character == "…":
        return character
    if character in "\u2028\u2029":
        return "\n"
    if character.isspace():
        return " "
    if character in "\u2010\u2011":
        return "-"
    meaning = unicodedata.normalize("NFKC", character)
    if meaning == unicodedata.normalize("NFC", character) or meaning.startswith(" "):
        return character
    kind = unicodedata.decomposition(character).split(" ", 1)[0]
    if kind == "<circle>":
        return f" {meaning} "
    if kind == "<fraction>" or (kind == "<super>" and category != "Lm"):
        return " " + meaning.replace("\u2044", "/")
    return meaning


def readings() -> dict[str, str]:
    """Return what every character is read as that is read as another text, whatever its neighbours are."""
    every = map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1)))
    return {character: _read(character) for character in every if _read(character) != character}


class Translation(dict[int, str]):
    """Maps codes of characters to what a function makes of the characters; filled as they are met."""

    def __init__(self, make: Callable[[str], str]) -> None:
        self._make = make

    def __missing__(self, code: int) -> str:
        return self.setdefault(code, self._make(chr(code)))


_READINGS = Translation(_read)


def _dependent(found: re.Match[str]) -> str:
    if found["kept"]:
        return found[0]
    if found["space"]:
        return f"{found[0][0]} "
    if found["inside"] or "\xad" not in found[0]:
        return _REMOVED * len(found[0])
    return "".join("-" if character == "\xad" else _REMOVED for character in found[0])


def normalised(text: str) -> str:
    """Return ``text`` as all parts of ctx-embed read it; if nothing changes, which is seen quickly, the same object."""
    if _PLAIN.fullmatch(text):
        return text
    parts = [_ODD.sub(lambda found: found[0].translate(_READINGS), part) for part in in_pieces(well_formed(text))]
    if any(_DEPENDENT.search(part) for part in parts):
        parts = [part.replace(_REMOVED, "") for part in _in_context("".join(parts))]
    return _composed("".join(parts))


def _in_context(read: str) -> list[str]:
    """Return the pieces of a text without what only its neighbours would keep; _REMOVED stands for it."""
    found, after = list[str](), ""
    # From the end, as the character after a run of soft hyphens and joiners decides on all of its pieces.
    for part in reversed(list(in_pieces(read, _INDEPENDENT))):
        require_time()
        found.append(CONTEXT.sub(_dependent, part + after)[: len(part)])
        after = part.lstrip(_JOINERS)[:1] or after
    return found[::-1]


def _composed(read: str) -> str:
    """Return a text in NFC, in time that grows with its length."""
    parts = in_pieces(read, _APART) if len(read) > CHARACTERS_AT_ONCE else [read]
    return "".join(
        _by_characters(part) if _MANY_MARKS.search(part) else unicodedata.normalize("NFC", part) for part in parts
    )


def _by_characters(text: str) -> str:
    """Return a text in NFC: each character with the marks that it takes in, and those after it by their classes."""
    read, start, marks = StringIO(), "", dict[int, StringIO]()
    for character in timely(f"{text}\0"):
        for part in unicodedata.normalize("NFD", character):
            if kind := unicodedata.combining(part):
                marks.setdefault(kind, StringIO()).write(part)
                continue
            left = ""
            for _, written in sorted(marks.items()):
                # No character takes in more than two marks of a class.
                first = unicodedata.normalize("NFC", start + written.getvalue()[:8])
                start, left = first[0], left + first[1:] + written.getvalue()[8:]
            marks, both = {}, unicodedata.normalize("NFC", start + part)
            if left or len(both) > 1:
                read.write(start + left)
                both = part
            start = both
    return read.getvalue()


def with_places(text: str) -> tuple[str, NDArray[np.int64], NDArray[np.int64]]:
    """Return the normalised text, and where the original of each of its characters starts and stops.

    Returns:
        The M characters of the normalised text, and their starts (M,) and stops (M,) in the original: the characters
        from a up to b of the normalised text are those from ``starts[a]`` up to ``stops[b - 1]`` of the original.
    """
    if _PLAIN.fullmatch(text):
        starts = np.arange(len(text))
        return text, starts, starts + 1
    parts = [_READINGS[ord(character)] for part in in_pieces(well_formed(text)) for character in part]
    read = "".join(_in_context("".join(parts)))
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    parts = [read[start:end].replace(_REMOVED, "") for start, end in pairwise(ends)]
    # Each group is a part and what NFC may compose with it; the last one is left over.
    composed, edges, group, start, stop = StringIO(), array("q"), list[str](), 0, 0
    for place, part in enumerate(timely([*parts, _REMOVED])):
        if part and group and not (_COMPOSING.match(part) or unicodedata.category(part[0]).startswith("M")):
            edges.extend((composed.write(_composed("".join(group))), start, stop))
            group = []
        if part:
            start, stop = start if group else place, place + 1
            group.append(part)
    counts, starts, stops = np.array(edges, np.int64).reshape(-1, 3).T
    return composed.getvalue(), np.repeat(starts, counts), np.repeat(stops, counts)


class Word(NamedTuple):
    """A word in its indexed form, and where it starts and stops in the text, in characters."""

    word: str
    start: int
    stop: int


def _read_words(read: str) -> Iterator[tuple[Word, bool]]:
    """Yield the words of a normalised text, and with True, further words by which a search finds it."""
    cut: Word | None = None
    words = _WORD_OR_RUN.finditer(read)
    for found in timely(words) if len(read) > CHARACTERS_AT_ONCE else words:
        start, stop = found.span()
        before, cut = cut, None
        if paired := found["paired"]:
            for at, character in enumerate(timely(paired), start):
                if at == start or at + 1 < stop:
                    yield Word(read[at : min(at + 2, stop)], at, min(at + 2, stop)), False
                if len(paired) > 1:
                    yield Word(character, at, at + 1), True
        elif net := found["net"]:
            yield Word(f"dot{net}", start, stop), False
            yield Word(net, start + 1, stop), True
        elif sharp := found["sharp"]:
            yield Word(f"{sharp}sharp", start, stop), False
        elif word := found["word"]:
            word, plus = word.translate(FOLDED), found["plus"]
            whole = Word(word, start, found.end("word"))
            now = Word(f"{word}plusplus", start, found.end("plus")) if plus else whole
            yield now, False
            if plus and len(word) > 1:
                yield whole, True
            elif not plus and before is not None and word[0].islower():
                yield Word(before.word + word, before.start, found.end("word")), True
            cut = now if found["cut"] and not word[-1].isdigit() else None
        else:
            require_time()


def is_indexed_as_written(read: str) -> bool:
    """Return whether full text surely indexes a normalised text by its words alone; takes a tenth of reading them."""
    return not any(
        "++" in part
        or ("#" in part and _SHARP.search(part))
        or ".net" in part.lower()
        or not (part.isascii() or _UNUSUAL.search(part) is None)
        or ("\n" in part and _CUT.search(part))
        or max(map(len, part.split()), default=0) > LONGEST_WORD
        for part in (in_pieces(read, _SPACE_ENDS) if len(read) > CHARACTERS_AT_ONCE else [read])
    )


def indexed(text: str) -> str:
    """Return ``text`` as full text indexes it: its words, then further words by which searches find it."""
    read = normalised(text)
    if is_indexed_as_written(read):
        return read
    words, further = StringIO(), StringIO()
    for (word, _, _), is_further in _read_words(read):
        (further if is_further else words).write(f"{word} ")
    return (words.getvalue() + further.getvalue())[:-1]


def words(text: str) -> list[str]:
    """Return the words of a query in the form in which texts are indexed."""
    return [word for (word, _, _), is_further in _read_words(normalised(text)) if not is_further]


def placed_words(text: str) -> Iterator[Word]:
    """Yield the words by which searches find a text, with their places in it."""
    read, starts, stops = with_places(text)
    for (word, start, stop), _ in _read_words(read):
        yield Word(word, int(starts[start]), int(stops[stop - 1]))
