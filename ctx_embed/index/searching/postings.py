"""BM25 in NumPy over the lists of SQLite's full-text index: FTS5's own scores in a fraction of its time.

FTS5 scores passages one by one and looks the length of each up in a table. Here the lengths of all passages are an
array, the lists of words are read once and kept while the index does not change, and a query adds up arrays.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.index.storage.database import TOKENIZER, State

if TYPE_CHECKING:
    from ctx_embed.index.storage.documents import DocumentStore, Mask

# The rows (n,) that have a word, and what it adds to the score of each.
Postings: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float64]]

# FTS5's parameters; a word in more than half of all passages gets its least weight.
K1, B, LEAST_WEIGHT = 1.2, 0.75, 1e-6
# The most rows in all lists that are kept, 12 bytes each.
KEPT_POSTINGS = 8_000_000
REMEMBERED_TOKENS = 100_000
LENGTHS_AT_ONCE = 200_000


class WordLists:
    """The full-text index of one store, as far as searches have used it.

    Args:
        store: the documents; call the methods inside :meth:`Database.reading`.
    """

    def __init__(self, store: DocumentStore) -> None:
        self.store = store
        self._state: State | None = None
        self._lengths: NDArray[np.int32] = np.empty(0, np.int32)
        # K1 (1 - B + B length / average length) of each row.
        self._norms: NDArray[Any] = np.empty(0)
        self._scores: NDArray[np.float64] = np.empty(0)
        self._passages = 0
        self._lists: dict[str, Postings] = {}
        self._kept = 0
        self._tokens: dict[str, list[str]] = {}

    def best(self, words: Sequence[str], k: int, allowed: Mask | None) -> list[int] | None:
        """Return the rows of the k best passages for any of the words by BM25, best first; ties by row.

        Args:
            words: lower-case words, each of which counts, even if two have the same stem.
            k: at least 1.
            allowed: which rows may be found, (rows,); None allows all.

        Returns:
            None if a word is more than one token to FTS5.
        """
        tokens = self._tokens_of(words)
        if any(len(of) > 1 for of in tokens):
            return None
        self._refresh()
        lists = [self._postings(of[0]) for of in tokens if of]
        for rows, added in lists:
            np.add.at(self._scores, rows, added)
        found = np.flatnonzero(self._scores >= self._bound([rows for rows, _ in lists], k, allowed))
        if allowed is not None:
            found = found[allowed[found]]
        scores = self._scores[found]
        self._scores.fill(0)
        if len(found) > k:
            chosen = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
            found, scores = found[chosen], scores[chosen]
        return [int(row) for row in found[np.lexsort((found, -scores))[:k]]]

    def _bound(self, lists: Sequence[NDArray[np.int32]], k: int, allowed: Mask | None) -> float:
        """Return a score above 0 that at least k rows reach, or all rows with a word: the k-th best of a short list."""
        for rows in sorted(lists, key=len):
            some = rows if allowed is None or len(rows) < k else rows[allowed[rows]]
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
            self._tokens |= {word: [] for word in new}
            with sqlite3.connect(":memory:") as connection:
                connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, tokenize='{TOKENIZER}')")
                connection.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(words, instance)")
                connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(new))
                for place, token in connection.execute('SELECT doc, term FROM tokens ORDER BY doc, "offset"'):
                    self._tokens[new[place]].append(token)
            connection.close()
        return [self._tokens[word] for word in words]

    def _refresh(self) -> None:
        """Bring the lengths up to date; the lists are read again when the index has changed."""
        state = self.store.state()
        if self._state == state:
            return
        if self._state is None or self._state.numbering != state.numbering:
            self._lengths = np.empty(0, np.int32)
        self._lists, self._kept = {}, 0
        self._lengths = np.concatenate([self._lengths, *self._new_lengths(len(self._lengths), state.rows)])
        self._passages, tokens = self._totals()
        average = tokens / max(self._passages, 1) or 1.0
        self._norms = K1 * (1 - B + B * self._lengths / average)
        self._scores = np.zeros(state.rows)
        self._state = state

    def _new_lengths(self, start: int, stop: int) -> Iterator[NDArray[np.int32]]:
        """Yield the lengths in words of the passages in the rows from ``start`` up to ``stop``; 0 for deleted ones."""
        select = "SELECT group_concat(id), group_concat(hex(sz), '') FROM words_docsize WHERE id >= ? AND id < ?"
        for first in range(start, stop, LENGTHS_AT_ONCE):
            last = min(first + LENGTHS_AT_ONCE, stop)
            lengths = np.zeros(last - first, np.int32)
            with self.store.reporting_errors():
                rows, sizes = self.store.connection.execute(select, (first, last)).fetchone()
            if rows is not None:
                lengths[np.fromstring(rows, np.int64, sep=",") - first] = _varints(bytes.fromhex(sizes))
            yield lengths

    def _totals(self) -> tuple[int, int]:
        """Return the number of passages and of their words, as FTS5 records them."""
        with self.store.reporting_errors():
            found = self.store.connection.execute("SELECT block FROM words_data WHERE id = 1").fetchone()
        passages, words = (*_varints(found[0] if found else b"").tolist(), 0, 0)[:2]
        return passages, words

    def _postings(self, token: str) -> Postings:
        """Return the list of a token, from memory or from the database."""
        # The list that was used last stands last.
        postings = self._lists.pop(token, None)
        if postings is None:
            with self.store.reporting_errors():
                # It vanishes with the transaction.
                self.store.connection.execute(
                    "CREATE VIRTUAL TABLE IF NOT EXISTS temp.tokens USING fts5vocab(main, words, instance)"
                )
                (rows,) = self.store.connection.execute(
                    "SELECT group_concat(doc) FROM temp.tokens WHERE term = ?", (token,)
                ).fetchone()
            every = np.fromstring(rows or "", np.int32, sep=",")
            first = np.flatnonzero(np.diff(every, prepend=-1))
            postings = every[first], self._added(every[first], np.diff(first, append=len(every)))
            self._kept += len(first)
        self._lists[token] = postings
        while self._kept > KEPT_POSTINGS and len(self._lists) > 1:
            self._kept -= len(self._lists.pop(next(iter(self._lists)))[0])
        return postings

    def _added(self, rows: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what a word adds to the score of each row, by how often the row has it."""
        hits = len(rows)
        weight = math.log((self._passages - hits + 0.5) / (hits + 0.5)) if hits else 0.0
        weight = weight if weight > 0 else LEAST_WEIGHT
        # In FTS5's order of operations, so that rounding is the same.
        added: NDArray[np.float64] = weight * ((counts * (K1 + 1)) / (counts + self._norms[rows]))
        return added


def _varints(content: bytes) -> NDArray[np.int64]:
    """Return the numbers in SQLite's variable-length format: seven bits a byte, the last byte of each below 128."""
    packed = np.frombuffer(content, np.uint8).astype(np.int64)
    ends = np.flatnonzero(packed < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    numbers = packed[ends]
    for back in range(1, int((ends - starts).max(initial=0)) + 1):
        longer = ends - starts >= back
        numbers[longer] += (packed[ends[longer] - back] & 127) << (7 * back)
    return numbers
