"""Keyword search: BM25 over SQLite's full-text index, computed by FTS5 or, in large indexes, in NumPy.

The score of a passage is the sum, over the query's words w that it has, of

    idf(w) * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / average length))
    idf(w) = log((N - n + 0.5) / (n + 0.5))

for tf occurrences of w in the passage and n of N passages with w. FTS5 scores passages one by one and looks up the
length of each in a table. :class:`WordLists` holds all lengths in an array and the lists of words that searches have
used, so that a query adds up arrays: the same scores in a fraction of the time.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009); sqlite.org/fts5.html.
"""

from __future__ import annotations

import math
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.index.storage.database import TOKENIZER
from ctx_embed.text.normalisation import normalised
from ctx_embed.text.words import words as words_of

if TYPE_CHECKING:
    from ctx_embed.index.view import Mask, View

# The positions (n,) that have a word, and how often each has it (n,).
Postings: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]

# English function words, which say nothing of what a passage is about.
_FUNCTION_WORDS = """
a about an and any are as at be been but by can could did do does for from had has have he her him his how i if in into
is it its me my no not of on one or our over s she should so some t than that the their them then there these they this
those to under up us was we were what when where which who whom whose why will with would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
# Quotation marks enclose a phrase only at the edges of words; all others are punctuation.
_PHRASE = re.compile(r'(?<!\S)["\u201c]([^"\u201c\u201d]+)["\u201d](?!\w)')
_MARKS = re.compile('["\u201c\u201d]')
# Maximum number of distinct query words to search for; SQLite limits the size of an expression.
MOST_WORDS = 256
# An index with more than this number of passages is large. In a large index, words that occur in more than this share
# of the passages are left out, since they say little and take the most time.
LARGE, COMMON_PART = 20_000, 0.05
REMEMBERED_TERMS = 100_000
# FTS5's parameters; LEAST_IDF is the weight of words in more than half of all passages.
K1, B, LEAST_WEIGHT = 1.2, 0.75, 1e-6
# Maximum total number of rows in the lists held in memory; a row takes 16 bytes.
KEPT_POSTINGS = 8_000_000
REMEMBERED_TOKENS = 100_000
LENGTHS_AT_ONCE = 200_000


def content_words(query: str) -> list[str]:
    """Return the words of a query without English function words, or all words if there are no others."""
    words = words_of(query)
    return [word for word in words if word.lower() not in FUNCTION_WORDS] or words


def expression(query: str) -> str:
    """Return an FTS5 expression that matches any word of a query; words are quoted, so none is an operator.

    It is empty if the query has no words.
    """
    words = dict.fromkeys(word.lower() for word in words_of(query))
    return " OR ".join(f'"{word}"' for word in list(words)[:MOST_WORDS])


def phrases(query: str) -> list[str]:
    """Return the quoted phrases of a query, of two words or more, as FTS5 strings; a passage must contain each one."""
    found = (words_of(phrase.lower()) for phrase in _PHRASE.findall(normalised(query)))
    return [f'"{" ".join(words)}"' for words in found if len(words) > 1][:MOST_WORDS]


def without_phrases(query: str) -> str:
    """Return a query without its quoted phrases."""
    return _PHRASE.sub(" ", normalised(query))


def without_marks(text: str) -> str:
    """Return a text without quotation marks."""
    return _MARKS.sub(" ", normalised(text))


class _Tokenizer(threading.local):
    """An empty full-text index in memory, which takes longer to make than to use: each thread has its own."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, tokenize='{TOKENIZER}')")
        self.connection.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(words, instance)")


_TOKENIZER = _Tokenizer()


