"""Scores of cosines: whether they rank pairs of texts as people do, and the relevant documents of a query first."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import spearmanr
from sklearn.preprocessing import normalize

from ctx_embed.errors import InputError
from ctx_embed.eval.scoring.probes import Matrix
from ctx_embed.vectors import unit_rows

CUTOFF = 10
RECALL_CUTOFF = 100
BLOCK_SCORES = 1 << 24


def unit(X: Matrix) -> Matrix:
    """Return the rows of ``X`` (n, d) scaled to length 1 in float64; zero rows stay zero."""
    if sparse.issparse(X):
        return normalize(X)
    # Not scikit-learn's normalize, which does not scale very short rows.
    return unit_rows(np.asarray(X, np.float64))


def paired(A: Matrix, B: Matrix) -> NDArray[np.float64]:
    """Return cos(A_i, B_i) for each row, (n,)."""
    A, B = unit(A), unit(B)
    product: Any = A.multiply(B) if sparse.issparse(A) else A * B
    return np.asarray(product.sum(axis=1), np.float64).ravel()


@dataclass(frozen=True)
class SimilarityScore:
    """Spearman's rank correlation times 100 of each subset, and the cosines of its pairs in order."""

    subsets: Mapping[str, float]
    cosines: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean over the subsets, each of equal weight."""
        return float(np.mean(list(self.subsets.values())))


def spearman(cosines: Sequence[float], scores: Sequence[float]) -> float:
    """Return Spearman's rank correlation times 100 between n cosines and n judgements, neither of them all equal."""
    if len(set(scores)) < 2 or len(set(cosines)) < 2:
        what = "cosine" if len(set(scores)) > 1 else "score"
        raise InputError(f"all {len(scores)} pairs have the same {what}; there is nothing to rank")
    return 100.0 * float(spearmanr(cosines, scores).statistic)


@dataclass(frozen=True)
class RetrievalScore:
    """The metrics of each judged query, times 100, in the order of the queries: nDCG@10, recall@100 and MRR@10.

    Recall is the share of the relevant documents that are among the first 100; the reciprocal rank is that of the first
    relevant document among the first 10, else 0.
    """

    ndcg: tuple[float, ...]
    recall: tuple[float, ...]
    reciprocal_rank: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean nDCG@10 over the queries."""
        return float(np.mean(self.ndcg))

    @property
    def measures(self) -> dict[str, float]:
        """The means of all metrics by name."""
        return {
            f"nDCG@{CUTOFF}": self.mean,
            f"recall@{RECALL_CUTOFF}": float(np.mean(self.recall)),
            f"MRR@{CUTOFF}": float(np.mean(self.reciprocal_rank)),
        }


def ndcg(gains: Sequence[float], judged: Sequence[float]) -> float:
    """Return nDCG@10 = DCG / DCG of the best order, with DCG = sum_{r=1..10} gain_r / log2(r + 1).

    ``gains`` are the relevances of the documents found, best first (0 without a judgement); ``judged`` are those of all
    judged documents of the query, at least one of them above 0. A relevance below 0 counts as 0.

    Source: Järvelin and Kekäläinen 2002, with the linear gain of trec_eval.
    """

    def dcg(relevances: Sequence[float]) -> float:
        return sum(max(0.0, relevance) / math.log2(rank + 1) for rank, relevance in enumerate(relevances[:CUTOFF], 1))

    return dcg(gains) / dcg(sorted(judged, reverse=True))


def retrieve(
    queries: Matrix, documents: Matrix, ids: Sequence[str], k: int = RECALL_CUTOFF, block_scores: int = BLOCK_SCORES
) -> list[list[str]]:
    """Return for each query the ids of the ``k`` documents of largest cosine, nearest first.

    The embeddings are (q, d) and (n, d). Of equal cosines the larger id comes first, as in trec_eval; ``block_scores``
    cosines are computed at a time.
    """
    order = sorted(range(len(ids)), key=lambda place: ids[place], reverse=True)
    Q, D = unit(queries), unit(documents)[order]
    ranked: list[list[str]] = []
    block = max(1, block_scores // max(1, len(ids)))
    for start in range(0, Q.shape[0], block):
        cosines: Any = Q[start : start + block] @ D.T
        dense = cosines.toarray() if sparse.issparse(cosines) else cosines
        nearest = np.argsort(-dense, axis=1, kind="stable")[:, :k]
        ranked.extend([ids[order[place]] for place in row] for row in nearest)
    return ranked


def score_retrieval(
    query_ids: Sequence[str],
    queries: Matrix,
    document_ids: Sequence[str],
    documents: Matrix,
    judgements: Sequence[tuple[str, ...]],
    own: Set[str] = frozenset(),
) -> RetrievalScore:
    """Return nDCG@10, recall@100 and MRR@10 of the queries with a relevant document (a relevance above 0).

    ``judgements`` hold the query's id, the document's id, and the relevance as an integer. A relevant document that is
    not in the collection counts as not found; of two judgements the last counts. The queries ``own`` are also documents
    with the same id; each is left out of its own results.
    """
    relevances: dict[str, dict[str, int]] = {}
    for query, document, relevance in judgements:
        relevances.setdefault(query, {})[document] = int(relevance)
    judged = [place for place, query in enumerate(query_ids) if any(v > 0 for v in relevances.get(query, {}).values())]
    if not judged:
        raise InputError("at least one query must have a relevant document (a relevance above 0), got none")
    rows = []
    found = retrieve(queries[judged], documents, document_ids, RECALL_CUTOFF + (1 if own else 0))
    for place, ranking in zip(judged, found, strict=True):
        query = query_ids[place]
        of_query = relevances[query]
        ranking = [document for document in ranking if document != query or query not in own][:RECALL_CUTOFF]
        gains = [float(of_query.get(document, 0)) for document in ranking]
        first = next((rank for rank, gain in enumerate(gains[:CUTOFF], 1) if gain > 0), None)
        recall = sum(gain > 0 for gain in gains) / sum(value > 0 for value in of_query.values())
        rows.append((100 * ndcg(gains, [*of_query.values()]), 100 * recall, 100 / first if first else 0.0))
    return RetrievalScore(*(tuple(column) for column in zip(*rows, strict=True)))
