"""Relevance: the chance that the best of these passages would score lower for a question that they do not answer.

Two kinds of questions show what such a question scores. Far ones are a few hundred general questions, which hardly any
collection answers. Near ones are some words of a passage, looked for in all other documents: the subject is right, but
the answer is missing. The cosine of the best passage follows a Gumbel distribution for each kind, as maxima do. The
relevance of a hit is the mean of both at its own cosine, moved up by the share of the query's words that it has:

    relevance = mean over far and near of exp(-exp(-(cosine - location) / scale - WORDS_WEIGHT * share))

Nothing is fitted to a model or a collection, so this works for any of them, from one passage on.

Source: Gumbel, Statistics of Extremes (1958); cohort normalisation as in Auckenthaler, Carey and Lloyd-Thomas, Score
Normalization for Text-Independent Speaker Verification Systems (2000).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.index.searching.bm25 import MOST_WORDS, content_words
from ctx_embed.index.storage.folder import UNANSWERED
from ctx_embed.index.storage.shards import Vectors
from ctx_embed.text.words import indexed

if TYPE_CHECKING:
    from ctx_embed.index.ann.vector_index import VectorIndex
    from ctx_embed.index.storage.database import Snapshot
    from ctx_embed.index.storage.documents import DocumentStore, Mask

# Of ten questions without an answer, about two have a hit that is at least this relevant.
DEFAULT_RELEVANCE = 0.8
# A hit with all words of the query counts as one whose cosine is this many scales higher.
WORDS_WEIGHT = 2.0
# Fewer far questions of which the model knows a token, or fewer near ones, give no distribution.
LEAST_FAR, LEAST_NEAR = 128, 16
# Near questions have at most this number of words and characters; each is of another document.
MOST_NEAR, NEAR_WORDS, NEAR_CHARACTERS = 256, 9, 100
# A passage with a higher cosine to the passage of a near question says the same, so it answers the question.
SAME = 0.95
# The location of near questions lies above that of far ones by this many scales of these: usually, and at most. More
# would mean that passages repeat each other, and so answer each other's questions.
USUALLY_NEARER, MOST_NEARER = 2.0, 3.0
# The number of vectors above which `auto` has a FAISS index.
MOST_COMPARED = 50_000
# The hits of a near question among which the first one of another document is looked for.
SEARCHED = 16
# The distributions are computed again when the passages have grown, or the documents have become fewer, by this share.
STALE_PART = 0.25
_ENDINGS = ("ing", "ies", "ed", "es", "s")
# The fewest letters of a word without its ending, and the most that a passage's word may have beyond them.
_LEAST_STEM, _MOST_ENDING = 3, 3


def unanswered_questions(embed: Callable[[Sequence[str]], Any]) -> Vectors:
    """Return the unit vectors (Q, dimension) of the general English questions in ``unanswered.txt``.

    Questions without a token that the model knows are left out.

    Args:
        embed: returns the unit vectors (n, dimension) of n queries.
    """
    listed = (files("ctx_embed.index.searching") / "unanswered.txt").read_text(encoding="utf-8").splitlines()
    vectors = _embedded(embed, listed)
    return vectors[vectors.any(axis=1)]


def _embedded(embed: Callable[[Sequence[str]], Any], questions: Sequence[str]) -> Vectors:
    """Return the vectors of questions that the user did not ask, without warnings about their tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(embed(questions), np.float32)


class Gumbel(NamedTuple):
    """A Gumbel distribution of cosines: its location, which is its mode, and its scale, which is above 0."""

    location: float
    scale: float

    @classmethod
    def of(cls, best: NDArray[Any], least: int) -> Gumbel | None:
        """Return the distribution with the mean and the standard deviation of some cosines.

        Args:
            best: the cosine of the best passage for each question (Q,).
            least: the fewest questions.

        Returns:
            None if there are fewer, or all cosines are the same.
        """
        scale = float(best.std()) * math.sqrt(6) / math.pi if len(best) >= least else 0.0
        return cls(float(best.mean()) - float(np.euler_gamma) * scale, scale) if scale > 0 else None

    def below(self, cosine: float, scales: float = 0.0) -> float:
        """Return the chance of a lower cosine than this one plus some scales."""
        # Beyond 50 scales the result is 0 or 1 to the last digit.
        return math.exp(-math.exp(-min(max((cosine - self.location) / self.scale + scales, -50.0), 50.0)))


