"""One search: its checked arguments, the vectors of its queries and examples, and the choice of its hits."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ctx_embed.errors import InputError, described
from ctx_embed.index.ann.vector_index import VectorIndex
from ctx_embed.index.arguments import as_list, unit_vector
from ctx_embed.index.searching.bm25 import Bm25
from ctx_embed.index.searching.hits import Hit, hits_of
from ctx_embed.index.searching.live_rows import LiveRows
from ctx_embed.index.searching.options import BY_DOCUMENT, Mode, Options
from ctx_embed.index.searching.ranking import (
    FUSED_RANKS,
    RANKINGS,
    Scored,
    Searched,
    maximal_marginal_relevance,
    reciprocal_rank_fusion,
)
from ctx_embed.index.storage.database import Snapshot
from ctx_embed.index.storage.documents import DocumentStore, Id, Mask, Stored, checked_id
from ctx_embed.index.storage.filters import field_path
from ctx_embed.index.storage.shards import Vectors
from ctx_embed.texts import well_formed
from ctx_embed.vectors import unit_rows

if TYPE_CHECKING:
    from ctx_embed.index.searching.reranking import Reranker

Key: TypeAlias = Hashable

# Rocchio's weight of the mean of the examples to avoid (Salton and Buckley, 1990, give 0.15 to 0.75).
EXCLUDED_WEIGHT = 0.5
# While too few groups are found, the ranking is made deeper by this factor.
DEEPER = 4


@dataclass(frozen=True)
class Queries:
    """What is asked for.

    Args:
        texts: a text for each query; empty for a vector.
        vectors: their unit vectors (Q, dimension); None if the texts are not embedded yet.
        single: whether it was one query, not a list of queries.
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
        return Queries([""], single=True, like=ids)
    if isinstance(query, str):
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
    return Queries([well_formed(text) for text in listed])


def mode_for(queries: Queries, mode: Mode | None) -> Mode:
    """Return the mode of a search: unless one is given, ``hybrid`` for texts and ``dense`` for what has vectors."""
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
    # An element of an array is a number with `item`, in NumPy and torch.
    return (isinstance(first, numbers.Real) and not isinstance(first, bool)) or getattr(first, "ndim", None) == 0


def checked_examples(exclude: Any) -> list[str | int]:
    """Return the texts and ids to avoid.

    Raises:
        InputError: one is neither a string nor a 64-bit integer.
    """
    listed = _listed(exclude, "exclude", "a text, an id or a list of them")
    return [well_formed(item) if isinstance(item, str) else checked_id(item, 1) for item in listed]


class Candidates(NamedTuple):
    """The best passages for a query or for fused ones, the queries' texts, and the vectors if MMR needs them."""

    hits: list[Hit]
    texts: Sequence[str]
    vectors: Vectors | None


