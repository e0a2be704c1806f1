"""One search: its queries, the rankings of passages by each mode, and the hits among them."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, OtherModelError, described
from ctx_embed.index.searching.by_words import ANY_PASSAGE, phrases, respelled, without_marks
from ctx_embed.index.searching.hits import Hit, counted, highlights, relevance, word_shares
from ctx_embed.index.searching.options import (
    BY_DOCUMENT,
    LIKED_CHARACTERS,
    MOST_CHARACTERS,
    MOST_EXCLUDED,
    MOST_LIKED,
    Options,
)
from ctx_embed.index.storage.database import require_time
from ctx_embed.index.storage.documents import Id, Passage, checked_id
from ctx_embed.index.storage.faiss_file import NEIGHBOURS
from ctx_embed.index.storage.filters import field_path
from ctx_embed.index.storage.folder import View, cosines_with
from ctx_embed.index.storage.vectors import Mask, Rows, Vectors
from ctx_embed.texts import as_list, well_formed
from ctx_embed.vectors import unit_rows, unit_vector

if TYPE_CHECKING:
    from ctx_embed.index.model import IndexModel
    from ctx_embed.index.searching.reranking import Reranker

Floats = NDArray[np.float64]

# Rocchio's weight of the mean of the examples to avoid (0.15 to 0.75 in Salton and Buckley, 1990).
EXCLUDED_WEIGHT = 0.5
# Reciprocal rank fusion, the sum over lists of 1 / (60 + rank): Cormack, Clarke and Buettcher (SIGIR 2009).
FUSION_CONSTANT = 60
# The depth of the first piece of a ranking where all vectors are compared; elsewhere, as only within a piece all are in
# order, and a passage that ranks low by meaning and by words may be among the best; how much deeper the next ones are.
DENSE_DEPTH, DEPTH, DEEPER = 25, 100, 4
# With a lowest relevance, hits are chosen among this number of passages.
MOST_JUDGED = 1600


def listed(values: Any, name: str, needed: str) -> list[Any]:
    """Return ids or texts as a list; a single one becomes a list of one."""
    return [values] if isinstance(values, str | numbers.Integral) else as_list(values, name, needed)


def _require_at_most(name: str, count: int, most: int, unit: str) -> None:
    if count > most:
        raise InputError(f"{name} must have at most {most:,} {unit}, got {count:,}")


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


class Ranking(NamedTuple):
    """Passages found for a query or for fused queries, best first.

    Args:
        rows: their rows (n,).
        cosines: their cosines with the query (n,); the highest one for fused queries.
        values: the values (n,) that order them: cosines, scores by words, or fused scores.
        by_words: their scores by words (n,), as shares of the best one; zeros if they were not searched for by words.
        ended: whether there are no more.
    """

    rows: Rows
    cosines: Floats
    values: Floats
    by_words: Floats
    ended: bool

    def part(self, places: Any) -> Ranking:
        """Return the passages at some places."""
        return Ranking(self.rows[places], self.cosines[places], self.values[places], self.by_words[places], self.ended)


class Candidates(NamedTuple):
    """The passages from which the hits for a query, or for fused queries, are chosen.

    Args:
        hits: the passages, best first.
        values: the values (n,) that order them.
        texts: the queries' texts.
        vectors: the vectors of the hits, if MMR needs them.
        by_words: the scores of the hits by words, as shares of the best one, if they were ranked by both.
    """

    hits: list[Hit]
    values: Floats
    texts: Sequence[str]
    vectors: Vectors | None
    by_words: Floats | None


class Search:
    """One search. It checks its query; :meth:`embed`, :meth:`candidates` and :meth:`hits` then run it.

    Attributes:
        texts: the text of each query; an empty string if the query was a vector.
        vectors: the unit vectors of the queries (Q, dimension); None until the texts are embedded.
        single: whether the caller gave one query, not a list of queries.
        like: instead of a query, the ids of documents to find similar ones to.
        exclude: texts and ids of documents to keep away from.
    """

    def __init__(self, options: Options, query: Any, like: Any, dimension: int) -> None:
        self.options = options
        # The number of hits up to the last one returned, and of passages to choose them from.
        self.wanted = self.pool = int(options.offset) + int(options.k)
        if options.rerank is not None or options.mmr is not None:
            self.pool = max(self.wanted, int(options.candidates))
        self.dimension = dimension
        self.texts: list[str] = [""]
        self.vectors: Vectors | None = None
        self.single = True
        self.like: list[Id] = []
        if like is not None:
            if query is not None:
                raise InputError("give search either a query or like, not both")
            self.like = [checked_id(identifier, 1) for identifier in listed(like, "like", "an id or a list of ids")]
            if not self.like:
                raise InputError("like must have at least one id, got an empty list")
            _require_at_most("like", len(self.like), MOST_LIKED, "ids")
        elif isinstance(query, str):
            _require_at_most("the query", len(query), MOST_CHARACTERS, "characters")
            self.texts = [well_formed(query)]
        else:
            given = as_list(query, "the query", "a text, a vector or a list of texts or vectors")
            self.single = bool(given) and not isinstance(given[0], str) and _is_vector(given)
            if self.single or (given and _is_vector(given[0])):
                if options.mode not in (None, "dense"):
                    raise InputError(f"mode {options.mode!r} needs texts; search with vectors in mode 'dense'")
                rows = [query] if self.single else given
                vectors = [unit_vector(row, dimension, f"query {number}") for number, row in enumerate(rows, 1)]
                self.texts, self.vectors = [""] * len(vectors), np.stack(vectors)
            else:
                for number, text in enumerate(given, 1):
                    if not isinstance(text, str):
                        raise InputError(f"query {number} must be a string, got {described(text)}")
                    _require_at_most(f"query {number}", len(text), MOST_CHARACTERS, "characters")
                self.texts = [well_formed(text) for text in given]
        if options.rerank is not None and self.vectors is not None:
            raise InputError("rerank needs texts; a reranker cannot read vectors")
        if options.min_relevance is not None and (self.vectors is not None or self.like):
            raise InputError("min_relevance needs queries that are texts; use threshold, the lowest cosine")
        self.mode = options.mode or ("dense" if self.like or self.vectors is not None else "hybrid")
        exclude = listed(options.exclude, "exclude", "a text, an id or a list of them")
        _require_at_most("exclude", len(exclude), MOST_EXCLUDED, "texts and ids")
        characters = sum(len(item) for item in exclude if isinstance(item, str))
        _require_at_most("exclude", characters, MOST_CHARACTERS, "characters")
        self.exclude = [well_formed(item) if isinstance(item, str) else checked_id(item, 1) for item in exclude]
        if self.exclude and self.mode == "words":
            raise InputError("exclude needs mode 'dense' or 'hybrid', got 'words'")

    def embed(self, model: Callable[[], IndexModel]) -> None:
        """Embed the queries; ``model`` returns the model of the index. Without it ``hybrid`` goes by words alone."""
        self.model = model
        if self.vectors is not None or self.like:
            return
        try:
            self.vectors = model().queries(self.texts)
        except OtherModelError as error:
            if self.mode == "dense":
                raise
            if self.mode == "hybrid":
                # The caller of SearchIndex.search is warned.
                warnings.warn(f"found by words alone, not by meaning: {error}", stacklevel=3)
            self.mode, self.vectors = "words", np.zeros((len(self.texts), self.dimension), np.float32)

    def candidates(self, view: View) -> list[Candidates]:
        """Return the best passages for each query, or one list if the queries are fused, inside a transaction."""
        options, store = self.options, view.store
        if options.group not in (None, BY_DOCUMENT):
            for fields in store.unknown_fields([field_path(str(options.group))]).values():
                known = ", ".join([BY_DOCUMENT, *fields])
                raise InputError(f"group: no document has the field {options.group!r}; known are {known}")
        allowed = view.allowed(options.where)
        texts, vectors = self.texts, self.vectors
        corrected: list[dict[str, str]] = [{} for _ in texts]
        if self.mode != "dense" and vectors is not None:
            # Questions in plain language quote words that passages need not have side by side. If no passage has all
            # phrases of a query, it goes without all of its marks: those that are left would pair up anew.
            quoted = [phrases(text) for text in texts]
            missing = [bool(of) and not store.run(ANY_PASSAGE, (" AND ".join(of),)) for of in quoted]
            texts = [without_marks(text) if lacks else text for text, lacks in zip(texts, missing, strict=True)]
            corrected = [view.corrections.of(text, lambda word: self.model().knows(word)) for text in texts]
            texts = [respelled(text, words) for text, words in zip(texts, corrected, strict=True)]
            changed = [place for place, words in enumerate(corrected) if words]
            # Without the model of the index, words alone count.
            with suppress(OtherModelError):
                if changed:
                    vectors = vectors.copy()
                    vectors[changed] = self.model().queries([texts[place] for place in changed])
        if self.like or self.exclude:
            allowed, texts, vectors = self._with_examples(view, allowed, texts, vectors)
        assert vectors is not None
        # A query that the model cannot read has no meaning by which to judge a hit.
        judged = [bool(vector.any()) and any(self.texts) for vector in vectors]
        # For each ranking: its texts, whether they can judge hits, and corrected words.
        asked = [([text], known, words) for text, known, words in zip(texts, judged, corrected, strict=True)]
        if options.fuse:
            every = {typed: word for words in corrected for typed, word in words.items()}
            asked = [(texts, any(judged), every)]
        pool = self.pool
        while True:
            require_time()
            rankings = self._rankings(view, allowed, texts, vectors, pool)
            passages = store.fetch({row for ranking in rankings for row in ranking.rows.tolist()})
            found = [
                self._candidates_of(view, ranking, passages, *of_ranking)
                for ranking, of_ranking in zip(rankings, asked, strict=True)
            ]
            full = [len(each.hits) == self.pool for each in found]
            ended = [len(ranking.rows) < pool for ranking in rankings]
            if all(map(max, full, ended)) or pool >= min(max(view.count, 1), max(MOST_JUDGED, self.pool)):
                return found
            # Relevant passages replace those that are not.
            pool *= DEEPER

    def _with_examples(
        self, view: View, allowed: Mask | None, texts: list[str], vectors: Vectors | None
    ) -> tuple[Mask, list[str], Vectors]:
        """Return which passages may be found (not the examples), and the queries moved away from those to avoid."""
        store = view.store

        def centre(row: int, passages: int) -> Vectors:
            """Return the unit vector (dimension,) of a document, the normalised mean of its passages."""
            require_time()
            of_document: Vectors = unit_rows(view.vectors.get(np.arange(row, row + passages)).mean(axis=0)[None])[0]
            return of_document

        places = store.rows_of_ids(list(dict.fromkeys(self.like)))
        for identifier in self.like:
            if identifier not in places:
                raise InputError(f"like: no document has the id {identifier!r}")
        liked = list(places.values())
        if liked:
            beginning = "SELECT substr(text, 1, ?) FROM documents WHERE row = ?"
            beginnings = [store.run_one(beginning, (LIKED_CHARACTERS // len(liked), row))[0] for row, _ in liked]
            # Quotations in a document are not phrases that similar documents must contain.
            texts = [without_marks("\n".join(beginnings))]
            vectors = unit_rows(np.mean([centre(*place) for place in liked], axis=0)[None])
        assert vectors is not None
        # A string that is the id of a document is not read as a text.
        excluded = store.rows_of_ids(self.exclude)
        others = []
        for item in self.exclude:
            if isinstance(item, str) and item not in excluded:
                others.append(item)
            elif item not in excluded:
                raise InputError(f"exclude: no document has the id {item!r}")
        if self.exclude:
            away = [*(self.model().queries(others) if others else ()), *(centre(*place) for place in excluded.values())]
            away_from: Vectors = np.array(away, np.float32).mean(axis=0, keepdims=True)
            moved = unit_rows(vectors - np.float32(EXCLUDED_WEIGHT) * unit_rows(away_from))
            # A query that the model cannot read has no meaning, so it stays zero.
            vectors = np.where(vectors.any(axis=1, keepdims=True), moved, np.float32(0))
        mask = (view.live if allowed is None else allowed).copy()
        for row, passages in [*liked, *excluded.values()]:
            first = int(view.positions(np.array([row]))[0])
            mask[first : first + passages] = False
        return mask, texts, vectors

    def _rankings(
        self, view: View, allowed: Mask | None, texts: Sequence[str], vectors: Vectors, pool: int
    ) -> list[Ranking]:
        """Return at most ``pool`` passages for each query, by mode, fusion, threshold and grouping.

        A ranking is read in pieces of fixed depths whichever page is wanted, so that pages agree.
        """
        options, store = self.options, view.store
        path = None if options.group in (None, BY_DOCUMENT) else field_path(str(options.group))
        depth = DEPTH
        if self.mode == "dense" and not options.fuse and (view.faiss is None or view.faiss.exact):
            depth = DENSE_DEPTH
        count = 1 if options.fuse else len(texts)
        kept: list[list[Ranking]] = [[] for _ in range(count)]
        seen: list[set[int]] = [set() for _ in range(count)]
        groups: list[set[Any]] = [set() for _ in range(count)]
        while True:
            # In the mode ``hybrid``, what ranks lower by meaning must also be found by words, except where
            # hits shall differ from each other.
            is_plain = options.group is None and options.mmr is None
            surely = NEIGHBOURS if self.mode == "hybrid" and is_plain else depth
            pieces = [] if self.mode == "words" else dense(view, allowed, vectors, depth, surely)
            if self.mode != "dense":
                pieces = [
                    by_words(view, allowed, text, vector, depth, near)
                    for text, vector, near in zip_longest(texts, vectors, pieces)
                ]
            if options.fuse:
                pieces = [reciprocal_rank_fusion([piece.part(slice(depth)) for piece in pieces])]
            done = True
            for number, piece in enumerate(pieces):
                rows = piece.rows.tolist()
                new = np.array([row not in seen[number] for row in rows], bool)
                seen[number].update(rows)
                below = False
                if options.threshold is not None:
                    # Cosines descend, so no later passage of the mode ``dense`` reaches the threshold either.
                    descend = self.mode == "dense" and not options.fuse and len(piece.rows) > 0
                    below = descend and bool(piece.cosines[-1] < options.threshold)
                    new &= piece.cosines >= options.threshold
                places = np.flatnonzero(new)
                if options.group is not None:
                    firsts = []
                    for place, key in zip(places, store.group_keys(piece.rows[places].tolist(), path), strict=True):
                        if key not in groups[number]:
                            groups[number].add(key)
                            firsts.append(place)
                    places = np.array(firsts, np.int64)
                kept[number].append(piece.part(places))
                done &= piece.ended or below or sum(len(part.rows) for part in kept[number]) >= pool
            if done:
                rankings = []
                for parts in kept:
                    columns = zip(*(part[:4] for part in parts), strict=True)
                    rows_found, cosines, values, shares = (np.concatenate(column) for column in columns)
                    ranking = Ranking(rows_found, cosines, values, shares, parts[-1].ended)
                    rankings.append(ranking.part(slice(pool)))
                return rankings
            depth *= DEEPER

    def _candidates_of(
        self,
        view: View,
        ranking: Ranking,
        passages: dict[int, Passage],
        texts: Sequence[str],
        judged: bool,
        corrected: dict[str, str],
    ) -> Candidates:
        """Return the passages of one ranking that are relevant enough."""
        options, rows = self.options, ranking.rows.tolist()
        relevances: list[float | None] = [None] * len(rows)
        if judged and view.settings.unrelated is not None:
            found = [passages[row].text for row in rows]
            shares = np.max([word_shares(text, found) for text in texts], axis=0).tolist()
            relevances = [
                round(relevance(view.settings.unrelated, cosine, share, view.count), 4)
                for cosine, share in zip(ranking.cosines.tolist(), shares, strict=True)
            ]
        least = options.min_relevance
        kept = [place for place, of in enumerate(relevances) if least is None or of is None or of >= least]
        kept = kept[: self.pool]
        is_fused = options.fuse or self.mode == "hybrid"
        hits = []
        for place in kept:
            document, start, stop = passages[rows[place]]
            context = None
            if options.context:
                number = rows[place] - document.row
                near = document.spans[max(number - options.context, 0) : number + options.context + 1]
                context = document.text[near[0][0] : near[-1][1]]
            hits.append(
                Hit(
                    document.id,
                    float(ranking.cosines[place]),
                    document.text[start:stop],
                    dict(document.metadata),
                    start,
                    counted(document.metadata.get("line"), document.text, "\n", start),
                    counted(document.metadata.get("page"), document.text, "\f", start),
                    float(ranking.values[place]) if is_fused else None,
                    context=context,
                    document=document.text if options.document else None,
                    corrected=corrected or None,
                    relevance=relevances[place],
                )
            )
        chosen = ranking.part(kept)
        return Candidates(
            hits,
            shares_of_best(chosen.values) if options.fuse else chosen.values,
            texts,
            None if options.mmr is None else view.vectors.get(chosen.rows),
            chosen.by_words if self.mode == "hybrid" and not options.fuse else None,
        )

    def reranked(self, found: Sequence[Candidates], reranker: Reranker) -> list[Candidates]:
        """Return each query's first candidates ordered by a reranker's scores, for fused queries by the highest score.

        In the mode ``hybrid``, cosines of a larger model take the place of ours, see :func:`fused_scores`.
        """
        most = int(self.options.candidates)
        passages = [[hit.text for hit in candidates.hits[:most]] for candidates in found]
        scored = reranker.scores([candidates.texts for candidates in found], passages)
        ordered = []
        for candidates, scores in zip(found, scored, strict=True):
            best = scores.max(axis=0) if scores.size else np.empty(0)
            if reranker.cosines and candidates.by_words is not None:
                best = (shares_of_best(best) + candidates.by_words[:most]) / 2
            first = np.argsort(-best, kind="stable")
            order = np.append(first, np.arange(len(first), len(candidates.hits)))
            reranks = [*best.tolist(), *(None for _ in order[len(first) :])]
            ordered.append(
                candidates._replace(
                    hits=[replace(candidates.hits[place], reranked=reranks[place]) for place in order],
                    values=np.append(best, candidates.values[len(first) :])[order],
                    vectors=None if candidates.vectors is None else candidates.vectors[order],
                )
            )
        return ordered

    def hits(self, found: Sequence[Candidates]) -> list[list[Hit]]:
        """Return at most ``k`` hits from ``offset`` on of each list of candidates, diversified and highlighted."""
        options, chosen = self.options, []
        for candidates in found:
            hits = candidates.hits
            if options.mmr is not None and candidates.vectors is not None:
                most = int(options.candidates)
                values, vectors = candidates.values[:most], candidates.vectors[:most]
                order = maximal_marginal_relevance(values, vectors, most, options.mmr)
                hits = [hits[place] for place in order] + hits[most:]
            chosen.append(hits[int(options.offset) : self.wanted])
        if options.highlight and any(self.texts) and self.vectors is not None:
            texts = [self.texts] if options.fuse else [[text] for text in self.texts]
            of_texts = [self.vectors] if options.fuse else self.vectors[:, None]
            for of_query, asked, of_asked in zip(chosen, texts, of_texts, strict=True):
                found_in = [hit.text for hit in of_query]
                spans = highlights(found_in, asked, of_asked, lambda parts: self.model().documents(parts))
                of_query[:] = [replace(hit, highlight=span) for hit, span in zip(of_query, spans, strict=True)]
        return chosen


def dense(view: View, allowed: Mask | None, vectors: Vectors, depth: int, surely: int) -> list[Ranking]:
    """Rank passages by the cosines of their vectors; texts that the model cannot read are not found."""
    rankings = []
    for rows, of_rows in view.nearest(vectors, depth, allowed, surely):
        cosines = of_rows.astype(np.float64)
        rankings.append(Ranking(rows, cosines, cosines, np.zeros(len(rows)), len(rows) < depth))
    return rankings


def by_words(view: View, allowed: Mask | None, text: str, vector: Vectors, depth: int, near: Ranking | None) -> Ranking:
    """Rank passages by BM25; given the nearest by meaning, rank both by :func:`fused_scores`, ties by words."""
    require_time()
    if near is not None and (required := phrases(text)):
        # Passages that lack a phrase of the query are not found.
        having = view.store.run("SELECT rowid FROM words WHERE words MATCH ?", (" AND ".join(required),))
        mask = np.zeros(len(view.rows), bool)
        mask[view.positions(np.array(having, np.int64).ravel())] = True
        (near,) = dense(view, mask if allowed is None else mask & allowed, vector[None], depth, NEIGHBOURS)
    found = view.bm25.best(text, depth, allowed)
    known = {} if near is None else dict(zip(near.rows.tolist(), near.cosines.tolist(), strict=True))
    rows = np.array([*found, *(row for row in known if row not in found)], np.int64)
    new = np.array([row for row in found if row not in known], np.int64)
    known |= zip(new.tolist(), cosines_with(vector, view.vectors.get(new)).tolist(), strict=True)
    cosines = np.array([known[row] for row in rows.tolist()])
    shares = np.zeros(len(rows))
    shares[: len(found)] = shares_of_best(list(found.values()))
    if near is None:
        return Ranking(rows, cosines, shares, shares, len(found) < depth)
    values = fused_scores(cosines, shares)
    fused = Ranking(rows, cosines, values, shares, near.ended and len(found) < depth)
    return fused.part(np.argsort(-values, kind="stable"))


def fused_scores(cosines: Sequence[float] | Floats, by_words: Sequence[float] | Floats) -> Floats:
    """Return the mean of each passage's cosine and score by words (n,), both as shares (0 to 1) of the query's best.

    Source: Bruch, Gai and Ingber, An Analysis of Fusion Functions for Hybrid Retrieval (TOIS 2023).
    """
    return (shares_of_best(cosines) + shares_of_best(by_words)) / 2


def shares_of_best(scores: Sequence[float] | NDArray[Any]) -> Floats:
    """Return scores (n,) as shares (0 to 1) of the best one; those below 0 count as 0."""
    positive: Floats = np.maximum(np.asarray(scores, np.float64), 0)
    best = float(positive.max(initial=0))
    return positive / best if best > 0 else positive


def reciprocal_rank_fusion(rankings: Sequence[Ranking]) -> Ranking:
    """Fuse rankings of several queries by the sum of 1 / (60 + rank); ties keep the order of appearance.

    The cosine of a passage is the highest of its cosines with the queries.
    """
    sums: dict[int, float] = {}
    cosines: dict[int, float] = {}
    for ranking in rankings:
        for rank, (row, cosine) in enumerate(zip(ranking.rows.tolist(), ranking.cosines.tolist(), strict=True), 1):
            sums[row] = sums.get(row, 0.0) + 1 / (FUSION_CONSTANT + rank)
            cosines[row] = max(cosines.get(row, -1.0), cosine)
    rows = sorted(sums, key=sums.__getitem__, reverse=True)
    return Ranking(
        np.array(rows, np.int64),
        np.array([cosines[row] for row in rows]),
        np.array([sums[row] for row in rows]),
        np.zeros(len(rows)),
        all(ranking.ended for ranking in rankings),
    )


def maximal_marginal_relevance(relevance: NDArray[Any], vectors: Vectors, count: int, weight: float) -> list[int]:
    """Return the places of ``count`` items in the order of maximal marginal relevance.

    The next item always has the highest weight * relevance (n,) - (1 - weight) * its highest cosine with earlier items,
    by their unit vectors (n, dimension). If several have the same value, the first is chosen.

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
