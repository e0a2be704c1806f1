"""Keyword search: SQLite's full-text index with BM25, and snippets with the matching words marked."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing

from ctx_embed.index.searching.postings import WordLists
from ctx_embed.index.storage.database import TOKENIZER
from ctx_embed.index.storage.documents import DocumentStore, Mask
from ctx_embed.texts import well_formed

_WORD = re.compile(r"[^\W_]+")
# Quotation marks around a phrase stand at the edges of words; others are punctuation.
_PHRASE = re.compile(r'(?<!\S)["\u201c]([^"\u201c\u201d]+)["\u201d](?!\w)')
# The most distinct words of a query that are searched for; SQLite limits the size of an expression.
MOST_WORDS = 256
# In a large index, words that occur in more than this share of the passages say little and cost the most; skip them.
COMMON_PART = 0.05
LARGE = 20_000
# English function words, which a snippet does not mark.
_FUNCTION_WORDS = """
a about an and any are as at be been but by can could did do does for from had has have he her him his how i if in into
is it its me my no not of on one or our over s she should so some t than that the their them then there these they this
those to under up us was we were what when where which who whom whose why will with would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
REMEMBERED_TERMS = 100_000
SNIPPET_WORDS = 24
_BEGINNING = re.compile(rf"\s*(?:\S+\s*){{1,{SNIPPET_WORDS}}}")


def expression(query: str) -> str:
    """Return an FTS5 expression that matches any word of a query; words are quoted, so none is an operator.

    It is empty if the query has no words.
    """
    words = dict.fromkeys(word.lower() for word in _WORD.findall(well_formed(query)))
    return " OR ".join(f'"{word}"' for word in list(words)[:MOST_WORDS])


def phrases(query: str) -> list[str]:
    """Return the quoted phrases of a query as strings of FTS5; passages must have the words of each in its order."""
    found = (_WORD.findall(phrase.lower()) for phrase in _PHRASE.findall(well_formed(query)))
    return [f'"{" ".join(words)}"' for words in found if words][:MOST_WORDS]


def rows_with_phrases(store: DocumentStore, query: str) -> list[int]:
    """Return the rows of the passages that have all quoted phrases of a query, which has at least one."""
    with store.reporting_errors():
        found = store.connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (" AND ".join(phrases(query)),))
        return [row for (row,) in found]


def _content_words(query: str) -> list[str]:
    """Return the words of a query without English function words, or all words if there are no others."""
    words = _WORD.findall(well_formed(query))
    return [word for word in words if word.lower() not in FUNCTION_WORDS] or words


def search_words(store: DocumentStore, query: str, k: int, rows: int, allowed: Mask | None) -> list[int]:
    """Return the rows of the k best passages by BM25, best first; passages without any of the words are not found.

    Passages without a quoted phrase of the query are not found either.

    Args:
        store: inside :meth:`Database.reading`.
        query: any text.
        k: at least 1.
        rows: the number of rows in the index; in a large one, common words are skipped.
        allowed: which rows may be found, (rows,); None allows all that are not deleted.
    """
    terms = expression(query).split(" OR ")
    if rows > LARGE and len(terms) > 1:
        terms = _rare(store, terms, rows) or terms
    if terms == [""]:
        return []
    match = " OR ".join(terms)
    if required := phrases(query):
        # The phrases are also among the alternatives: beside them, no other word must occur.
        match = f"{' AND '.join(required)} AND ({' OR '.join([*terms, *required])})"
    elif rows > LARGE:
        # Reading the lengths of all passages pays from the second search on.
        store.word_searches += 1
        if store.word_searches > 1:
            store.word_lists = store.word_lists or WordLists(store)
            best: list[int] | None = store.word_lists.best([term.strip('"') for term in terms], k, allowed)
            if best is not None:
                return best
    condition = "" if allowed is None else "AND allowed(rowid)"
    with store.reporting_errors():
        if allowed is not None:
            store.connection.create_function("allowed", 1, lambda row: bool(allowed[row]))
        found = store.connection.execute(
            f"SELECT rowid FROM words WHERE words MATCH ? {condition} ORDER BY rank, rowid LIMIT ?",
            (match, k),
        )
        return [row for (row,) in found]


def _rare(store: DocumentStore, terms: list[str], rows: int) -> list[str]:
    """Return the terms that occur in fewer than :data:`COMMON_PART` of all passages; counts are cached."""
    most = int(COMMON_PART * rows)
    if store.common_words[0] != rows:
        store.common_words = (rows, {})
    known = store.common_words[1]
    count = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
    for term in terms:
        if term not in known and len(known) < REMEMBERED_TERMS:
            with store.reporting_errors():
                known[term] = store.connection.execute(count, (term, most)).fetchone()[0] == most
    return [term for term in terms if not known.get(term, False)]


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
    terms = expression(" ".join(_content_words(query)))
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
