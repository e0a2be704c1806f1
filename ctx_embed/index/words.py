"""Search by words: BM25 over SQLite's full-text index, quoted phrases, and corrections of words that an index lacks.

The score of a passage is the sum, over the query's words w that it has, of

    idf(w) * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / average length))
    idf(w) = log((N - n + 0.5) / (n + 0.5))

for tf occurrences of w in the passage and n of N passages with w. FTS5 scores passages one by one and looks up the
length of each in a table. :class:`Bm25` holds all lengths in an array and the lists of words that searches have used,
so that a query adds up arrays: the same scores in a fraction of the time.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009); sqlite.org/fts5.html.
"""

from __future__ import annotations

import math
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.deadlines import in_pieces
from ctx_embed.errors import OtherModelError
from ctx_embed.index.database import TOKENIZER, Database
from ctx_embed.text.normalisation import indexed, normalised, words as words_of

if TYPE_CHECKING:
    from ctx_embed.index.folder import View
    from ctx_embed.index.vectors import Mask

# The positions (n,) that have a word, and how often each has it (n,).
Postings: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]

# English function words, which say nothing of what a passage is about.
_FUNCTION_WORDS = """
a about an and any are as at be been but by can could did do does for from had has have he her him his how i if in into
is it its me my no not of on one or our over s she should so some t than that the their them then there these they this
those to under up us was we were what when where which who whom whose why will with would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
# Quotation marks enclose words only at the edges of words; all others are punctuation.
_PHRASE = re.compile(r'(?<!\S)["\u201c]([^"\u201c\u201d]+)["\u201d](?!\w)')
_MARKS = re.compile('["\u201c\u201d]')
# In a longer query quotation marks require nothing: it is prose that quotes, pasted rather than typed.
MOST_TYPED = 32
# Characters of a query, and of the documents in `like`, whose words are searched for.
ASKED_CHARACTERS = 100_000
# Maximum number of distinct query words to search for; SQLite limits the size of an expression.
MOST_WORDS = 256
ANY_PASSAGE = "SELECT 1 FROM words WHERE words MATCH ? LIMIT 1"
# An index with more than this number of passages is large. In a large index, words that occur in more than this share
# of the passages are left out, since they say little and take the most time.
LARGE, COMMON_PART = 20_000, 0.05
# Maximum number of words whose counts, tokens and corrections are cached.
REMEMBERED_WORDS = 100_000
# FTS5's parameters; LEAST_WEIGHT is the weight of words in more than half of all passages.
K1, B, LEAST_WEIGHT = 1.2, 0.75, 1e-6
# Maximum total number of rows in the lists held in memory; a row takes 16 bytes.
KEPT_POSTINGS = 8_000_000
LENGTHS_AT_ONCE = 200_000
# Word lists are taken over from the last generation if at most this number of passages was added since.
MOST_TAKEN_OVER = 500

# Words and stems of at least this many letters are corrected, by one edit; from LONG letters on, by up to two. Nobody
# types longer words than LONGEST.
SHORTEST, LONG, LONGEST = 4, 8, 40
# Maximum number of corrected words in a query: a pasted text in another language has no typos.
MOST_CORRECTED = 8
# Number of letters by which a word may be longer than its stem, and of stems to look up in passages.
LONGEST_ENDING, MOST_TRIED = 4, 5
_LETTERS = re.compile(r"[^\W\d_]+")


class Asked(NamedTuple):
    """What a query asks for: words, without English function words unless there are no others, and phrases."""

    words: Sequence[str]
    # Those of the words that are in no phrase.
    loose: Sequence[str]
    # One or more quoted words each, as FTS5 strings; a passage must contain each phrase.
    phrases: Sequence[str]
    # Those of the words that are no function words because they are in capitals: IT, US, WHO.
    acronyms: Collection[str]


# Cached, because several steps of a search ask for the same query.
@lru_cache(maxsize=16)
def asked(query: str) -> Asked:
    """Return the words and phrases that a query asks for."""
    read = normalised(query[:ASKED_CHARACTERS])[:ASKED_CHARACTERS]
    every = words_of(read)
    acronyms = {word for word in every if len(word) > 1 and word.isupper() and word.lower() in FUNCTION_WORDS}
    if acronyms:
        # A line that is all in capitals says nothing of its words.
        acronyms &= {word for line in read.splitlines() if not line.isupper() for word in words_of(line)}

    def content(words: list[str]) -> list[str]:
        return [word for word in words if word in acronyms or word.lower() not in FUNCTION_WORDS] or words

    words = content(every)
    if not (quoted := _PHRASE.findall(read)) or len(every) > MOST_TYPED:
        return Asked(words, words, (), acronyms)
    phrases = [f'"{" ".join(phrase)}"' for phrase in (words_of(part.lower()) for part in quoted) if phrase]
    return Asked(words, content(words_of(_PHRASE.sub(" ", read))), phrases[:MOST_WORDS], acronyms)


def without_marks(text: str) -> str:
    """Return a text without quotation marks."""
    return "".join(_MARKS.sub(" ", part) for part in in_pieces(normalised(text)))


def respelled(query: str, corrected: Mapping[str, str] | None) -> str:
    """Return a query with its corrected words in place of those that were typed."""
    if not corrected:
        return query
    return re.sub(r"[^\W_]+", lambda word: corrected.get(word[0], word[0]), query)


# Each thread has an empty full-text index in memory, which takes longer to make than to use.
_local = threading.local()


def tokens_of(words: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each word, as FTS5 makes them."""
    tokens: list[list[str]] = [[] for _ in words]
    if not hasattr(_local, "tokenizer"):
        _local.tokenizer = sqlite3.connect(":memory:")
        _local.tokenizer.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, tokenize='{TOKENIZER}')")
        _local.tokenizer.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(words, instance)")
    connection: sqlite3.Connection = _local.tokenizer
    # Remove what an interrupted call has left behind.
    connection.rollback()
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(words))
    # FTS5 cuts a long token, perhaps inside a character.
    for place, token in connection.execute('SELECT doc, CAST(term AS BLOB) FROM tokens ORDER BY doc, "offset"'):
        tokens[place].append(token.decode("utf-8", "ignore"))
    connection.rollback()
    return tokens


