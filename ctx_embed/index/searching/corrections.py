"""Words as people type them: for a query word that the index lacks, the nearest word that it has.

Distances are in edits: a letter inserted, deleted, replaced or swapped with the next one. Words are compared by their
stems, as the full-text index holds no others, or else as passages write them. They must have the same first letter,
which few people mistype. Words that the index lacks and the model knows are no typos.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ctx_embed.errors import OtherModelError
from ctx_embed.index.searching.bm25 import MOST_WORDS, content_words, tokens_of, without_phrases
from ctx_embed.index.storage.database import require_time
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.vectors import Vectors
from ctx_embed.text.words import words as words_of

if TYPE_CHECKING:
    from ctx_embed.index.model import IndexModel

# Words and stems of at least this many letters are corrected, by one edit; from LONG letters on, by up to two.
SHORTEST, LONG = 4, 8
# Longer words are none that people type.
LONGEST = 40
# Maximum number of corrected words in a query: a pasted text in another language has no typos.
MOST_CORRECTED = 8
# The letters of an ending that stems lack, and the stems whose words are looked up in passages.
LONGEST_ENDING, MOST_TRIED = 4, 5
# Maximum number of words whose corrections are cached.
REMEMBERED_WORDS = 100_000
_LETTERS = re.compile(r"[^\W\d_]+")


def respelled(query: str, corrected: Mapping[str, str] | None) -> str:
    """Return a query with its corrected words in place of those that were typed."""
    if not corrected:
        return query
    return re.sub(r"[^\W_]+", lambda word: corrected.get(word[0], word[0]), query)


class Corrections:
    """The words of one generation of an index, read when a query has one that the index lacks.

    Args:
        documents: the documents; call the methods inside the transaction of the generation.
        model: returns the model of the index, which knows words that are no typos, and embeds corrected queries.
    """

    def __init__(self, documents: DocumentStore, model: Callable[[], IndexModel]) -> None:
        self.documents = documents
        self.model = model
        # For each word, its correction, or None if the index has it or nothing like it.
        self._corrected: dict[str, str | None] = {}
        # For each first letter, the tokens that begin with it and their numbers of passages.
        self._tokens: dict[str, dict[str, int]] = {}

    def take_over(self, before: Corrections, added: Iterable[Sequence[str]]) -> None:
        """Take over what an earlier generation found, given the tokens of each passage added since."""
        self._tokens = {letter: dict(tokens) for letter, tokens in before._tokens.items()}
        new: set[str] = set()
        for token in (token for tokens in added for token in set(tokens) if _LETTERS.fullmatch(token)):
            known = self._tokens.get(token[0], {})
            if token not in known:
                new.add(token[0])
            if token[0] in self._tokens:
                known[token] = known.get(token, 0) + 1
        # A word may be nearer to a new one.
        self._corrected = {word: other for word, other in before._corrected.items() if word[0] not in new}

    def of(self, query: str) -> dict[str, str]:
        """Return the corrections of a query's words, by the words as typed.

        Words that the index has, words with digits and quoted phrases stay as they are.
        """
        if len(self._corrected) > REMEMBERED_WORDS:
            self._corrected.clear()
        words = dict.fromkeys(content_words(without_phrases(query)))
        corrected: dict[str, str] = {}
        for word in list(words)[:MOST_WORDS]:
            # Words in capitals are names and abbreviations; others than those typed stand for signs.
            skipped = (
                not SHORTEST <= len(word) <= LONGEST
                or not _LETTERS.fullmatch(word)
                or word.isupper()
                or word not in query
            )
            if skipped or len(corrected) == MOST_CORRECTED:
                continue
            require_time()
            key = word.lower()
            if key not in self._corrected:
                known = self._is_known(key) or self._is_word(key)
                self._corrected[key] = None if known else self._nearest(key)
            if nearest := self._corrected[key]:
                corrected[word] = nearest
        return corrected

    def embedded(self, texts: Sequence[str], corrected: Sequence[Mapping[str, str]], vectors: Vectors) -> Vectors:
        """Return the unit vectors (Q, dimension) of queries; those with corrected words are embedded again."""
        changed = [place for place, words in enumerate(corrected) if words]
        with suppress(OtherModelError):
            if changed:
                vectors = vectors.copy()
                vectors[changed] = self.model().queries([texts[place] for place in changed])
        return vectors

    def _is_word(self, word: str) -> bool:
        # An index of another default model is searched by words alone, without a model.
        with suppress(OtherModelError):
            return self.model().knows(word)
        return False

    def _is_known(self, word: str) -> bool:
        with self.documents.reporting_errors():
            found = self.documents.connection.execute(
                "SELECT 1 FROM words WHERE words MATCH ? LIMIT 1", (f'"{word}"',)
            ).fetchone()
        return found is not None

    def _nearest(self, word: str) -> str | None:
        """Return the word of the index with the fewest edits, among equals the one in most passages."""
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        (tokens,) = tokens_of([word])
        if len(tokens) != 1:
            return None
        passages = self._starting_with(tokens[0][0])
        known = list(passages)
        edits = 1 if len(word) < LONG else 2

        def nearest(stem: str) -> list[str]:
            """Return the tokens within the number of edits for a stem, the nearest and most frequent first."""
            edits = 0 if len(stem) < SHORTEST else 1 if len(stem) < LONG else 2
            found = process.extract(stem, known, scorer=OSA.distance, processor=None, score_cutoff=edits, limit=None)
            return [token for token, *_ in sorted(found, key=lambda match: (match[1], -passages[match[0]], match[0]))]

        if found := nearest(tokens[0]):
            return self._written(found[0])
        # A mistyped ending is not cut off: "hosptial" stays whole, where "hospital" has the stem "hospit".
        cut = dict.fromkeys(
            token for end in range(1, LONGEST_ENDING + 1) for token in nearest(word[:-end])[:MOST_TRIED]
        )
        written = (self._written(token) for token in list(cut)[:MOST_TRIED])
        return next((other for other in written if OSA.distance(word, other) <= edits), None)

    def _starting_with(self, letter: str) -> dict[str, int]:
        """Return the tokens that begin with a letter and have no digits, and their numbers of passages."""
        if letter not in self._tokens:
            with self.documents.reporting_errors():
                connection = self.documents.connection
                # The table is dropped with the transaction.
                connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.counts USING fts5vocab(main, words, row)")
                # FTS5 cuts a long token, perhaps inside a character.
                rows = connection.execute(
                    "SELECT CAST(term AS BLOB), doc FROM temp.counts WHERE term >= ? AND term < ?",
                    (letter, chr(ord(letter) + 1)),
                ).fetchall()
            terms = ((term.decode("utf-8", "ignore"), count) for term, count in rows)
            self._tokens[letter] = {term: count for term, count in terms if _LETTERS.fullmatch(term)}
        return self._tokens[letter]

    def _written(self, token: str) -> str:
        """Return a token as the first passage with it writes it, since a stem is no word."""
        with self.documents.reporting_errors():
            connection = self.documents.connection
            connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.tokens USING fts5vocab(main, words, instance)")
            (row,) = connection.execute("SELECT doc FROM temp.tokens WHERE term = ? LIMIT 1", (token,)).fetchone()
        words = list(dict.fromkeys(word.lower() for word in words_of(self.documents.fetch([row])[row].text)))
        return next((word for word, of in zip(words, tokens_of(words), strict=True) if of == [token]), token)