class Unanswered(NamedTuple):
    """The distributions of the best cosine for questions that the passages do not answer: far and near ones."""

    far: Gumbel
    near: Gumbel

    @classmethod
    def of(cls, far: NDArray[Any], near: NDArray[Any] | None = None) -> Unanswered | None:
        """Return the distributions for the cosines of the best passages for far and for near questions.

        Returns:
            None if there are too few far questions, or all their cosines are the same.
        """
        general = Gumbel.of(far, LEAST_FAR)
        if general is None:
            return None
        location, scale = general
        own = None if near is None else Gumbel.of(near, LEAST_NEAR)
        own = own or Gumbel(location + USUALLY_NEARER * scale, scale)
        return cls(general, own._replace(location=min(own.location, location + MOST_NEARER * scale)))

    def relevance(self, cosine: float, share: float = 0.0) -> float:
        """Return the chance (0 to 1) that the best passage scores lower for a question that none of them answers.

        Args:
            cosine: the cosine of the query and the passage.
            share: the share of the query's words that the passage has, see :func:`word_shares`.
        """
        return (self.far.below(cosine, WORDS_WEIGHT * share) + self.near.below(cosine, WORDS_WEIGHT * share)) / 2


class Stream:
    """The distributions for passages that come one batch after another, without an index.

    Only far questions are asked; near ones are taken to score higher by what is usual.

    Args:
        questions: :func:`unanswered_questions` of the model.

    Example:
        >>> seen = Stream(unanswered_questions(embedder.encode_query))
        >>> seen.add(embedder.encode_document(passages))
        >>> seen.unanswered().relevance(cosine, share)
        0.97
    """

    def __init__(self, questions: Vectors) -> None:
        self._questions = questions
        self._best = np.full(len(questions), -1.0, np.float32)

    def add(self, vectors: Vectors) -> None:
        """Take the unit vectors (n, dimension) of more passages into account; zero vectors do not count."""
        vectors = vectors[vectors.any(axis=1)]
        if len(vectors):
            np.maximum(self._best, (self._questions @ vectors.T).max(axis=1), out=self._best)

    def unanswered(self) -> Unanswered | None:
        """Return the distributions for the passages so far; None if there are none, or only zero vectors."""
        return Unanswered.of(self._best)


def word_shares(query: str, texts: Iterable[str]) -> list[float]:
    """Return for each text the share of the query's words that it has, in any form; function words do not count."""
    stems = {_stem(word.lower()) for word in content_words(query)[:MOST_WORDS]}
    if not stems:
        return [0.0 for _ in texts]
    return [
        sum(_has(lowered, stem) for stem in stems) / len(stems) for lowered in (indexed(text).lower() for text in texts)
    ]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + _LEAST_STEM:
            return word[: -len(ending)]
    return word


def _has(text: str, stem: str) -> bool:
    """Return whether a word of a text begins with a stem and is hardly longer."""
    place = text.find(stem)
    while place >= 0:
        if not (place and text[place - 1].isalnum()):
            end = place + len(stem)
            after = text[end : end + _MOST_ENDING + 1]
            if len(after) <= _MOST_ENDING or not after.isalnum():
                return True
        place = text.find(stem, place + 1)
    return False


class KeptUnanswered:
    """The distributions of an index: the stored ones, or some in memory if those are missing or out of date.

    They are stored with the tuned parameters of the index's state, so the format of the index stays the same.

    Args:
        embed: returns the unit vectors (n, dimension) of n queries.
        most_compared: in an index of more vectors than this, the questions are searched for as all others are.
    """

    def __init__(self, embed: Callable[[Sequence[str]], Vectors], most_compared: int = MOST_COMPARED) -> None:
        self._embed = embed
        self._most_compared = most_compared
        self._far: Vectors | None = None
        # The distributions, and the tuned parameters and the number of rows that they were found for.
        self._known: tuple[Unanswered | None, str, int] = (None, "", 0)

    def of(self, index: VectorIndex, store: DocumentStore, snapshot: Snapshot) -> Unanswered | None:
        """Return the distributions for a snapshot, inside :meth:`Database.reading`; None without passages."""
        unanswered, tuned, rows = self._known
        if tuned != snapshot.tuned or not _holds(rows, snapshot.rows):
            stored = _stored(snapshot.tuned)
            if stored is not None and _holds(stored.rows, snapshot.rows):
                unanswered, rows = stored.unanswered, stored.rows
            else:
                unanswered, rows = self._computed(index, store, snapshot), snapshot.rows
            self._known = (unanswered, snapshot.tuned, rows)
        return unanswered

    def update(self, index: VectorIndex, store: DocumentStore) -> None:
        """Store the distributions anew if the index has changed much since; call it in ``store.writing()``."""
        snapshot, state = store.snapshot(), store.state()
        stored = _stored(state.tuned)
        if stored is not None and _holds(stored.rows, state.rows) and _holds(state.documents, stored.documents):
            return
        unanswered = self._computed(index, store, snapshot)
        if unanswered is not None:
            store.store_tuned(_with(state.tuned, _Stored(unanswered, state.rows, state.documents)))

    def _computed(self, index: VectorIndex, store: DocumentStore, snapshot: Snapshot) -> Unanswered | None:
        if self._far is None:
            self._far = unanswered_questions(self._embed)
        live = store.live(snapshot.rows)
        asked = _near_questions(store, np.flatnonzero(live))
        near = _embedded(self._embed, [question for question, _ in asked]) if asked else self._far[:0]
        known = np.flatnonzero(near.any(axis=1))
        own = [asked[place][1] for place in known]
        compared = _compared if snapshot.rows <= self._most_compared else _searched
        return Unanswered.of(*compared(index, snapshot, live, self._far, near[known], own))


