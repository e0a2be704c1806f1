"""One search: its checked arguments, its queries and examples, the rankings by mode, and the choice of its hits."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, described
from ctx_embed.index.ann import nearest
from ctx_embed.index.searching.bm25 import phrases, without_marks
from ctx_embed.index.searching.corrections import respelled
from ctx_embed.index.searching.hits import Hit, Scored, hits_of
from ctx_embed.index.searching.options import (
    BY_DOCUMENT,
    LIKED_CHARACTERS,
    MOST_CHARACTERS,
    MOST_EXCLUDED,
    MOST_LIKED,
    Mode,
    Options,
)
from ctx_embed.index.searching.relevance import Unrelated, word_shares
from ctx_embed.index.storage.database import require_time
from ctx_embed.index.storage.documents import Id, checked_id
from ctx_embed.index.storage.filters import field_path
from ctx_embed.index.storage.vectors import Vectors
from ctx_embed.index.view import Mask, View
from ctx_embed.texts import as_list, well_formed
from ctx_embed.vectors import unit_rows, unit_vector

if TYPE_CHECKING:
    from ctx_embed.index.model import IndexModel
    from ctx_embed.index.searching.reranking import Reranker

Key: TypeAlias = Hashable

# Rocchio's weight of the mean of the examples to avoid (0.15 to 0.75 in Salton and Buckley, 1990).
EXCLUDED_WEIGHT = 0.5
# Reciprocal rank fusion, the sum over lists of 1 / (60 + rank): Cormack, Clarke and Buettcher (SIGIR 2009).
FUSION_CONSTANT = 60
# The depth of the first piece of a ranking where all vectors are compared; elsewhere, as only within a piece all are in
# order, and a passage that ranks low by meaning and by words may be among the best; how much deeper the next ones are.
DENSE_DEPTH, DEPTH, DEEPER = 25, 100, 4
# A lowest relevance is looked for among this number of passages.
MOST_JUDGED = 1600


@dataclass(frozen=True)
class Queries:
    """The queries of a search.

    Args:
        texts: the text of each query; an empty string if the query was a vector.
        vectors: the unit vectors of the queries (Q, dimension); None if the texts are not embedded yet.
        single: whether the caller gave one query, not a list of queries.
        like: instead of a query, the ids of documents to find similar ones to.
    """

    texts: list[str]
    vectors: Vectors | None = None
    single: bool = False
    like: tuple[Id, ...] = ()


def checked_queries(query: Any, like: Any, mode: Mode | None, dimension: int) -> Queries:
    """Return the queries of a search.

    Args:
        query: a text, a vector, or a list of texts or vectors; None with ``like``.
        like: an id or a list of ids; None with ``query``.
        mode: the search mode; words cannot be searched for with vectors.
        dimension: the dimension of the index.

    Raises:
        InputError: the query is anything else, both or neither are given, or a vector does not fit.
    """
    if like is not None:
        if query is not None:
            raise InputError("give search either a query or like, not both")
        ids = tuple(checked_id(identifier, 1) for identifier in _listed(like, "like", "an id or a list of ids"))
        if not ids:
            raise InputError("like must have at least one id, got an empty list")
        _require_at_most("like", len(ids), MOST_LIKED, "ids")
        return Queries([""], single=True, like=ids)
    if isinstance(query, str):
        _require_at_most("the query", len(query), MOST_CHARACTERS, "characters")
        return Queries([well_formed(query)], single=True)
    listed = as_list(query, "the query", "a text, a vector or a list of texts or vectors")
    if listed and not isinstance(listed[0], str) and (_is_vector(listed) or _is_vector(listed[0])):
        if mode not in (None, "dense"):
            raise InputError(f"mode {mode!r} needs texts; search with vectors in mode 'dense'")
        single = not _is_vector(listed[0])
        rows = [query] if single else listed
        vectors = [unit_vector(row, dimension, f"query {number}") for number, row in enumerate(rows, 1)]
        return Queries([""] * len(vectors), np.stack(vectors), single)
    for number, text in enumerate(listed, 1):
        if not isinstance(text, str):
            raise InputError(f"query {number} must be a string, got {described(text)}")
        _require_at_most(f"query {number}", len(text), MOST_CHARACTERS, "characters")
    return Queries([well_formed(text) for text in listed])


def _require_at_most(name: str, count: int, most: int, unit: str) -> None:
    if count > most:
        raise InputError(f"{name} must have at most {most:,} {unit}, got {count:,}")


def mode_for(queries: Queries, mode: Mode | None) -> Mode:
    """Return the mode of a search; by default ``hybrid`` for texts, and ``dense`` for vectors and ``like``."""
    return mode or ("dense" if queries.like or queries.vectors is not None else "hybrid")


def _listed(values: Any, name: str, needed: str) -> list[Any]:
    return [values] if isinstance(values, str | numbers.Integral) else as_list(values, name, needed)


def _is_vector(value: Any) -> bool:
    """Return whether a value is a list or an array that starts with a number."""
    if isinstance(value, str | bytes) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        return False
    try:
        first = value[0] if len(value) else None
    except (KeyError, TypeError):
        return False
    # In NumPy and torch, a number in an array has the method `item`.
    return (isinstance(first, numbers.Real) and not isinstance(first, bool)) or getattr(first, "ndim", None) == 0


def checked_examples(exclude: Any) -> list[str | int]:
    """Return the texts and ids to avoid.

    Raises:
        InputError: an example is neither a string nor a 64-bit integer.
    """
    listed = _listed(exclude, "exclude", "a text, an id or a list of them")
    _require_at_most("exclude", len(listed), MOST_EXCLUDED, "texts and ids")
    characters = sum(len(item) for item in listed if isinstance(item, str))
    _require_at_most("exclude", characters, MOST_CHARACTERS, "characters")
    return [well_formed(item) if isinstance(item, str) else checked_id(item, 1) for item in listed]


class Candidates(NamedTuple):
    """The best passages for a query or for fused ones, and the queries' texts.

    Args:
        hits: the passages, best first.
        ordered: the values (n,) that order them.
        texts: the texts.
        vectors: the vectors of the hits, if MMR needs them.
        by_words: the scores of the hits by words, as shares of the best one, if they were ranked by both.
    """

    hits: list[Hit]
    ordered: NDArray[np.float64]
    texts: Sequence[str]
    vectors: Vectors | None
    by_words: list[float] | None


@dataclass(frozen=True)
class Search:
    """A search in one generation of the index, inside :meth:`IndexFolder.read`.

    Args:
        options: the options.
        queries: the queries, embedded unless they are ``like``.
        excluded: the ids of documents to avoid and leave out.
        avoided: the unit vectors of texts to avoid (A, dimension).
        mode: how passages are ranked.
    """

    options: Options
    queries: Queries
    excluded: Sequence[Id]
    avoided: Vectors
    mode: Mode

    def run(self, view: View, model: Callable[[], IndexModel]) -> list[Candidates]:
        """Return the best passages for each query, or one list if the queries are fused.

        Args:
            view: the generation.
            model: returns the model of the index, for corrected queries.
        """
        store, bm25 = view.store, view.bm25
        searched = Searched(view, view.allowed(self.options.where))
        texts, vectors = self.queries.texts, self.queries.vectors
        corrected: list[dict[str, str]] = []
        if self.mode != "dense" and not self.queries.like:
            assert vectors is not None
            corrections = view.corrections(model)
            texts = [bm25.without_missing_phrases(text) for text in texts]
            corrected = [corrections.of(text) for text in texts]
            texts = [respelled(text, words) for text, words in zip(texts, corrected, strict=True)]
            vectors = corrections.embedded(texts, corrected, vectors)
        if self.queries.like or self.excluded or len(self.avoided):
            searched, texts, vectors = self._with_examples(searched, texts, vectors)
        assert vectors is not None
        corrected = corrected or [{} for _ in texts]
        asked = [texts] if self.options.fuse else [[text] for text in texts]
        judged = any(self.queries.texts) and bool(vectors.any())
        unrelated = None if view.settings.unrelated is None else Unrelated(*view.settings.unrelated)
        # A query that the model cannot read has no meaning by which to judge a hit.
        known = [bool(vector.any()) for vector in vectors]
        known = [any(known)] if self.options.fuse else known
        if self.options.fuse:
            corrected = [{typed: word for words in corrected for typed, word in words.items()}]
        group = self.options.group
        if group not in (None, BY_DOCUMENT) and not store.has_field(field_path(str(group))):
            known_fields = ", ".join([BY_DOCUMENT, *store.metadata_fields()])
            raise InputError(f"group: no document has the field {group!r}; known are {known_fields}")
        pool, most = self.options.pool, max(view.count, 1)
        while True:
            require_time()
            rankings = self._rankings(searched, texts, vectors, pool)
            found = hits_of(store, rankings, corrected, int(self.options.context), self.options.document)
            found = [
                _with_relevance(hits, of_query, unrelated, view.count) if unrelated and judged and is_known else hits
                for hits, of_query, is_known in zip(found, asked, known, strict=True)
            ]
            kept = [[place for place, hit in enumerate(hits) if self._is_relevant(hit)] for hits in found]
            full = [len(places) >= self.options.pool for places in kept]
            ended = [len(ranking) < pool for ranking in rankings]
            if all(map(max, full, ended)) or pool >= min(most, max(MOST_JUDGED, self.options.pool)):
                break
            # What is not relevant makes room for what is.
            pool *= DEEPER
        by_both = self.mode == "hybrid" and not self.options.fuse
        candidates = []
        for hits, of_query, ranking, places in zip(found, asked, rankings, kept, strict=True):
            places = places[: self.options.pool]
            chosen = [ranking[place] for place in places]
            ordered = np.array([_order(scored, self.mode) for scored in chosen])
            candidates.append(
                Candidates(
                    [hits[place] for place in places],
                    shares_of_best(ordered) if self.options.fuse else ordered,
                    of_query,
                    None if self.options.mmr is None else self._vectors(searched, chosen),
                    [scored.by_words for scored in chosen] if by_both else None,
                )
            )
        return candidates

    def _is_relevant(self, hit: Hit) -> bool:
        least = self.options.min_relevance
        return least is None or hit.relevance is None or hit.relevance >= least

    def _with_examples(
        self, searched: Searched, texts: list[str], vectors: Vectors | None
    ) -> tuple[Searched, list[str], Vectors]:
        """Return the searched rows without the examples, and the queries moved away from the examples to avoid."""
        view, store = searched.view, searched.view.store
        places = store.rows_of_ids(list(dict.fromkeys(self.queries.like)))
        for identifier in self.queries.like:
            if identifier not in places:
                raise InputError(f"like: no document has the id {identifier!r}")
        liked = list(places.values())
        if liked:
            # Quotations in a document are not phrases that similar documents must contain.
            texts = [without_marks(store.beginnings([row for row, _ in liked], LIKED_CHARACTERS))]
            vectors = unit_rows(np.mean([self._centre(searched, *place) for place in liked], axis=0)[None])
        assert vectors is not None
        excluded = store.rows_of_ids(self.excluded).values()
        away = [*self.avoided, *(self._centre(searched, *place) for place in excluded)]
        if away:
            away_from: Vectors = np.array(away, np.float32).mean(axis=0, keepdims=True)
            moved = unit_rows(vectors - np.float32(EXCLUDED_WEIGHT) * unit_rows(away_from))
            # A query that the model cannot read has no meaning, so it stays zero.
            vectors = np.where(vectors.any(axis=1, keepdims=True), moved, np.float32(0))
        allowed: Mask = view.live.copy() if searched.allowed is None else searched.allowed.copy()
        for row, passages in [*liked, *excluded]:
            first = int(view.positions(np.array([row]))[0])
            allowed[first : first + passages] = False
        return replace(searched, allowed=allowed), texts, vectors

    @staticmethod
    def _centre(searched: Searched, row: int, passages: int) -> Vectors:
        """Return the unit vector (dimension,) of a document, the normalised mean of its passages."""
        require_time()
        rows = np.arange(row, row + passages)
        centre: Vectors = unit_rows(searched.view.vectors.get(rows).mean(axis=0)[None])[0]
        return centre

    @staticmethod
    def _vectors(searched: Searched, ranking: Sequence[Scored]) -> Vectors:
        rows = np.array([found.row for found in ranking], np.int64)
        return searched.view.vectors.get(rows)

    def _rankings(self, searched: Searched, texts: list[str], vectors: Vectors, pool: int) -> list[list[Scored]]:
        """Return at most ``pool`` passages for each query, by mode, threshold, fusion and grouping.

        A ranking is read in pieces of fixed depths, whatever page of it is wanted, so that pages agree.
        """
        options, store = self.options, searched.view.store
        path = None if options.group in (None, BY_DOCUMENT) else field_path(str(options.group))
        exact = searched.view.faiss is None or searched.view.faiss.exact
        depth = DENSE_DEPTH if exact and self.mode == "dense" and not options.fuse else DEPTH
        count = 1 if options.fuse else len(texts)
        kept: list[list[Scored]] = [[] for _ in range(count)]
        seen: list[set[int]] = [set() for _ in range(count)]
        groups: list[set[Key]] = [set() for _ in range(count)]
        while True:
            pieces = RANKINGS[self.mode](searched, texts, vectors, depth)
            if options.fuse:
                fused = reciprocal_rank_fusion([found[:depth] for found, _ in pieces])
                pieces = [(fused, all(ended for _, ended in pieces))]
            for number, (found, _) in enumerate(pieces):
                new = [scored for scored in found if scored.row not in seen[number]]
                seen[number] |= {scored.row for scored in new}
                if options.threshold is not None:
                    new = [scored for scored in new if scored.score >= options.threshold]
                if options.group is None:
                    kept[number] += new
                    continue
                for scored, key in zip(new, store.group_keys([each.row for each in new], path), strict=True):
                    if key not in groups[number]:
                        groups[number].add(key)
                        kept[number].append(scored)
            # Cosines descend, so no later passage of the mode ``dense`` reaches the threshold either.
            below = self.mode == "dense" and not options.fuse and options.threshold is not None
            done = [
                len(own) >= pool or ended or (below and found[-1].score < float(options.threshold or 0))
                for own, (found, ended) in zip(kept, pieces, strict=True)
            ]
            if all(done):
                return [own[:pool] for own in kept]
            depth *= DEEPER


def reranked(found: list[Candidates], reranker: Reranker, most: int) -> list[Candidates]:
    """Return each query's first candidates in the order of a reranker's scores, the highest over the query's texts.

    In the mode ``hybrid``, cosines of a larger model take the place of ours: the score is the mean of their shares of
    the best one and the shares by words, see :func:`fused_scores`.

    Args:
        found: the candidates of each query.
        reranker: scores texts.
        most: the number of candidates that are scored; others follow as they are.
    """
    passages = [[hit.text for hit in candidates.hits[:most]] for candidates in found]
    ordered = []
    for candidates, scores in zip(
        found, reranker.scores([candidates.texts for candidates in found], passages), strict=True
    ):
        best = scores.max(axis=0) if scores.size else np.empty(0)
        if reranker.cosines and candidates.by_words is not None:
            best = (shares_of_best(best) + candidates.by_words[:most]) / 2
        order = np.argsort(-best, kind="stable")
        hits = [replace(candidates.hits[place], reranked=float(best[place])) for place in order]
        vectors = candidates.vectors
        if vectors is not None:
            vectors = np.concatenate([vectors[order], vectors[len(order) :]])
        values = np.concatenate([best[order], candidates.ordered[len(order) :]])
        ordered.append(candidates._replace(hits=hits + candidates.hits[most:], ordered=values, vectors=vectors))
    return ordered


def chosen(candidates: Candidates, options: Options) -> list[Hit]:
    """Return at most ``k`` hits of one query, from ``offset`` on, diversified if ``mmr`` is given."""
    hits = candidates.hits
    if options.mmr is not None and candidates.vectors is not None:
        most = int(options.candidates)
        order = maximal_marginal_relevance(candidates.ordered[:most], candidates.vectors[:most], most, options.mmr)
        hits = [hits[place] for place in order] + hits[most:]
    return hits[int(options.offset) : options.wanted]


def _with_relevance(hits: Sequence[Hit], texts: Sequence[str], unrelated: Unrelated, passages: int) -> list[Hit]:
    """Return hits with their relevance to the texts of a query, by the words that they share with it."""
    shares = np.max([word_shares(text, [hit.text for hit in hits]) for text in texts], axis=0)
    return [
        replace(hit, relevance=round(unrelated.relevance(hit.score, float(share), passages), 4))
        for hit, share in zip(hits, shares, strict=True)
    ]


@dataclass(frozen=True)
class Searched:
    """The generation that a search reads, and the positions that it may find; None for all."""

    view: View
    allowed: Mask | None


# Each query's passages to a depth, best first, and whether there are no more.
Pieces: TypeAlias = list[tuple[list[Scored], bool]]


def dense(searched: Searched, texts: Sequence[str], vectors: Vectors, depth: int) -> Pieces:
    """Rank passages by the cosines of their vectors; zero vectors, of texts that it cannot read, are not found."""
    rankings = nearest.search(searched.view, vectors, depth, searched.allowed)
    return [([Scored(score, row) for score, row in ranking], len(ranking) < depth) for ranking in rankings]


def words(searched: Searched, texts: Sequence[str], vectors: Vectors, depth: int) -> Pieces:
    """Rank passages by BM25; passages without any word of the query are not found."""
    return [_by_words(searched, *query, depth, {}) for query in zip(texts, vectors, strict=True)]


def _by_words(
    searched: Searched, text: str, vector: Vectors, depth: int, cosines: dict[int, float]
) -> tuple[list[Scored], bool]:
    """Return the best passages for one query by words; ``cosines`` are those that are known, by row."""
    require_time()
    found = searched.view.bm25.best(text, depth, searched.allowed)
    rows = np.array([row for row in found if row not in cosines], np.int64)
    cosines = cosines | {row: score for score, row in nearest.ranking(searched.view, vector, rows, alike=False)}
    shares = shares_of_best(list(found.values())).tolist()
    return [Scored(cosines[row], row, None, share) for row, share in zip(found, shares, strict=True)], len(
        found
    ) < depth


def hybrid(searched: Searched, texts: Sequence[str], vectors: Vectors, depth: int) -> Pieces:
    """Rank the best passages of the two other modes by :func:`fused_scores`; ties keep the order by words."""
    pieces = []
    for text, vector, (near, near_ended) in zip(texts, vectors, dense(searched, texts, vectors, depth), strict=True):
        if phrases(text):
            # Passages that lack a phrase of the query are not found.
            mask = searched.view.bm25.with_phrases(text)
            with_phrases = replace(searched, allowed=mask if searched.allowed is None else mask & searched.allowed)
            ((near, near_ended),) = dense(with_phrases, [text], vector[None], depth)
        worded, ended = _by_words(searched, text, vector, depth, {scored.row: scored.score for scored in near})
        there = {scored.row for scored in worded}
        candidates = [*worded, *(scored for scored in near if scored.row not in there)]
        fused = (shares_of_best([scored.score for scored in candidates]) + [each.by_words for each in candidates]) / 2
        ordered = zip(np.argsort(-fused, kind="stable").tolist(), sorted(fused.tolist(), reverse=True), strict=True)
        found = [(candidates[place], score) for place, score in ordered]
        ranking = [Scored(each.score, each.row, score, each.by_words) for each, score in found]
        pieces.append((ranking, ended and near_ended))
    return pieces


def _order(scored: Scored, mode: Mode) -> float:
    """Return the value by which a passage is ordered."""
    if scored.fused is not None:
        return scored.fused
    return scored.by_words if mode == "words" else scored.score


def fused_scores(cosines: Sequence[float], by_words: Sequence[float]) -> NDArray[np.float64]:
    """Return the mean of each passage's cosine and score by words, both as shares (0 to 1) of the query's best.

    Args:
        cosines: the cosines (n,); those below 0 count as 0.
        by_words: the BM25 scores (n,); 0 for passages that are not among the best by words.

    Source: Bruch, Gai and Ingber, An Analysis of Fusion Functions for Hybrid Retrieval (TOIS 2023).
    """
    return (shares_of_best(cosines) + shares_of_best(by_words)) / 2


def shares_of_best(scores: Sequence[float] | NDArray[Any]) -> NDArray[np.float64]:
    """Return scores (n,) as shares (0 to 1) of the best one; those below 0 count as 0."""
    positive: NDArray[np.float64] = np.maximum(np.asarray(scores, np.float64), 0)
    best = float(positive.max(initial=0))
    return positive / best if best > 0 else positive


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Scored]]) -> list[Scored]:
    """Fuse rankings of several queries by the sum of 1 / (60 + rank); ties keep the order of appearance.

    A passage has the highest of its cosines.
    """
    sums: dict[int, float] = {}
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, found in enumerate(ranking, 1):
            sums[found.row] = sums.get(found.row, 0.0) + 1 / (FUSION_CONSTANT + rank)
            scores[found.row] = max(scores.get(found.row, -1.0), found.score)
    return [Scored(scores[row], row, sums[row]) for row in sorted(sums, key=sums.__getitem__, reverse=True)]


def maximal_marginal_relevance(relevance: NDArray[Any], vectors: Vectors, count: int, weight: float) -> list[int]:
    """Return the places of ``count`` items in the order of maximal marginal relevance.

    Each next item has the highest weight * relevance - (1 - weight) * its highest cosine with the items before it. If
    several have the same value, the first is chosen.

    Args:
        relevance: the items' relevance (n,).
        vectors: the items' unit vectors (n, dimension).
        count: how many to choose; all if there are fewer.
        weight: 1 orders by relevance alone, 0 by variety alone.

    Source: Carbonell and Goldstein (SIGIR 1998).
    """
    cosines = vectors @ vectors.T
    left = weight * relevance.astype(np.float64)
    nearest = np.full(len(left), -np.inf)
    order: list[int] = []
    taken = np.zeros(len(left), bool)
    for _ in range(min(count, len(left))):
        require_time()
        # The first item is the most relevant one.
        marginal = relevance if not order else left - (1 - weight) * nearest
        marginal = np.where(taken, -np.inf, marginal)
        order.append(int(np.argmax(marginal)))
        taken[order[-1]] = True
        nearest = np.maximum(nearest, cosines[order[-1]])
    return order


RANKINGS: dict[Mode, Callable[[Searched, Sequence[str], Vectors, int], Pieces]] = {
    "dense": dense,
    "words": words,
    "hybrid": hybrid,
}
