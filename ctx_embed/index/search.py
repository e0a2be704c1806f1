"""One search: its queries, the rankings of passages by each mode, and the hits among them."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.deadlines import require_time, timely
from ctx_embed.errors import InputError, OtherModelError, listed_names, quoted, warn
from ctx_embed.index.database import Passage
from ctx_embed.index.faiss_file import NEIGHBOURS
from ctx_embed.index.filters import field_path
from ctx_embed.index.folder import View
from ctx_embed.index.hits import DEFAULT_RELEVANCE, Hit, Hits, counted, highlights, relevance, word_shares
from ctx_embed.index.query import BY_DOCUMENT, Query
from ctx_embed.index.vectors import Mask, Rows, Vectors
from ctx_embed.index.words import ASKED_CHARACTERS, asked, without_marks
from ctx_embed.model import Model
from ctx_embed.numpy_model.late import Late
from ctx_embed.numpy_model.saved import read_json
from ctx_embed.vectors import unit_rows

Floats = NDArray[np.float64]

# Rocchio's weight of the mean of the examples to avoid (0.15 to 0.75 in Salton and Buckley, 1990).
EXCLUDED_WEIGHT = 0.5
# How many passages the first piece of a ranking has where all vectors are compared, and elsewhere: more, because order
# holds only within a piece, and what ranks low by meaning and by words may be best. Each next piece is DEEPER times it.
DENSE_DEPTH, DEPTH, DEEPER = 25, 100, 4
# How many passages late interaction looks at, with at most MOST_TIED of those tied with the last one.
LOOKED_AT, MOST_TIED = 25, 25
# How many of the best passages say whether a query is answered, however few are asked for.
JUDGED = 10
# With a lowest relevance, hits are chosen among this number of passages.
MOST_JUDGED = 1600
# Number of passages to read at a time.
PASSAGES_AT_ONCE = 256


class Ranking(NamedTuple):
    """Passages found for a query or for fused queries, best first; ``ended``: there are no more."""

    rows: Rows
    # With the query; the highest one for fused queries.
    cosines: Floats
    # What orders them: cosines, scores by words, or fused scores.
    values: Floats
    # Scores by words, as shares of the best one; zeros if they were not searched for by words.
    by_words: Floats
    ended: bool
    # Late scores of the passages that were looked at a second time, else NaN; None without.
    late: Floats | None = None


@dataclass
class Candidates:
    """The passages from which the hits for a query, or for fused queries, are chosen, best first."""

    texts: Sequence[str]
    corrected: dict[str, str]
    # Whether the model can read a query, and so judge its hits.
    judged: bool
    hits: list[Hit] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    # Of each hit what orders it, its share of the best score by words, and its late score.
    scores: list[tuple[float, float, float]] = field(default_factory=list)
    # The vectors of the hits, if MMR needs them.
    vectors: Vectors | None = None
    # The rows that were ranked, the values to group by that they have, and the relevances that were not enough.
    seen: set[int] = field(default_factory=set)
    groups: set[Any] = field(default_factory=set)
    irrelevant: list[float] = field(default_factory=list)


def embedded(query: Query, model: Callable[[], Model], dimension: int) -> Query:
    """Return a query with the vectors of its texts; ``hybrid`` goes by words alone without the model of the index."""
    if query.vectors is not None or query.like:
        return query
    try:
        return replace(query, vectors=model().queries(query.texts))
    except OtherModelError as error:
        if query.mode == "dense":
            raise
        if query.mode == "hybrid":
            warn(f"found by words alone, not by meaning: {error}")
        return replace(query, mode="words", vectors=np.zeros((len(query.texts), dimension), np.float32))


class Search:
    """One search: :meth:`candidates` finds passages for a query, inside a transaction, and :meth:`hits` chooses."""

    def __init__(self, query: Query, model: Callable[[], Model]) -> None:
        self.query, self.options, self.model = query, query.options, model
        # The number of passages to choose hits from: up to the last one returned, or more.
        varied = self.options.rerank is not None or self.options.mmr is not None
        self.pool = max(int(self.options.offset) + int(self.options.k), int(self.options.candidates) if varied else 0)
        # The passages that late interaction looked at last, by row.
        self.looked_at: dict[int, Passage] = {}
        # The numbers of lines and of pages that are known of each document, by its row, see :func:`counted`.
        self.known = defaultdict[int, list[list[tuple[int, int]]]](lambda: [[], []])

    def candidates(self, view: View) -> list[Candidates]:
        """Return the best passages for each query, or one list if the queries are fused, inside a transaction."""
        options, store = self.options, view.store
        group = None if options.group in (None, BY_DOCUMENT) else field_path(str(options.group))
        for fields in store.unknown_fields([(group, False)]).values() if group else ():
            names = listed_names([BY_DOCUMENT, *fields])
            raise InputError(f"group: no document has the field {quoted(options.group)}; known are {names}")
        allowed, texts, vectors, every = self._asked(view)
        if view.settings.unrelated is not None and self.query.mode != "words" and options.min_relevance is None:
            self.pool = max(self.pool, JUDGED)
        # A ranking is read in pieces of fixed depths whichever page is wanted, so that pages agree.
        depth, done = DEPTH, False
        if self.query.mode == "dense" and not options.fuse and (view.nearest.faiss is None or view.nearest.faiss.exact):
            depth = DENSE_DEPTH
        # In the mode ``hybrid``, what ranks lower by meaning must also be found by words, except where hits shall
        # differ from each other.
        is_plain = self.query.mode == "hybrid" and options.group is None and options.mmr is None
        while not done:
            require_time()
            near: list[Any] = [None] * len(texts)
            if self.query.mode != "words":
                near = view.nearest.best(vectors, depth, allowed, NEIGHBOURS if is_plain else depth)
            if self.query.mode == "dense":
                pieces = []
                for rows, of_rows in near:
                    cosines = of_rows.astype(np.float64)
                    pieces.append(Ranking(rows, cosines, cosines, np.zeros(len(rows)), len(rows) < depth))
            else:
                pieces = [ranking_of(view, allowed, depth, *query) for query in zip(texts, vectors, near, strict=True)]
                if options.late and self.query.mode == "hybrid":
                    pieces = [self._again(view, *query) for query in zip(pieces, texts, vectors, strict=True)]
            # Cosines descend, so once one is below the threshold, no later one reaches it; that of zero vectors is 0.
            if (least := options.threshold or 0) > 0 and not options.fuse:
                low = [each is not None and bool((each[1] < least).any()) for each in near]
                pieces = [piece._replace(ended=piece.ended or ends) for piece, ends in zip(pieces, low, strict=True)]
            if options.fuse:
                pieces = [reciprocal_rank_fusion(pieces, depth)]
            done = True
            for chosen, piece in zip(every, pieces, strict=True):
                ranked = piece.rows.tolist()
                places = np.array([place for place, row in enumerate(ranked) if row not in chosen.seen], np.int64)
                chosen.seen.update(ranked)
                if options.threshold is not None:
                    places = places[piece.cosines[places] >= options.threshold]
                if options.group is not None:
                    is_first = []
                    for key in store.group_keys(piece.rows[places].tolist(), group):
                        is_first.append(key not in chosen.groups)
                        chosen.groups.add(key)
                    places = places[is_first]
                self._choose(view, chosen, piece, places)
                full = len(chosen.hits) == self.pool or len(chosen.irrelevant) >= MOST_JUDGED
                done &= piece.ended or full
            depth *= DEEPER
        for chosen in every if options.mmr is not None else ():
            chosen.vectors = view.vectors.get(np.array(chosen.rows, np.int64))
        return every

    def _asked(self, view: View) -> tuple[Mask | None, list[str], Vectors, list[Candidates]]:
        """Return which passages may be found, the queries with their corrections, and their still empty candidates."""
        condition, texts, vectors = self.options.condition, list(self.query.texts), self.query.vectors
        allowed = view.unfiltered if condition is None else view.allowed(condition)
        corrected: list[dict[str, str]] = [{}] * len(texts)
        if self.query.mode != "dense" and vectors is not None:
            corrections = view.words.corrections
            for place, text in enumerate(timely(self.query.texts)):
                # A single entry of the model's vocabulary is hardly a typo.
                texts[place], corrected[place] = corrections.applied(
                    text, lambda word: (own := self.model().tokenizer) is not None and own.token_to_id(word) is not None
                )
            changed = [place for place, words in enumerate(corrected) if any('"' not in typed for typed in words)]
            # Without the model of the index, words alone count.
            with suppress(OtherModelError):
                if changed:
                    vectors = vectors.copy()
                    vectors[changed] = self.model().queries([texts[place] for place in changed])
        if self.query.like or self.query.exclude:
            allowed, texts, vectors = self._with_examples(view, allowed, texts, vectors)
        assert vectors is not None
        has_texts = any(self.query.texts)
        judged = [has_texts and bool(vector.any()) for vector in vectors]
        if self.options.fuse:
            every = {typed: word for words in corrected for typed, word in words.items()}
            return allowed, texts, vectors, [Candidates(texts, every, any(judged))]
        columns = zip(texts, corrected, judged, strict=True)
        return allowed, texts, vectors, [Candidates([text], words, bar) for text, words, bar in columns]

    def _with_examples(
        self, view: View, allowed: Mask | None, texts: list[str], vectors: Vectors | None
    ) -> tuple[Mask, list[str], Vectors]:
        """Return which passages may be found (not the examples), and the queries moved away from those to avoid."""
        store = view.store

        def centre(row: int, passages: int) -> Vectors:
            """Return the unit vector (dimension,) of a document, the normalised mean of its passages."""
            return unit_rows(view.vectors.get(np.arange(row, row + passages)).mean(axis=0))

        places = store.rows_of_ids(self.query.like)
        for identifier in self.query.like:
            if str(identifier) not in places:
                raise InputError(f"like: no document has the id {quoted(identifier)}")
        liked = [place for _, *place in places.values()]
        if liked:
            beginning, length = "SELECT substr(text, 1, ?) FROM documents WHERE row = ?", ASKED_CHARACTERS // len(liked)
            beginnings = [text for row, _ in liked for (text,) in store.run(beginning, (length, row))]
            # Quotations in a document are not phrases that similar documents must contain.
            texts = [without_marks("\n".join(beginnings))]
            vectors = unit_rows(np.mean([centre(*place) for place in liked], axis=0)[None])
        assert vectors is not None
        # A string that is the id of a document is not read as a text.
        excluded = store.rows_of_ids(self.query.exclude)
        others = [item for item in self.query.exclude if isinstance(item, str) and item not in excluded]
        for item in self.query.exclude:
            if not isinstance(item, str) and str(item) not in excluded:
                raise InputError(f"exclude: no document has the id {quoted(item)}")
        if self.query.exclude:
            away = [*(self.model().queries(others) if others else ()), *(centre(*one) for _, *one in excluded.values())]
            away_from: Vectors = np.array(away, np.float32).mean(axis=0, keepdims=True)
            moved = unit_rows(vectors - np.float32(EXCLUDED_WEIGHT) * unit_rows(away_from))
            # A query that the model cannot read has no meaning, so it stays zero.
            vectors = np.where(vectors.any(axis=1, keepdims=True), moved, np.float32(0))
        mask = (view.live if allowed is None else allowed).copy()
        for row, passages in [*liked, *(place for _, *place in excluded.values())]:
            first = int(view.positions(np.array([row]))[0])
            mask[first : first + passages] = False
        return mask, texts, vectors

    def _again(self, view: View, ranking: Ranking, text: str, vector: Vectors) -> Ranking:
        """Order a hybrid ranking by the mean of three shares; the third is 0 for passages that are not looked at."""

        def look(count: int) -> Late | None:
            # What is like a document can be found without the model, but not looked at again.
            with suppress(OtherModelError):
                model = self.model()
                if model.looks_again:
                    rows = ranking.rows[:count]
                    self.looked_at = view.store.fetch(rows.tolist())
                    texts = [passage.text for passage in self.looked_at.values()]
                    return model.late(text, vector, texts, view.nearest.vectors_of(rows))
            return None

        values, late = second_look(ranking.values, look)
        if late is None:
            return ranking
        order = np.argsort(-values, kind="stable")
        first = ranking.rows[order], ranking.cosines[order], values[order]
        return Ranking(*first, ranking.by_words[order], ranking.ended, late[order])

    def _choose(self, view: View, candidates: Candidates, ranking: Ranking, places: Rows) -> None:
        """Add the passages at some places of a ranking that are relevant enough, until there are enough."""
        options, least, unrelated = self.options, self.options.min_relevance, view.settings.unrelated
        while len(places) and (missing := self.pool - len(candidates.hits)):
            # The more were not relevant enough, the more are read at once: each time reads their documents anew.
            some, places = np.split(places, [min(missing + len(candidates.irrelevant), PASSAGES_AT_ONCE)])
            rows = ranking.rows[some].tolist()
            passages = self.looked_at
            passages = {row: passages[row] for row in rows} if passages.keys() >= set(rows) else view.store.fetch(rows)
            shares: Any = None
            if candidates.judged and unrelated is not None:
                # The words of the query of which a passage has the most.
                texts = [passage.text for passage in passages.values()]
                shares = np.max([word_shares(query, texts) for query in candidates.texts], axis=0)
            for number, (row, passage) in enumerate(passages.items()):
                if len(candidates.hits) == self.pool:
                    break
                place, document, text = some[number], passage.document, passage.document.text
                lines, pages = self.known[document.row]
                score, relevant, context = float(ranking.cosines[place]), None, None
                late = math.nan if ranking.late is None else float(ranking.late[place])
                if shares is not None and unrelated is not None:
                    relevant = round(relevance(unrelated, score, float(shares[number]), view.count), 4)
                if least is not None and relevant is not None and relevant < least:
                    candidates.irrelevant.append(relevant)
                    continue
                if options.context:
                    own = row - document.row
                    near = document.spans[max(own - options.context, 0) : own + options.context + 1]
                    context = text[near[0][0] : near[-1][1]]
                candidates.hits.append(
                    Hit(
                        document.id,
                        score,
                        passage.text,
                        dict(document.metadata),
                        passage.start,
                        counted(document.metadata.get("line"), text, "\n", passage.start, lines),
                        counted(document.metadata.get("page"), text, "\f", passage.start, pages),
                        float(ranking.values[place]) if options.fuse or self.query.mode == "hybrid" else None,
                        late=late if late == late else None,
                        context=context,
                        document=text if options.document else None,
                        corrected=candidates.corrected or None,
                        relevance=relevant,
                    )
                )
                candidates.rows.append(row)
                candidates.scores.append((ranking.values[place], ranking.by_words[place], late))

    def hits(self, lists: Sequence[Candidates], reranker: Reranker | None) -> list[Hits]:
        """Return the hits for each query from ``offset`` on: reranked, varied, highlighted; ``found`` may be empty."""
        asked, options, chosen = self.query, self.options, []
        most, first = int(options.candidates), int(options.offset)
        for number, query in enumerate([" ".join(asked.texts).strip()] if options.fuse else asked.texts):
            candidates = lists[number] if lists else Candidates([], {}, judged=False)
            hits, vectors = candidates.hits, candidates.vectors
            values, own_words, late = np.array(candidates.scores, np.float64).reshape(-1, 3).T
            if options.fuse:
                values = shares_of_best(values)
            if reranker is not None and hits:
                best = reranker.scores(candidates.texts, [hit.text for hit in hits[:most]]).max(axis=0)
                if reranker.cosines and asked.mode == "hybrid" and not options.fuse:
                    # Its cosines take the place of ours, see ranking_of.
                    late = shares_of_best(np.nan_to_num(late[:most]))
                    shares = shares_of_best(best) + own_words[:most] + late
                    best = shares / (3 if late.any() else 2)
                order = np.argsort(-best, kind="stable")
                hits = [replace(hits[place], reranked=float(best[place])) for place in order] + hits[most:]
                values = np.append(best[order], values[most:])
                vectors = None if vectors is None else vectors[order]
            if options.mmr is not None and vectors is not None:
                varied = maximal_marginal_relevance(values[:most], vectors[:most], most, options.mmr)
                hits = [hits[place] for place in varied] + hits[most:]
            relevances = [hit.relevance for hit in hits if hit.relevance is not None] + candidates.irrelevant[:JUDGED]
            best_of_all = max(relevances, default=None)
            answered = None if best_of_all is None or asked.mode == "words" else best_of_all >= DEFAULT_RELEVANCE
            hits = hits[first : first + int(options.k)]
            own = slice(None) if options.fuse else slice(number, number + 1)
            is_known = True
            if asked.vectors is not None and asked.mode != "words" and any(asked.texts):
                is_known = bool(asked.vectors[own].any(axis=1).all())
            if options.highlight and any(asked.texts) and asked.vectors is not None:
                texts = [hit.text for hit in hits]
                vectors = asked.vectors[own]
                spans = highlights(texts, asked.texts[own], vectors, lambda some: self.model().documents(some))
                hits = [replace(hit, highlight=span) for hit, span in zip(hits, spans, strict=True)]
            chosen.append(Hits(query, hits, is_known, answered))
        return chosen


def ranking_of(
    view: View, allowed: Mask | None, depth: int, text: str, vector: Vectors, near: tuple[Rows, Vectors] | None
) -> Ranking:
    """Return passages ranked by BM25, or, with those ``near`` by meaning, by the mean of cosine and score by words.

    For the mean, each is a share (0 to 1) of the query's best. Equal means keep the order of words.

    Source: Bruch, Gai and Ingber, An Analysis of Fusion Functions for Hybrid Retrieval (TOIS 2023).
    """
    if near is not None and (required := asked(text).phrases):
        # Passages that lack a phrase of the query are not found.
        having = view.store.run("SELECT rowid FROM words WHERE words MATCH ?", (" AND ".join(required),))
        mask = np.zeros(len(view.rows), bool)
        mask[view.positions(np.array(having, np.int64).ravel())] = True
        (near,) = view.nearest.best(vector[None], depth, mask if allowed is None else mask & allowed, NEIGHBOURS)
    by_words = view.words.best(text, depth, allowed)
    cosine_of = {} if near is None else dict(zip(near[0].tolist(), near[1].tolist(), strict=True))
    ended = len(by_words) < depth and (near is None or len(near[0]) < depth)
    rows = np.array(list(dict.fromkeys([*by_words, *cosine_of])), np.int64)
    others = np.array(sorted(by_words.keys() - cosine_of.keys()), np.int64)
    new, of_new = view.nearest.ranked(vector, others, len(by_words))
    cosine_of |= zip(new.tolist(), of_new.tolist(), strict=True)
    # Texts that the model cannot read have no cosine.
    cosines = np.array([cosine_of.get(row, 0.0) for row in rows.tolist()])
    shares = np.zeros(len(rows))
    shares[: len(by_words)] = shares_of_best(list(by_words.values()))
    if near is None:
        return Ranking(rows, cosines, shares, shares, ended)
    values = (shares_of_best(cosines) + shares) / 2
    order = np.argsort(-values, kind="stable")
    return Ranking(rows[order], cosines[order], values[order], shares[order], ended)


def shares_of_best(scores: Sequence[float] | NDArray[Any]) -> Floats:
    """Return scores (n,) as shares (0 to 1) of the best one; those below 0 count as 0."""
    positive: Floats = np.maximum(np.asarray(scores, np.float64), 0)
    best = float(positive.max(initial=0))
    return positive / best if best > 0 else positive


def second_look(values: Floats, look: Callable[[int], Late | None]) -> tuple[Floats, Floats | None]:
    """Return the means of three shares, from those of two (n,), best first, and the late scores (n,).

    ``look`` returns what the tokens of the query find in the first passages, given their number. Those that are not
    looked at have the share 0 and the score NaN. If it returns None, the values stay, and there are no late scores.
    """
    count = int(np.count_nonzero(values[: LOOKED_AT + MOST_TIED] >= values[:LOOKED_AT].min(initial=np.inf)))
    looked = look(count) if count else None
    if looked is None:
        return values, None
    late, sums = np.full(len(values), np.nan), 2 * values
    late[:count] = scores = looked.scores
    sums[:count] += shares_of_best(scores)
    return sums / 3, late


def reciprocal_rank_fusion(rankings: Sequence[Ranking], most: int) -> Ranking:
    """Fuse the first ``most`` passages of rankings of several queries by the sum of 1 / (60 + rank).

    Ties keep the order of appearance. The cosine of a passage is the highest of its cosines with the queries.

    Source: Cormack, Clarke and Buettcher (SIGIR 2009).
    """
    sums, cosines = dict[int, float](), dict[int, float]()
    for ranking in rankings:
        first = ranking.rows[:most].tolist(), ranking.cosines[:most].tolist()
        for rank, (row, cosine) in enumerate(zip(*first, strict=True), 1):
            sums[row] = sums.get(row, 0.0) + 1 / (60 + rank)
            cosines[row] = max(cosines.get(row, -1.0), cosine)
    rows = sorted(sums, key=sums.__getitem__, reverse=True)
    highest, values = np.array([cosines[row] for row in rows]), np.array([sums[row] for row in rows])
    ended = all(ranking.ended for ranking in rankings)
    return Ranking(np.array(rows, np.int64), highest, values, np.zeros(len(rows)), ended)


def maximal_marginal_relevance(relevance: NDArray[Any], vectors: Vectors, count: int, weight: float) -> list[int]:
    """Return the places of ``count`` items in the order of maximal marginal relevance.

    The next item always has the highest weight * relevance (n,) - (1 - weight) * its highest cosine with earlier items,
    by their unit vectors (n, dimension). If several have the same value, the first is chosen.

    Source: Carbonell and Goldstein (SIGIR 1998).
    """
    cosines = vectors @ vectors.T
    left = weight * relevance.astype(np.float64)
    nearest = np.full(len(left), -np.inf)
    order, taken = list[int](), np.zeros(len(left), bool)
    for _ in range(min(count, len(left))):
        require_time()
        # The first item is the most relevant one.
        marginal = np.where(taken, -np.inf, left - (1 - weight) * nearest if order else relevance)
        order.append(int(np.argmax(marginal)))
        taken[order[-1]] = True
        nearest = np.maximum(nearest, cosines[order[-1]])
    return order


class Reranker:
    """A model that scores passages: by ``cosines`` of its embeddings, or as a CrossEncoder, which reads pairs of texts.

    ``model`` is a name or folder, a SentenceTransformer, an Embedder or a CrossEncoder; InputError if it cannot rerank.
    """

    def __init__(self, model: Any) -> None:
        if isinstance(model, str | Path):
            reads_pairs = str(model).startswith("cross-encoder/")
            if os.path.isdir(model):
                paths = (Path(model) / name for name in ("config_sentence_transformers.json", "config.json"))
                configs = [read_json(path) for path in paths if path.is_file()]
                reads_pairs = any(
                    config.get("model_type") == "CrossEncoder"
                    or "ForSequenceClassification" in str(config.get("architectures"))
                    for config in configs
                )
            if reads_pairs:
                from ctx_embed.loading import load_cross_encoder

                model = load_cross_encoder(str(model))
        self.cosines = isinstance(model, str | Path) or hasattr(model, "encode_query")
        if not self.cosines and not hasattr(model, "predict"):
            raise InputError(f"rerank must be a model or the name of one, got {type(model).__name__}")
        self._model: Any = Model.of(model) if self.cosines else model

    def scores(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[Any]:
        """Return the scores (queries, passages); raise InputError if a CrossEncoder's are several, or not finite."""
        if self.cosines:
            cosines: NDArray[Any] = self._model.similarity(queries, passages)
            return cosines
        pairs = [(query, passage) for query in queries for passage in passages]
        outputs = np.asarray(self._model.predict(pairs, show_progress_bar=False))
        if outputs.ndim != 1 or not np.isfinite(outputs).all():
            raise InputError(f"the reranker must return one finite score for each pair, got the shape {outputs.shape}")
        return outputs.reshape(len(queries), len(passages))
