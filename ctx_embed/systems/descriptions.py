"""One line on each system: formula, parameters, complexity and source; and the list of them all."""

from __future__ import annotations

from typing import Any, NamedTuple

from ctx_embed.systems.registry import SYSTEMS, option_defaults, parameter_count, without_vocabulary


class Description(NamedTuple):
    """Formula, size, cost and source of an encoder.

    Symbols: m features of a token and d of a state (m, or 2 hidden over a bi-GRU), n tokens of a text, h heads; all
    others are option names.

    Args:
        formula: the sentence embedding.
        parameters: number of parameters with the default options, excluding the tables.
        complexity: cost of embedding one text.
        source: the publication.
    """

    formula: str
    parameters: str
    complexity: str
    source: str


DESCRIPTIONS: dict[str, Description] = {
    "contextualizer": Description(
        "c^k = c^(k-1) + LayerNorm(sum_i (W_k (U_k x_i * V_k c^(k-1)) + b_k) * x_i)",
        "steps * (3*rank*m + 3*m)",
        "O(steps n rank m)",
        "Maupome & Meurs 2022",
    ),
    "mean": Description("sum_i e(w_i) / n", "0", "O(n m)", "Wieting et al. 2016"),
    "lama": Description(
        "e_t = tanh((P^T c) * (Q^T h_t)) / ||.|| over heads; A = softmax_t(e); A H",
        "2*heads*m",
        "O(n m heads)",
        "Mehta et al. 2019",
    ),
    "lama-ctx": Description(
        "lama over the outputs of a bi-GRU",
        "6*hidden*(m + hidden + 2) + 4*heads*hidden",
        "O(n hidden (m + hidden + heads))",
        "Mehta et al. 2019",
    ),
    "bilinear": Description("sum_t softmax_t(c^T W h_t) h_t", "m*m", "O(m^2 + n m)", "Mehta et al. 2019, eq. 8"),
    "san": Description(
        "A = softmax_t(W2 tanh(W1 H^T)); A H; loss + penalty ||A A^T - I||_F^2",
        "attention_dimension*(m + heads)",
        "O(n attention_dimension (m + heads))",
        "Lin et al. 2017",
    ),
    "transformer": Description(
        "x_t = sqrt(m) e(w_t) + sinusoids; encoder layers; sum_t x_t / n",
        "layers*(4*m*m + 2*m*feedforward + feedforward + 9*m)",
        "O(layers (n m^2 + n^2 m))",
        "Vaswani et al. 2017",
    ),
    "dan": Description(
        "feed-forward layers over the mean of word and bigram embeddings",
        "m*hidden + hidden + (layers - 2)*(hidden*hidden + hidden) + hidden*m + m",
        "O(n m + m hidden)",
        "Iyyer et al. 2015; Cer et al. 2018",
    ),
    "use-transformer": Description(
        "transformer with sum_t x_t / sqrt(n)",
        "layers*(4*m*m + 2*m*feedforward + feedforward + 9*m)",
        "O(layers (n m^2 + n^2 m))",
        "Cer et al. 2018",
    ),
    "bigru": Description(
        "max_t [GRU forward; GRU backward]_t",
        "6*hidden*(m + hidden + 2)",
        "O(n hidden (m + hidden))",
        "Cho et al. 2014",
    ),
    "cnn": Description(
        "max_j relu(F_w [e(w_j); ..; e(w_(j+w-1))] + b_w), w = 3, 4, 5",
        "filters*(12*m + 3)",
        "O(n m filters)",
        "Kim 2014",
    ),
    "self-attention": Description("mean of softmax(X X^T) X", "0", "O(n^2 m)", "Vaswani et al. 2017"),
    "self-attention-parametric": Description(
        "mean of tanh(softmax(Q K^T / sqrt(m)) V) W_o", "4*m*m", "O(n m^2 + n^2 m)", "Vaswani et al. 2017"
    ),
    "attentive": Description(
        "sum_t softmax_t(score(q, h_t)) h_t; score content, additive, location, general, dot, scaled-dot",
        "m",
        "O(n m)",
        "Bahdanau et al. 2015; Luong et al. 2015",
    ),
}

# Further encoders for `ctx-embed eval run --encoder`; they are fitted in each training fold.
EVALUATION_BASELINES = {
    "tfidf": "tf-idf vectors, fitted inside each training fold",
    "majority": "the training fold's most frequent class",
}


def listing(dimension: int) -> list[dict[str, Any]]:
    """Return each system's name, kind, formula, parameters, their count by default, complexity, source and options.

    Args:
        dimension: m, for the count.

    Raises:
        InputError: a dimension that the default heads of a Transformer do not divide.
    """
    return [
        {
            "name": name,
            "kind": "system",
            **DESCRIPTIONS[name]._asdict(),
            "parameter_count": parameter_count(without_vocabulary(name, dimension)),
            "options": option_defaults(name),
        }
        for name in SYSTEMS
    ]


def baselines() -> list[dict[str, Any]]:
    """Return the baselines that evaluation offers besides the systems."""
    return [
        {"name": name, "kind": "evaluation baseline", "formula": line} for name, line in EVALUATION_BASELINES.items()
    ]
