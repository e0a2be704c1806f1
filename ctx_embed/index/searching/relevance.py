"""Relevance: the chance that the best of these passages would score lower for a question that they do not answer.

A few hundred general questions, which hardly any collection answers, are asked to the passages. The cosines of their
best passages follow a Gumbel distribution, as maxima do. A hit's relevance is this distribution at its own cosine,
moved up by the share of the query's words that the hit has:

    relevance = exp(-exp(-(cosine - location) / scale - WORDS_WEIGHT * share))

Nothing is fitted to a model or a collection, so it works for any of them, from one passage on.

Source: Gumbel, Statistics of Extremes (1958); cohort normalisation as in Auckenthaler, Carey and Lloyd-Thomas, Score
Normalization for Text-Independent Speaker Verification Systems (2000).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.index.searching.bm25 import content_words
from ctx_embed.index.storage.folder import UNANSWERED
from ctx_embed.index.storage.shards import Vectors

if TYPE_CHECKING:
    from ctx_embed.index.ann.vector_index import VectorIndex
    from ctx_embed.index.storage.database import Snapshot
    from ctx_embed.index.storage.documents import DocumentStore

# Of a question that has no answer, the best hit is at least this relevant once in ten times or less.
DEFAULT_RELEVANCE = 0.9
# A hit with all words of the query counts as one whose cosine is this many scales higher.
WORDS_WEIGHT = 2.0
# A model that knows words of fewer questions than these gives no distribution.
LEAST_QUESTIONS = 128
# Above this number of vectors, from which `auto` has a FAISS index, the questions are searched for as all others are.
MOST_COMPARED = 50_000
# The distribution is computed again when the passages have grown, or the documents have become fewer, by this share.
STALE_PART = 0.1
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
    with warnings.catch_warnings():
        # A model for another language may know few tokens of them, which its user need not be told.
        warnings.simplefilter("ignore")
        vectors = np.asarray(embed(listed), np.float32)
    return vectors[vectors.any(axis=1)]


@dataclass(frozen=True)
class Unanswered:
    """The distribution of the best cosine of questions that the passages do not answer.

    Args:
        location: the mode of the Gumbel distribution.
        scale: its scale, above 0.
    """

    location: float
    scale: float

    @classmethod
    def of(cls, best: NDArray[Any]) -> Unanswered | None:
        """Return the distribution with the mean and the standard deviation of the questions' best cosines (Q,).

        Returns:
            None if there are too few cosines, or they are all the same, as those of vectors that are zero.
        """
        scale = float(best.std()) * math.sqrt(6) / math.pi if len(best) >= LEAST_QUESTIONS else 0.0
        return cls(float(best.mean()) - float(np.euler_gamma) * scale, scale) if scale > 0 else None

    def relevance(self, cosine: float, share: float = 0.0) -> float:
        """Return the chance (0 to 1) that the best passage scores lower for a question that none of them answers.

        Args:
            cosine: the cosine of the query and the passage.
            share: the share of the query's words that the passage has, see :func:`word_shares`.
        """
        # Beyond 50 scales the result is 0 or 1 to the last digit.
        above = (cosine - self.location) / self.scale + WORDS_WEIGHT * share
        return math.exp(-math.exp(-min(max(above, -50.0), 50.0)))


class Stream:
    """The distribution for passages that come one batch after another, without an index.

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
        """Return the distribution for the passages so far; None if there are none, or only zero vectors."""
        return Unanswered.of(self._best)


def word_shares(query: str, texts: Iterable[str]) -> list[float]:
    """Return for each text the share of the query's words that it has, in any form; function words do not count."""
    stems = {_stem(word.lower()) for word in content_words(query)}
    if not stems:
        return [0.0 for _ in texts]
    return [sum(_has(lowered, stem) for stem in stems) / len(stems) for lowered in map(str.lower, texts)]


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
    """The distribution of an index: the stored one, or one in memory if that is missing or out of date.

    It is stored with the tuned parameters of the index's state, so the format of the index stays the same.

    Args:
        embed: returns the unit vectors (n, dimension) of n queries.
    """

    def __init__(self, embed: Callable[[Sequence[str]], Vectors]) -> None:
        self._embed = embed
        self._questions: Vectors | None = None
        # The distribution, and the tuned parameters and the number of rows that it was found for.
        self._known: tuple[Unanswered | None, str, int] = (None, "", 0)

    def of(self, index: VectorIndex, store: DocumentStore, snapshot: Snapshot) -> Unanswered | None:
        """Return the distribution for a snapshot, inside :meth:`Database.reading`; None without passages."""
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
        """Store the distribution anew if the index has changed much since; call it in ``store.writing()``."""
        snapshot, state = store.snapshot(), store.state()
        stored = _stored(state.tuned)
        if stored is not None and _holds(stored.rows, state.rows) and _holds(state.documents, stored.documents):
            return
        unanswered = self._computed(index, store, snapshot)
        if unanswered is not None:
            store.store_tuned(_with(state.tuned, _Stored(unanswered, state.rows, state.documents)))

    def _computed(self, index: VectorIndex, store: DocumentStore, snapshot: Snapshot) -> Unanswered | None:
        if self._questions is None:
            self._questions = unanswered_questions(self._embed)
        live = store.live(snapshot.rows)
        if snapshot.rows > MOST_COMPARED:
            found = index.search(self._questions, 1, snapshot, live)
            return Unanswered.of(np.array([ranking[0][0] for ranking in found if ranking]))
        seen, first = Stream(self._questions), 0
        for block in index.vectors.blocks(snapshot.shards):
            seen.add(block[live[first : first + len(block)]])
            first += len(block)
        return seen.unanswered()


class _Stored(NamedTuple):
    """A distribution, and the numbers of rows and documents of the index when it was computed."""

    unanswered: Unanswered
    rows: int
    documents: int


def _holds(before: int, now: int) -> bool:
    """Return whether a distribution still holds, as few passages were added since."""
    return now <= (1 + STALE_PART) * before


def _stored(tuned: str) -> _Stored | None:
    """Return the distribution among an index's tuned parameters, or None if there is none."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        fields = json.loads(tuned)[UNANSWERED]
        unanswered = Unanswered(float(fields["location"]), float(fields["scale"]))
        if unanswered.scale > 0:
            return _Stored(unanswered, int(fields["rows"]), int(fields["documents"]))
    return None


def _with(tuned: str, stored: _Stored) -> str:
    fields = asdict(stored.unanswered) | {"rows": stored.rows, "documents": stored.documents}
    return json.dumps(json.loads(tuned) | {UNANSWERED: fields})


def compacted(tuned: str, rows: int) -> str:
    """Return the tuned parameters of an index that compaction has left with a number of rows."""
    stored = _stored(tuned)
    return "{}" if stored is None else _with("{}", stored._replace(rows=rows))
