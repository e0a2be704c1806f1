"""The part of a passage that answers a query's words, with these marked."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing

from ctx_embed.index.searching.bm25 import content_words, expression
from ctx_embed.index.storage.database import TOKENIZER
from ctx_embed.texts import well_formed

SNIPPET_WORDS = 24
_BEGINNING = re.compile(rf"\s*(?:\S+\s*){{1,{SNIPPET_WORDS}}}")


def snippet(query: str, text: str, opening: str = "**", closing_mark: str = "**") -> str:
    """Return the part of a text that has the most words of a query, with these marked, or its start if it has none.

    Args:
        query: any text; its function words are ignored unless it has no others.
        text: the text of a document.
        opening: the mark before each matching word.
        closing_mark: the mark after it.
    """
    return snippets(query, [text], opening, closing_mark)[0]


def snippets(query: str, texts: Sequence[str], opening: str = "**", closing_mark: str = "**") -> list[str]:
    """Return the snippet of each text, see :func:`snippet`: of many texts in a tenth of the time."""
    terms = expression(" ".join(content_words(query)))
    found: dict[int, str] = {}
    if terms:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, tokenize='{TOKENIZER}')")
            rows = ((row, well_formed(text)) for row, text in enumerate(texts))
            connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
            select = "SELECT rowid, snippet(words, 0, ?, ?, '…', ?) FROM words WHERE words MATCH ?"
            found = dict(connection.execute(select, (opening, closing_mark, SNIPPET_WORDS, terms)))
    return [found[row] if row in found else _beginning(text) for row, text in enumerate(texts)]


def _beginning(text: str) -> str:
    beginning = _BEGINNING.match(text)
    return text if beginning is None or beginning.end() == len(text) else f"{beginning[0].rstrip()}…"