@dataclass(frozen=True)
class Search:
    """A search in one state of the index, inside :meth:`IndexFolder.read`.

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

    def run(
        self, store: DocumentStore, bm25: Bm25, index: VectorIndex, live: LiveRows, snapshot: Snapshot
    ) -> list[Candidates]:
        """Return the best passages for each query, or one list if the queries are fused."""
        index.vectors.forget_unlisted(snapshot.shards)
        searched = Searched(store, bm25, index, snapshot, live.allowed(snapshot, self.options.where))
        texts, vectors = self.queries.texts, self.queries.vectors
        if self.queries.like or self.excluded or len(self.avoided):
            searched, texts, vectors = self._with_examples(searched)
        assert vectors is not None
        rankings = self._rankings(searched, texts, vectors)
        found = hits_of(store, rankings, int(self.options.context), self.options.document)
        asked = [texts] if self.options.fuse else [[text] for text in texts]
        return [
            Candidates(hits, of_query, None if self.options.mmr is None else self._vectors(searched, ranking))
            for hits, of_query, ranking in zip(found, asked, rankings, strict=True)
        ]

    def _with_examples(self, searched: Searched) -> tuple[Searched, list[str], Vectors]:
        """Return what to search without the examples, and the queries moved away from those to avoid."""
        store, snapshot = searched.store, searched.snapshot
        liked = self._documents(store, self.queries.like)
        excluded = store.find(list(self.excluded))
        texts, vectors = self.queries.texts, self.queries.vectors
        if liked:
            # A quotation in a document is no phrase that similar documents must have.
            texts = ["\n".join(document.text for document in liked).replace('"', " ")]
            vectors = unit_rows(np.mean([self._centre(searched, document) for document in liked], axis=0)[None])
        assert vectors is not None
        away = [*self.avoided, *(self._centre(searched, document) for document in excluded.values())]
        if away:
            away_from: Vectors = np.array(away, np.float32).mean(axis=0, keepdims=True)
            moved = unit_rows(vectors - np.float32(EXCLUDED_WEIGHT) * unit_rows(away_from))
            # A query without known tokens is like nothing, wherever it is moved.
            vectors = np.where(vectors.any(axis=1, keepdims=True), moved, np.float32(0))
        allowed: Mask = np.ones(snapshot.rows, bool) if searched.allowed is None else searched.allowed.copy()
        for document in [*liked, *excluded.values()]:
            allowed[document.row : document.row + document.passages] = False
        return replace(searched, allowed=allowed), texts, vectors

    @staticmethod
    def _documents(store: DocumentStore, ids: Sequence[Id]) -> list[Stored]:
        found = store.find(list(ids))
        for identifier in ids:
            if identifier not in found:
                raise InputError(f"like: no document has the id {identifier!r}")
        return list(found.values())

    @staticmethod
    def _centre(searched: Searched, document: Stored) -> Vectors:
        """Return the unit vector (dimension,) of a document: of the mean of its passages."""
        rows = np.arange(document.row, document.row + document.passages)
        centre: Vectors = unit_rows(searched.index.vectors.gather(searched.snapshot.shards, rows).mean(axis=0)[None])[0]
        return centre

    @staticmethod
    def _vectors(searched: Searched, ranking: Sequence[Scored]) -> Vectors:
        rows = np.array([found.row for found in ranking], np.int64)
        return searched.index.vectors.gather(searched.snapshot.shards, rows)

    def _rankings(self, searched: Searched, texts: list[str], vectors: Vectors) -> list[list[Scored]]:
        """Return at most ``pool`` passages for each query, by mode, threshold, fusion and grouping."""
        self._require_group(searched.store)
        most = max(searched.snapshot.rows, 1)
        depth = min(self.options.pool, most)
        while True:
            rankings = self._ranked(searched, texts, vectors, depth)
            ended = [len(ranking) < depth for ranking in rankings]
            if self.options.threshold is not None:
                least = self.options.threshold
                kept = [[found for found in ranking if found.score >= least] for ranking in rankings]
                if self.mode == "dense" and not self.options.fuse:
                    # In the order of cosines nothing deeper reaches the threshold either.
                    ended = [len(ranking) < depth for ranking in kept]
                rankings = kept
            if self.options.group is None:
                return rankings
            groups = [self._best_of_groups(searched.store, ranking) for ranking in rankings]
            full = [len(group) >= self.options.pool or end for group, end in zip(groups, ended, strict=True)]
            if all(full) or depth == most:
                return [group[: self.options.pool] for group in groups]
            depth = min(DEEPER * depth, most)

    def _require_group(self, store: DocumentStore) -> None:
        """Raise an error if no document has the field that hits are grouped by."""
        group = self.options.group
        if group not in (None, BY_DOCUMENT) and not store.has_field(field_path(str(group))):
            known = ", ".join([BY_DOCUMENT, *store.metadata_fields()])
            raise InputError(f"group: no document has the field {group!r}; known are {known}")

    def _ranked(self, searched: Searched, texts: list[str], vectors: Vectors, depth: int) -> list[list[Scored]]:
        rank = RANKINGS[self.mode]
        if not self.options.fuse:
            return rank(searched, texts, vectors, depth)
        return [reciprocal_rank_fusion(rank(searched, texts, vectors, max(2 * depth, FUSED_RANKS)))[:depth]]

    def _best_of_groups(self, store: DocumentStore, ranking: Sequence[Scored]) -> list[Scored]:
        """Return the best passage of each document, or of each value of a field; without it, of each document."""
        group = str(self.options.group)
        path = None if group == BY_DOCUMENT else field_path(group)
        keys = store.group_keys([found.row for found in ranking], path)
        best: dict[Key, Scored] = {}
        for key, found in zip(keys, ranking, strict=True):
            best.setdefault(key, found)
        return list(best.values())


def reranked(found: list[Candidates], reranker: Reranker) -> list[Candidates]:
    """Return the candidates of each query in the order of a reranker's scores: the highest of any of its texts."""
    passages = [[hit.text for hit in candidates.hits] for candidates in found]
    ordered = []
    for candidates, scores in zip(
        found, reranker.scores([candidates.texts for candidates in found], passages), strict=True
    ):
        best = scores.max(axis=0) if scores.size else np.empty(0)
        order = np.argsort(-best, kind="stable")
        hits = [replace(candidates.hits[place], reranked=float(best[place])) for place in order]
        vectors = None if candidates.vectors is None else candidates.vectors[order]
        ordered.append(Candidates(hits, candidates.texts, vectors))
    return ordered


def chosen(candidates: Candidates, options: Options) -> list[Hit]:
    """Return the hits of one query: varied if ``mmr`` says so, from ``offset`` on, at most ``k``."""
    hits, _, vectors = candidates
    if options.mmr is not None and vectors is not None:
        relevance = [hit.score if hit.reranked is None else hit.reranked for hit in hits]
        hits = [
            hits[place]
            for place in maximal_marginal_relevance(np.array(relevance), vectors, options.wanted, options.mmr)
        ]
    return hits[int(options.offset) : options.wanted]
