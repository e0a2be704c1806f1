"""BM25 over passages that are read once: only counts of the question's words are stored.

The words are those of SQLite's full-text index, as in an index's own search. The length of a passage is its number of
characters, which needs no counting of words.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.index.searching.by_words import K1, LEAST_WEIGHT, MOST_WORDS, B, content_words, phrases
from ctx_embed.index.storage.database import TOKENIZER
from ctx_embed.text.normalisation import indexed, is_indexed_as_written


class WordCounts:
    """Counts of a question's words in the passages so far.

    Args:
        question: any text; its function words do not count, unless it has no others.
    """

    def __init__(self, question: str) -> None:
        self.required = phrases(question)
        self.passages = self.characters = 0
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='{TOKENIZER}')")
        self._connection.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(words, instance)")
        words = list(dict.fromkeys(word.lower() for word in content_words(question)))[:MOST_WORDS]
        self._insert(enumerate(words))
        tokens = [token for (token,) in self._connection.execute("SELECT term FROM tokens")]
        # Two words with the same stem count twice.
        self._places = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
        self._asked = np.array(list(Counter(tokens).values()), np.float64)
        self._having = np.zeros(len(self._places))
        # Stems share all but their last letter with the words of a passage.
        self._starts = [token[:-1] or token for token in self._places]
        if self.required:
            self._starts += [word[0] for phrase in self.required for word in phrase.strip('"').split()]

    def count(self, texts: Sequence[str]) -> tuple[list[int], NDArray[Any]]:
        """Count the words in more passages.

        Returns:
            The places of the passages with a word and all quoted phrases of the question, and how often they have each
            word (places, words).
        """
        self.passages += len(texts)
        self.characters += sum(map(len, texts))
        rows = []
        for row, text in enumerate(texts):
            lowered = text.lower()
            # Reading a passage as SQLite does takes 20 times as long as this. Other words than those written may be
            # indexed: without accents, joined at line ends, by another name.
            as_written = lowered.isascii() and is_indexed_as_written(lowered)
            if not as_written or any(start in lowered for start in self._starts):
                rows.append((row, indexed(text)))
        if not rows:
            return [], np.empty((0, len(self._places)))
        self._insert(rows)
        counts = np.zeros((len(texts), len(self._places)))
        marks = ",".join("?" * len(self._places))
        select = f"SELECT doc, term, count(*) FROM tokens WHERE term IN ({marks}) GROUP BY doc, term"
        for row, token, number in self._connection.execute(select, list(self._places)):
            counts[row, self._places[token]] = number
        self._having += (counts > 0).sum(0)
        found = np.flatnonzero(counts.any(1))
        if self.required:
            select = "SELECT rowid FROM words WHERE words MATCH ?"
            matching = self._connection.execute(select, (" AND ".join(self.required),))
            found = np.array(sorted(row for (row,) in matching), np.int64)
        return found.tolist(), counts[found]

    def scores(self, counts: NDArray[Any], lengths: Sequence[int]) -> NDArray[Any]:
        """Return the BM25 scores (n,) of n passages, by the counts of all passages so far.

        Args:
            counts: how often they have each word (n, words).
            lengths: their numbers of characters.
        """
        norms = K1 * (1 - B + B * np.array(lengths) * self.passages / max(self.characters, 1))
        weights = np.log((self.passages - self._having + 0.5) / (self._having + 0.5))
        asked = self._asked * np.maximum(weights, LEAST_WEIGHT)
        scores: NDArray[Any] = (asked * counts * (K1 + 1) / (counts + norms[:, None])).sum(1)
        return scores

    def _insert(self, rows: Any) -> None:
        self._connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