class _Own(NamedTuple):
    """The row of the passage that a near question is from, and the rows of its document, ``first`` to ``end`` - 1."""

    row: int
    first: int
    end: int


def _near_questions(store: DocumentStore, rows: NDArray[np.int64]) -> list[tuple[str, _Own]]:
    """Return some words of passages, evenly spread over the documents, with where they are from."""
    asked: dict[int, tuple[str, _Own]] = {}
    for row in rows[np.linspace(0, len(rows) - 1, min(MOST_NEAR, len(rows)), dtype=np.int64)].tolist():
        # One at a time, as a document may be long.
        passage = store.fetch([row])[row]
        words = passage.text.split()
        # Any place in the passage, but always the same one.
        start = row * 7919 % max(len(words) - NEAR_WORDS + 1, 1)
        question = " ".join(words[start : start + NEAR_WORDS])[:NEAR_CHARACTERS]
        document = passage.document
        asked.setdefault(document.row, (question, _Own(row, document.row, document.row + document.passages)))
    return list(asked.values())


def _compared(
    index: VectorIndex, snapshot: Snapshot, live: Mask, far: Vectors, near: Vectors, own: Sequence[_Own]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the cosines of the best live passages for far questions, and of other documents for near ones."""
    best_far = np.full(len(far), -1.0, np.float32)
    best_near = np.full(len(near), -1.0, np.float32)
    passages = index.vectors.gather(snapshot.shards, np.array([one.row for one in own], np.int64))
    first = 0
    for block in index.vectors.blocks(snapshot.shards):
        found = np.flatnonzero(live[first : first + len(block)] & block.any(axis=1))
        rows, vectors = found + first, block[found]
        first += len(block)
        if not len(found):
            continue
        np.maximum(best_far, (far @ vectors.T).max(axis=1), out=best_far)
        cosines = near @ vectors.T
        cosines[passages @ vectors.T > SAME] = -1
        for place, one in enumerate(own):
            cosines[place, slice(*np.searchsorted(rows, (one.first, one.end)))] = -1
        np.maximum(best_near, cosines.max(axis=1), out=best_near)
    return best_far, best_near[best_near > -1]


def _searched(
    index: VectorIndex, snapshot: Snapshot, live: Mask, far: Vectors, near: Vectors, own: Sequence[_Own]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what :func:`_compared` does, by searching the index, whose FAISS index makes it fast."""
    best_far = [ranking[0][0] for ranking in index.search(far, 1, snapshot, live) if ranking]
    best_near = []
    for one, ranking in zip(own, index.search(near, SEARCHED, snapshot, live), strict=True):
        others = [(cosine, row) for cosine, row in ranking if not one.first <= row < one.end]
        rows = np.array([one.row, *(row for _, row in others)], np.int64)
        vectors = index.vectors.gather(snapshot.shards, rows)
        different = np.flatnonzero(vectors[1:] @ vectors[0] <= SAME)
        best_near += [others[place][0] for place in different[:1]]
    return np.array(best_far), np.array(best_near)


class _Stored(NamedTuple):
    """The distributions, and the numbers of rows and documents of the index when they were computed."""

    unanswered: Unanswered
    rows: int
    documents: int


def _holds(before: int, now: int) -> bool:
    """Return whether the distributions still hold, as few passages were added since."""
    return now <= (1 + STALE_PART) * before


def _stored(tuned: str) -> _Stored | None:
    """Return the distributions among an index's tuned parameters, or None if there are none."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        fields = json.loads(tuned)[UNANSWERED]
        far, near = (Gumbel(*map(float, fields[name])) for name in Unanswered._fields)
        if far.scale > 0 and near.scale > 0:
            return _Stored(Unanswered(far, near), int(fields["rows"]), int(fields["documents"]))
    return None


def _with(tuned: str, stored: _Stored) -> str:
    fields = stored.unanswered._asdict() | {"rows": stored.rows, "documents": stored.documents}
    return json.dumps(json.loads(tuned) | {UNANSWERED: fields})


def compacted(tuned: str, rows: int) -> str:
    """Return the tuned parameters of an index that compaction has left with a number of rows."""
    stored = _stored(tuned)
    return "{}" if stored is None else _with("{}", stored._replace(rows=rows))
