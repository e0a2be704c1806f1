"""Unicode for JavaScript: what Python, the tokenizer and SQLite do with each character, as tables.

A browser's Unicode may be older or newer than theirs, and then a text would get other words there than in the index.
So :func:`tables` asks all three about every character, and :mod:`ctx_embed.text.normalisation` for its patterns.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any

from tokenizers import Tokenizer

from ctx_embed.text import normalisation

# The codes to ask about: beyond ASCII up to the last plane of letters but for lone surrogates, and the tags. No other
# one has ever had a meaning of its own; REST is one of them, and stands for all.
_CODES = (range(0x80, 0xD800), range(0xE000, 0x34000), range(0xE0000, 0xE1000))
_REST, _AROUND = "\U00040000", "\\u{34000}-\\u{dffff}\\u{e1000}-\\u{10ffff}"
# Syllables that Unicode composes by a formula; their parts are no more to a tokenizer than they are.
_HANGUL = range(0xAC00, 0xD7A4)
_SEPARATOR = "|"
# Letters and digits, for texts that need no tables.
ASCII_WORDS = [character for character in map(chr, range(0x80)) if character.isalnum()]


def ranges(characters: Iterable[str]) -> str:
    """Return some characters as what stands between the brackets of a class in JavaScript's patterns."""
    runs: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(f"\\u{{{first:x}}}" + (f"-\\u{{{last:x}}}" if last > first else "") for first, last in runs)


def patterns(words: Collection[str]) -> dict[str, str]:
    """Return the patterns of :mod:`ctx_embed.text.normalisation` for JavaScript, in which only these are letters."""
    paired = normalisation._PAIRED
    is_paired = re.compile(f"[{paired}]").match
    letters = [character for character in words if not character.isdecimal()]
    classes = {
        rf"[^\W_{paired}]": f"[{ranges(character for character in words if not is_paired(character))}]",
        r"[^\W\d_]": f"[{ranges(letters)}]",
        r"[^\W_]": f"[{ranges(words)}]",
        r"[\w.]": f"[{ranges([*words, '_', '.'])}]",
        r"\w": f"[{ranges([*words, '_'])}]",
        "(?P<": "(?<",
    }
    written = {"context": normalisation.CONTEXT.pattern, "word": normalisation._WORD}
    for ours, theirs in classes.items():
        written = {name: pattern.replace(ours, theirs) for name, pattern in written.items()}
    return written


def _folded(words: Collection[str]) -> dict[str, str | None]:
    """Return what SQLite makes of each letter or digit inside a word; None: it separates words there."""
    with sqlite3.connect(":memory:") as store:
        store.execute("CREATE VIRTUAL TABLE words USING fts5(text, tokenize='unicode61 remove_diacritics 2')")
        store.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(words, instance)")
        store.execute("INSERT INTO words VALUES (?)", (" ".join(f"x{character}x" for character in words),))
        tokens = [token for (token,) in store.execute('SELECT term FROM tokens ORDER BY "offset"')]
    folded: dict[str, str | None] = {}
    place = 0
    for character in words:
        is_one = len(tokens[place]) > 1
        folded[character] = tokens[place][1:-1] if is_one else None
        place += 1 if is_one else 2
    return folded


def _of_tokenizer(tokenizer: Tokenizer, characters: list[str]) -> dict[str, str]:
    """Return what the tokenizer reads of each character, with spaces around signs that are tokens of their own."""
    joined = _SEPARATOR.join(unicodedata.normalize("NFC", character) for character in characters)
    read = dict(zip(characters, tokenizer.normalizer.normalize_str(joined).split(_SEPARATOR), strict=True))
    some = sorted({part for text in read.values() for part in text if part > "\x7f"})
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(" ".join(f"x{part}x" for part in some))]
    wholes, place = {}, 0
    for part in some:
        is_one = len(pieces[place]) > 1
        wholes[ord(part)] = part if is_one else f" {part} " if pieces[place + 1] == part else " "
        place += 1 if is_one else 3 if pieces[place + 1] == part else 2
    return {character: text.translate(wholes) for character, text in read.items()}


def _changes(read: dict[str, str]) -> list[Any]:
    """Return the characters that are read as something else, in one string, and what each is read as."""
    changed = {character: text for character, text in read.items() if text != character}
    return ["".join(changed), list(changed.values())]


def tables(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tables as JSON values; the names are those that ``text.js`` reads."""
    every = [chr(code) for codes in _CODES for code in codes]
    category = {character: unicodedata.category(character) for character in every}
    words = [*ASCII_WORDS, *(character for character in every if character.isalnum())]
    folded = _folded([character for character in words if character > "\x7f"])
    of_tokenizer = _of_tokenizer(tokenizer, [character for character in every if ord(character) not in _HANGUL])
    rest = tokenizer.normalizer.normalize_str(_REST)
    parts = {character: unicodedata.decomposition(character) for character in every}
    canonical = {
        character: "".join(chr(int(code, 16)) for code in codes.split())
        for character, codes in parts.items()
        if codes and not codes.startswith("<")
    }
    combining: dict[int, list[str]] = {}
    for character in every:
        if number := unicodedata.combining(character):
            combining.setdefault(number, []).append(character)
    return {
        **patterns(words),
        "letters": ranges(character for character in every if category[character][0] in "LM"),
        "invisible": ranges(character for character in every if category[character] == "Cf"),
        "read": _changes({c: normalisation._read(c) for c in every if not normalisation._PLAIN.fullmatch(c)}),
        "decomposed": _changes(canonical),
        "composed": "".join(c for c, d in canonical.items() if len(d) == 2 and unicodedata.normalize("NFC", d) == c),
        "combining": [[number, ranges(codes)] for number, codes in combining.items()],
        "strokes": _changes({chr(code): str(text) for code, text in normalisation.FOLDED.items()}),
        "folded": _changes({character: " " if text is None else text for character, text in folded.items()}),
        "apart": ranges(c for c, text in of_tokenizer.items() if text == f" {c} "),
        "removed": ranges(c for c, text in of_tokenizer.items() if not text) + _AROUND * (not rest),
        "tokenized": _changes({c: text for c, text in of_tokenizer.items() if text and text != f" {c} "}),
    }