def with_vocabulary(database: Database, name: str, kind: str) -> None:
    """Make a table of the tokens of all passages, which is dropped with the transaction."""
    database.run(f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{name} USING fts5vocab(main, words, {kind})")


class Bm25:
    """Search by words in a view, with corrections and the word lists that searches have used, also of ``before``."""

    def __init__(self, view: View, before: Bm25 | None = None) -> None:
        self.view = view
        self.corrections = Corrections(view.store)
        self._searched = False
        # For each word, a number of passages with it, counted as far as was needed, and the most that there can be now.
        self._common: dict[str, tuple[int, int]] = {}
        # The numbers of words of the passages at the first positions, as far as they are known.
        self._lengths: NDArray[np.int32] = np.empty(0, np.int32)
        self._kept = 0
        self._tokens: dict[str, list[str]] = {}
        self._scores: NDArray[np.float64] = np.zeros(len(view.rows))
        # Ordered by their last use, the most recent one last.
        self._lists: dict[str, Postings] = {}
        if before is not None:
            self._searched, self._tokens, self._lengths = before._searched, before._tokens, before._lengths
            added = view.state.next_row - before.view.state.next_row
            gone = before.view.count + added - view.count
            self._common = {word: (low - gone, high + added) for word, (low, high) in before._common.items()}
            first = len(before.view.rows)
            if before._lists and len(view.rows) - first <= MOST_TAKEN_OVER:
                self._lists, self._kept = dict(before._lists), before._kept
                new = first + np.flatnonzero(view.live[first:])
                passages = view.store.fetch(view.rows[new].tolist()).values()
                tokens = tokens_of([indexed(passage.text) for passage in passages])
                for position, of_passage in zip(new.tolist(), tokens, strict=True):
                    for token, count in Counter(of_passage).items():
                        if token in self._lists:
                            places, counts = self._lists[token]
                            self._lists[token] = np.append(places, position), np.append(counts, count)
                            self._kept += 1

    def best(self, query: str, k: int, allowed: Mask | None) -> dict[int, float]:
        """Return scores by row, best first, of the best k allowed passages with a word and all phrases of a query."""
        is_large = self.view.count > LARGE
        words = list(dict.fromkeys(word.lower() for word in asked(query).words))[:MOST_WORDS]
        if is_large and len(words) > 1:
            passages, rare = self.view.count, []
            most = int(COMMON_PART * passages)
            # Words that are far from the limit on either side need not be counted again in a later generation.
            counted = most + max(most // 10, 1)
            for word in words:
                low, high = self._common.get(word, (0, passages))
                if low < most <= high:
                    count = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
                    ((low,),) = self.view.store.run(count, (f'"{word}"', counted))
                    if len(self._common) < REMEMBERED_WORDS:
                        self._common[word] = low, low if low < counted else passages
                if low < most or word.upper() in asked(query).acronyms:
                    rare.append(word)
            words = rare or words
        if not words:
            return {}
        # Quotation marks keep words such as AND from being operators.
        terms = [f'"{word}"' for word in words]
        match = " OR ".join(terms)
        if required := asked(query).phrases:
            # A passage may have no word of the query but the phrases, so these are alternatives of the expression, too.
            match = f"{' AND '.join(required)} AND ({' OR '.join([*terms, *required])})"
        elif is_large and self._searched and (by_lists := self._best_by_lists(words, k, allowed)) is not None:
            return by_lists
        # Reading all lengths is too slow for a single search.
        self._searched = True
        # FTS5's rank is the negative score.
        select = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        ranked = self.view.store.run(select, (match, k if allowed is None else -1))
        if allowed is not None:
            places = self.view.positions(np.array([row for row, _ in ranked], np.int64))
            ranked = list(compress(ranked, allowed[places].tolist()))[:k]
        return dict(ranked)

    def _best_by_lists(self, words: Sequence[str], k: int, allowed: Mask | None) -> dict[int, float] | None:
        """Return the scores of :meth:`best` for any of some different words; None if FTS5 splits a word."""
        if len(self._tokens) > REMEMBERED_WORDS:
            self._tokens.clear()
        if new := [word for word in words if word not in self._tokens]:
            self._tokens |= zip(new, tokens_of(new), strict=True)
        tokens = [self._tokens[word] for word in words]
        if any(len(forms) > 1 for forms in tokens):
            return None
        passages, norms = self._norms
        # An interrupted search may have left scores behind.
        self._scores.fill(0)
        lists = []
        for token in (forms[0] for forms in tokens if forms):
            postings = self._lists.pop(token, None)
            if postings is None:
                with_vocabulary(self.view.store, "tokens", "instance")
                ((rows,),) = self.view.store.run("SELECT group_concat(doc) FROM temp.tokens WHERE term = ?", (token,))
                every = np.fromstring(rows or "", np.int64, sep=",")
                first = np.flatnonzero(np.diff(every, prepend=-1))
                postings = self.view.positions(every[first]), np.diff(first, append=len(every))
                self._kept += len(first)
            self._lists[token] = postings
            while self._kept > KEPT_POSTINGS and len(self._lists) > 1:
                self._kept -= len(self._lists.pop(next(iter(self._lists)))[0])
            places, counts = postings
            if self.view.count < len(self.view.rows):
                there = self.view.live[places]
                places, counts = places[there], counts[there]
            having = len(places)
            weight = math.log((passages - having + 0.5) / (having + 0.5)) if having else 0.0
            weight = weight if weight > 0 else LEAST_WEIGHT
            # Compute in FTS5's order of operations, so that rounding is the same.
            np.add.at(self._scores, places, weight * ((counts * (K1 + 1)) / (counts + norms[places])))
            lists.append(places)
        # The k-th best score in a short list: at least k places, or all with a word, reach it.
        bound = float(np.finfo(np.float64).tiny)
        for places in sorted(lists, key=len):
            some = places if allowed is None or len(places) < k else places[allowed[places]]
            if len(some) >= k:
                bound = float(np.partition(self._scores[some], -k)[-k])
                break
        positions = np.flatnonzero(self._scores >= bound)
        if allowed is not None:
            positions = positions[allowed[positions]]
        scores = self._scores[positions]
        if len(positions) > k:
            chosen = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
            positions, scores = positions[chosen], scores[chosen]
        order = np.lexsort((positions, -scores))[:k]
        return dict(zip(self.view.rows[positions[order]].tolist(), scores[order].tolist(), strict=True))

    @cached_property
    def _norms(self) -> tuple[int, NDArray[Any]]:
        """The number of passages, and K1 * (1 - B + B * length / average length) for each position."""
        view, stop, counted = self.view, self.view.state.next_row, len(self._lengths)
        first_new = int(view.rows[counted]) if counted < len(view.rows) else stop
        lengths = np.concatenate([self._lengths, np.zeros(len(view.rows) - counted, np.int32)])
        select = "SELECT group_concat(id), group_concat(hex(sz), '') FROM words_docsize WHERE id >= ? AND id < ?"
        for first in range(first_new, stop, LENGTHS_AT_ONCE):
            ((rows, sizes),) = view.store.run(select, (first, first + LENGTHS_AT_ONCE))
            if rows is not None:
                lengths[view.positions(np.fromstring(rows, np.int64, sep=","))] = varints(bytes.fromhex(sizes))
        self._lengths = lengths
        with view.store.reporting_errors():
            passages, words = totals(view.store.connection)
        average = words / max(passages, 1) or 1.0
        return passages, K1 * (1 - B + B * lengths / average)


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of passages and of their words, as FTS5 records them."""
    row = connection.execute("SELECT block FROM words_data WHERE id = 1").fetchone()
    passages, words = (*varints(row[0] if row else b"").tolist(), 0, 0)[:2]
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


@dataclass
class Corrections:
    """For query words that one generation of an index lacks, the nearest words that it has.

    Distances are in edits: a letter inserted, deleted, replaced or swapped with the next one. Words are compared by
    their stems, as the full-text index holds no others, or else as passages write them. They must have the same first
    letter, which few people mistype. Words with digits, and lower-case words that the model knows, are no typos.
    """

    store: Database
    # For each word, its correction, or None if the index has it or nothing like it.
    _corrected: dict[str, str | None] = field(default_factory=dict)
    # For each first letter, the tokens with it and the number of passages that have each.
    _tokens: dict[str, dict[str, int]] = field(default_factory=dict)

    def applied(self, query: str, is_known: Callable[[str], bool]) -> tuple[str, dict[str, str]]:
        """Return a query as it is searched for, and the corrections: of words outside of phrases, and of phrases."""
        if len(self._corrected) > REMEMBERED_WORDS:
            self._corrected.clear()
        # Questions in plain language quote words that passages need not have side by side. If no passage has all
        # phrases of a query, it goes without all of its marks: those that are left would pair up anew.
        corrected, quoted = dict[str, str](), asked(query).phrases
        if quoted and not self.store.run(ANY_PASSAGE, (" AND ".join(quoted),)):
            query = without_marks(query)
            corrected = {phrase: phrase.strip('"') for phrase in quoted}
        for word in list(dict.fromkeys(asked(query).loose))[:MOST_WORDS]:
            if not (SHORTEST <= len(word) <= LONGEST and _LETTERS.fullmatch(word)):
                continue
            # Words in capitals are names and abbreviations; others than those typed stand for signs.
            if word.isupper() or word not in query or len(corrected) >= MOST_CORRECTED + len(quoted):
                continue
            key = word.lower()
            if key not in self._corrected:
                is_right = bool(self.store.run(ANY_PASSAGE, (f'"{key}"',)))
                # An index of another default model is searched by words alone, without a model.
                with suppress(OtherModelError):
                    is_right = is_right or is_known(key)
                self._corrected[key] = None if is_right else self._nearest(key)
            if nearest := self._corrected[key]:
                corrected[word] = nearest
        return respelled(query, corrected) if corrected else query, corrected

    def _nearest(self, word: str) -> str | None:
        """Return the word of the index with the fewest edits, among equals the one in most passages."""
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        (tokens,) = tokens_of([word])
        if len(tokens) != 1:
            return None
        letter = tokens[0][0]
        if letter not in self._tokens:
            with_vocabulary(self.store, "counts", "row")
            # FTS5 cuts a long token, perhaps inside a character.
            select = "SELECT CAST(term AS BLOB), doc FROM temp.counts WHERE term >= ? AND term < ?"
            rows = self.store.run(select, (letter, chr(ord(letter) + 1)))
            terms = ((term.decode("utf-8", "ignore"), count) for term, count in rows)
            self._tokens[letter] = {term: count for term, count in terms if _LETTERS.fullmatch(term)}
        passages = self._tokens[letter]
        tokens_here = list(passages)

        def nearest(stem: str) -> list[str]:
            """Return the tokens within the number of edits for a stem, the nearest and most frequent first."""
            edits = 0 if len(stem) < SHORTEST else 1 if len(stem) < LONG else 2
            matches = process.extract(
                stem, tokens_here, scorer=OSA.distance, processor=None, score_cutoff=edits, limit=None
            )
            return [token for token, *_ in sorted(matches, key=lambda match: (match[1], -passages[match[0]], match[0]))]

        if near := nearest(tokens[0]):
            return self._written(near[0])
        # A mistyped ending is not cut off: "hosptial" stays whole, where "hospital" has the stem "hospit".
        cut = dict.fromkeys(stem for end in range(1, LONGEST_ENDING + 1) for stem in nearest(word[:-end])[:MOST_TRIED])
        written = (self._written(token) for token in list(cut)[:MOST_TRIED])
        edits = 1 if len(word) < LONG else 2
        return next((other for other in written if OSA.distance(word, other) <= edits), None)

    def _written(self, token: str) -> str:
        """Return the word that a token (a stem) stands for, as the first passage with it writes it."""
        with_vocabulary(self.store, "tokens", "instance")
        ((row,),) = self.store.run("SELECT doc FROM temp.tokens WHERE term = ? LIMIT 1", (token,))
        words = list(dict.fromkeys(word.lower() for word in words_of(self.store.fetch([row])[row].text)))
        return next((word for word, forms in zip(words, tokens_of(words), strict=True) if forms == [token]), token)