def tokens_of(words: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each word, as FTS5 makes them."""
    tokens: list[list[str]] = [[] for _ in words]
    connection = _TOKENIZER.connection
    # What an interrupted call has left.
    connection.rollback()
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(words))
    # FTS5 cuts a long token, perhaps inside a character.
    for place, token in connection.execute('SELECT doc, CAST(term AS BLOB) FROM tokens ORDER BY doc, "offset"'):
        tokens[place].append(token.decode("utf-8", "ignore"))
    connection.rollback()
    return tokens


class Bm25:
    """Keyword search in one generation of an index.

    Args:
        view: the generation; call the methods inside its transaction.
        before: the search in an earlier generation.
        large: the number of passages above which common words are left out and scores are computed in NumPy; None:
            :data:`LARGE`.
        common_part: the share of passages from which on a word is common.
        lists: the word lists; None makes them when a second search needs them.
    """

    def __init__(
        self,
        view: View,
        before: Bm25 | None = None,
        large: int | None = None,
        common_part: float = COMMON_PART,
        lists: WordLists | None = None,
    ) -> None:
        self.view = view
        self.database = view.store
        self.large: int = LARGE if large is None else large
        self.common_part: float = common_part if before is None else before.common_part
        self.lists = lists
        if before is not None and before.lists is not None:
            self.lists = WordLists(view, before.lists)
        self._searched: bool = self.lists is not None or (before is not None and before._searched)
        # The number of passages with each word, counted as far as needed, and one that it has by now at most.
        self._common: dict[str, tuple[int, int]] = {}
        if before is not None:
            added = view.state.next_row - before.view.state.next_row
            gone = before.view.count + added - view.count
            self._common = {word: (low - gone, high + added) for word, (low, high) in before._common.items()}

    def best(self, query: str, k: int, allowed: Mask | None) -> dict[int, float]:
        """Return the scores, by row, of the k best passages with a word and all phrases of the query.

        The best one is first; ties are in the order of rows. Scores are above 0.

        Args:
            query: any text.
            k: at least 1.
            allowed: which positions may be found; None allows all passages.
        """
        passages = self.view.count
        terms = expression(" ".join(content_words(query))).split(" OR ")
        if passages > self.large and len(terms) > 1:
            terms = self._rare(terms, passages) or terms
        if terms == [""]:
            return {}
        match = " OR ".join(terms)
        if required := phrases(query):
            # The phrases are also alternatives of the expression, as a passage may have no other word of the query.
            match = f"{' AND '.join(required)} AND ({' OR '.join([*terms, *required])})"
        elif passages > self.large:
            found = self._from_lists([term.strip('"') for term in terms], k, allowed)
            if found is not None:
                return found
        with self.database.reporting_errors():
            # FTS5's rank is the negative score.
            select = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
            ranked = self.database.connection.execute(select, (match, k if allowed is None else -1))
            if allowed is None:
                return dict(ranked)
            every = ranked.fetchall()
        places = self.view.positions(np.array([row for row, _ in every], np.int64))
        return dict(list(compress(every, allowed[places].tolist()))[:k])

    def without_missing_phrases(self, query: str) -> str:
        """Return a query without its quotation marks if no passage has all of its phrases.

        Questions in plain language quote words that passages need not have side by side.
        """
        required = phrases(query)
        if required:
            with self.database.reporting_errors():
                found = self.database.connection.execute(
                    "SELECT 1 FROM words WHERE words MATCH ? LIMIT 1", (" AND ".join(required),)
                ).fetchone()
            if found is None:
                # All marks: those that are left would pair up anew.
                return without_marks(query)
        return query

    def with_phrases(self, query: str) -> Mask:
        """Return a mask of the positions of passages that contain every quoted phrase of a query; it must have one."""
        mask = np.zeros(len(self.view.rows), bool)
        with self.database.reporting_errors():
            match = " AND ".join(phrases(query))
            found = self.database.connection.execute("SELECT rowid FROM words WHERE words MATCH ?", (match,)).fetchall()
        mask[self.view.positions(np.array([row for (row,) in found], np.int64))] = True
        return mask

    def _from_lists(self, words: list[str], k: int, allowed: Mask | None) -> dict[int, float] | None:
        """Return the best rows, from the second search on: reading all lengths is too slow for a single search."""
        if not self._searched:
            self._searched = True
            return None
        self.lists = self.lists or WordLists(self.view)
        return self.lists.best(words, k, allowed)

    def _rare(self, terms: list[str], passages: int) -> list[str]:
        """Return the terms that are not common; the answers are cached."""
        most = int(self.common_part * passages)
        # A later generation need not count again words that are far from common, or far more so.
        counted = most + max(most // 10, 1)
        count = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
        rare = []
        for term in terms:
            low, high = self._common.get(term, (0, passages))
            if low < most <= high:
                with self.database.reporting_errors():
                    low = self.database.connection.execute(count, (term, counted)).fetchone()[0]
                high = low if low < counted else passages
                if len(self._common) < REMEMBERED_TERMS:
                    self._common[term] = low, high
            if low < most:
                rare.append(term)
        return rare


class WordLists:
    """The part of a full-text index that searches have used, in memory, for one generation of an index.

    Args:
        view: the generation.
        before: the lists of an earlier generation.
        kept_postings: the maximum number of positions in all lists that stay in memory.
        lengths_at_once: the number of rows whose lengths are read in one query.
    """

    def __init__(
        self,
        view: View,
        before: WordLists | None = None,
        kept_postings: int = KEPT_POSTINGS,
        lengths_at_once: int = LENGTHS_AT_ONCE,
    ) -> None:
        self.view = view
        self.database = view.store
        self.kept_postings: int = kept_postings if before is None else before.kept_postings
        self.lengths_at_once = lengths_at_once
        self._known_lengths: NDArray[np.int32] = np.empty(0, np.int32) if before is None else before._known_lengths
        self._known_stop: int = 0 if before is None else before._known_stop
        self._tokens: dict[str, list[str]] = {} if before is None else before._tokens
        # K1 * (1 - B + B * length / average length) for each position.
        self._norms: NDArray[Any] | None = None
        self._scores: NDArray[np.float64] = np.zeros(len(view.rows))
        self._passages = 0
        self._lists: dict[str, Postings] = {}
        self._kept = 0
        if before is not None and (added := view.new_tokens(before.view)) is not None:
            self._lists, self._kept = dict(before._lists), before._kept
            for position, tokens in added.items():
                for token, count in Counter(tokens).items():
                    if token in self._lists:
                        places, counts = self._lists[token]
                        self._lists[token] = np.append(places, position), np.append(counts, count)
                        self._kept += 1

    def best(self, words: Sequence[str], k: int, allowed: Mask | None) -> dict[int, float] | None:
        """Return the BM25 scores, by row, of the k best passages for any of the words, best first; ties by row.

        Args:
            words: lower-case words; each of them counts, even if two have the same stem.
            k: at least 1.
            allowed: which positions may be found; None allows all.

        Returns:
            None if FTS5 splits a word into several tokens.
        """
        tokens = self._tokens_of(words)
        if any(len(of) > 1 for of in tokens):
            return None
        if self._norms is None:
            self._read_lengths()
        lists = [self._added(*self._postings(of[0])) for of in tokens if of]
        for places, added in lists:
            np.add.at(self._scores, places, added)
        found = np.flatnonzero(self._scores >= self._bound([places for places, _ in lists], k, allowed))
        if allowed is not None:
            found = found[allowed[found]]
        scores = self._scores[found]
        self._scores.fill(0)
        if len(found) > k:
            chosen = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
            found, scores = found[chosen], scores[chosen]
        order = np.lexsort((found, -scores))[:k]
        return dict(zip(self.view.rows[found[order]].tolist(), scores[order].tolist(), strict=True))

    def _bound(self, lists: Sequence[NDArray[np.int64]], k: int, allowed: Mask | None) -> float:
        """Return a score above 0 that at least k places (or all with a word) reach: a short list's k-th best."""
        for places in sorted(lists, key=len):
            some = places if allowed is None or len(places) < k else places[allowed[places]]
            if len(some) >= k:
                return float(np.partition(self._scores[some], -k)[-k])
        return float(np.finfo(np.float64).tiny)

    def _tokens_of(self, words: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each word, as FTS5 makes them."""
        new = [word for word in dict.fromkeys(words) if word not in self._tokens]
        if new:
            if len(self._tokens) + len(new) > REMEMBERED_TOKENS:
                self._tokens.clear()
                new = list(dict.fromkeys(words))
            self._tokens |= zip(new, tokens_of(new), strict=True)
        return [self._tokens[word] for word in words]

    def _read_lengths(self) -> None:
        """Read the lengths of passages, those that an earlier generation has not read."""
        stop = self.view.state.next_row
        lengths = np.zeros(len(self.view.rows), np.int32)
        if len(self._known_lengths) <= len(lengths):
            lengths[: len(self._known_lengths)] = self._known_lengths
        else:
            self._known_stop = 0
        select = "SELECT group_concat(id), group_concat(hex(sz), '') FROM words_docsize WHERE id >= ? AND id < ?"
        for first in range(self._known_stop, stop, self.lengths_at_once):
            with self.database.reporting_errors():
                rows, sizes = self.database.connection.execute(select, (first, first + self.lengths_at_once)).fetchone()
            if rows is not None:
                places = self.view.positions(np.fromstring(rows, np.int64, sep=","))
                lengths[places] = varints(bytes.fromhex(sizes))
        self._known_lengths, self._known_stop = lengths, stop
        with self.database.reporting_errors():
            self._passages, tokens = totals(self.database.connection)
        average = tokens / max(self._passages, 1) or 1.0
        self._norms = K1 * (1 - B + B * lengths / average)

    def _postings(self, token: str) -> Postings:
        """Return the postings of a token, from memory or from the database."""
        # Lists are ordered by their last use, the most recent one last.
        postings = self._lists.pop(token, None)
        if postings is None:
            with self.database.reporting_errors():
                # The table is dropped with the transaction.
                self.database.connection.execute(
                    "CREATE VIRTUAL TABLE IF NOT EXISTS temp.tokens USING fts5vocab(main, words, instance)"
                )
                (rows,) = self.database.connection.execute(
                    "SELECT group_concat(doc) FROM temp.tokens WHERE term = ?", (token,)
                ).fetchone()
            every = np.fromstring(rows or "", np.int64, sep=",")
            first = np.flatnonzero(np.diff(every, prepend=-1))
            places = self.view.positions(every[first])
            postings = places, np.diff(first, append=len(every))
            self._kept += len(first)
        self._lists[token] = postings
        while self._kept > self.kept_postings and len(self._lists) > 1:
            self._kept -= len(self._lists.pop(next(iter(self._lists)))[0])
        return postings

    def _added(
        self, places: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the positions that documents still have, and the score that a word adds to each."""
        assert self._norms is not None
        if self.view.count < len(self.view.rows):
            there = self.view.live[places]
            places, counts = places[there], counts[there]
        hits = len(places)
        weight = math.log((self._passages - hits + 0.5) / (hits + 0.5)) if hits else 0.0
        weight = weight if weight > 0 else LEAST_WEIGHT
        # In FTS5's order of operations, so that rounding is the same.
        added: NDArray[np.float64] = weight * ((counts * (K1 + 1)) / (counts + self._norms[places]))
        return places, added


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of passages and of their words, as FTS5 records them."""
    found = connection.execute("SELECT block FROM words_data WHERE id = 1").fetchone()
    passages, words = (*varints(found[0] if found else b"").tolist(), 0, 0)[:2]
    return passages, words


def varints(content: bytes) -> NDArray[np.int64]:
    """Return the numbers in SQLite's variable-length format: seven bits a byte, the last byte of each below 128."""
    packed = np.frombuffer(content, np.uint8).astype(np.int64)
    ends = np.flatnonzero(packed < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    numbers = packed[ends]
    for back in range(1, int((ends - starts).max(initial=0)) + 1):
        longer = ends - starts >= back
        numbers[longer] += (packed[ends[longer] - back] & 127) << (7 * back)
    return numbers
