"""Late interaction: each token of a query looks for its nearest token in a passage.

    late(passage) = sum_i w_i max_j cos(q_i + c_q / 2, d_j + c_d / 2) / sum_i w_i
    w_i = max(0, <v_i, sum v>) * log(1 + (n - n_i + .5) / (n_i + .5))

q_i and d_j are the unit rows of the tokens of query and passage, c_q and c_d the unit vectors of both, v_i what query
token i adds to c^K, and n_i how many of the n passages have it.

Source: Khattab and Zaharia, ColBERT (SIGIR 2020), for the sum of maxima; its weights and contexts are ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.numpy_model.embedder import Ids, Lengths, PackedContextualizer
from ctx_embed.numpy_model.saved import Floats
from ctx_embed.vectors import unit_rows

# The weight of the context beside a token.
CONTEXT = 0.5
# Maximum tokens of a query that look for others.
MOST_TOKENS = 256


class Late(NamedTuple):
    """What Q query tokens found in n passages: cosines (n, Q), at which tokens (n, Q), and the weights (Q,) >= 0."""

    cosines: Floats
    places: NDArray[np.int32]
    weights: Floats

    @property
    def scores(self) -> NDArray[np.float64]:
        """The scores (n,) of the passages, at least 0."""
        total = float(self.weights.sum())
        # A product of matrices could give equal passages different sums.
        sums = (self.cosines * self.weights.astype(np.float64)).sum(1)
        return np.maximum(sums, 0) / total if total > 0 else np.zeros(len(sums))


def late_interaction(
    model: PackedContextualizer, query: Ids, of_query: Floats, ids: Ids, lengths: Lengths, vectors: Floats
) -> Late:
    """Return what the first tokens of a query find in packed passages.

    ``of_query`` (dimension,) is the unit vector of the query and ``vectors`` (n, dimension) are those of the passages;
    they may have fewer features than the model.
    """
    query, kept = query[:MOST_TOKENS], len(of_query)
    tokens = unit_rows(unit_rows(model.table.rows(query)[:, :kept]) + np.float32(CONTEXT) * of_query)
    cosines, places, having = model.nearest_tokens(query, tokens, ids, lengths, np.float32(CONTEXT) * vectors)
    added = model.added_by_tokens(query)
    weights = np.maximum(added @ added.sum(0), 0) * np.log(1 + (len(lengths) - having + 0.5) / (having + 0.5))
    return Late(cosines, places, weights.astype(np.float32))
