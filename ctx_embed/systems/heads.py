"""Systems with attention heads over the tokens, or over a bi-GRU's states: LAMA, bilinear, structured, attentive."""

import math
from abc import abstractmethod
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import InputError, quoted, unknown_name
from ctx_embed.options import require_size
from ctx_embed.second_order import document_ids, token_positions
from ctx_embed.systems.attention import attended, groups_of, segment_mean, segment_softmax, unit
from ctx_embed.systems.encoder import SystemEncoder, TableOptions, offsets_of, recurrent_states

CONTEXTS = ("learned", "mean")
SCORES = ("content", "additive", "location", "general", "dot", "scaled-dot")


class HeadsEncoder(SystemEncoder):
    """S = A H, flattened: h weighted sums of the states H, which are the token embeddings or a bi-GRU's outputs.

    ``heads`` is h, the rows of A; ``hidden`` the units of the bi-GRU per direction, 0 without one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int,
        *,
        heads: int = 1,
        hidden: int = 0,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        require_size("heads", heads)
        if hidden != 0 or isinstance(hidden, bool):
            require_size("hidden", hidden)
            self.recurrent = nn.GRU(dimension, hidden, bidirectional=True)
        self.heads = heads
        self.hidden = hidden
        self.state_dimension = 2 * hidden or dimension

    def states(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return H of packed tokens, (N, state dimension)."""
        tokens = self.embedding(ids)
        return recurrent_states(self.recurrent, tokens, offsets) if self.hidden else tokens

    @abstractmethod
    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return A^T, (N, h), of packed states (N, state dimension)."""

    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return S = A H flattened, (B, h * state dimension); zero for a text without tokens."""
        offsets = offsets_of(lengths, ids.device)
        states = self.states(ids, offsets)
        groups = list(groups_of(lengths, ids.device))
        return attended(self.token_weights(states, offsets), states, lengths, groups).flatten(1)

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set the linear map to the mean over heads, if there is no bi-GRU and the map keeps the table's dimension."""
        if not self.hidden and self.output_dimension == self.dimension:
            self.output.weight.copy_(torch.eye(self.dimension).repeat(1, self.heads) / self.heads)
            self.output.bias.zero_()

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return A of each text, (h, n)."""
        offsets = offsets_of(lengths, ids.device)
        return [part.T for part in self.token_weights(self.states(ids, offsets), offsets).split(lengths)]


class _AskedByContext(HeadsEncoder):
    """Heads whose scores compare each state with one context c of the text."""

    def begin_context(self, context: str) -> None:
        """Set up c: the mean of the text's states, or a learned vector initialised as the mean state of all entries."""
        if context not in CONTEXTS:
            raise unknown_name("context", context, CONTEXTS)
        self.context = context
        self.c: nn.Parameter | None = None
        if context == "learned":
            table = self.embedding.weight
            mean = table.new_empty(self.state_dimension)
            if not table.is_meta:  # Without values, only the shape matters.
                entries = torch.arange(len(table), device=table.device)
                with torch.no_grad():
                    mean = self.states(entries, torch.arange(len(entries) + 1, device=entries.device)).mean(0)
            self.c = nn.Parameter(mean)

    def asked(self, states: Tensor, offsets: Tensor, matrix: Tensor) -> Tensor:
        """Return c^T times a matrix (d, k) for each state, (N, k); if c is learned, one row (k,) for all states."""
        if self.c is not None:
            return self.c @ matrix
        return (segment_mean(states, offsets).to(states.dtype) @ matrix)[document_ids(offsets)]


class Lama(_AskedByContext):
    """Low-rank multi-head attention (LAMA): bilinear forms of low rank between a context and each token.

        e_t = tanh((P^T c) * (Q^T h_t)), divided by ||e_t||_2 over the heads
        A = softmax of e over the tokens, a row a head
        sentence embedding = A H, flattened

    Shapes: H (n, d); P, Q (d, h); c (d,); A (h, n); the embedding (h d,), or (output_dimension,) after a linear map. d
    is m, or 2 hidden. A text without tokens is embedded as zeros, or as the bias of the linear map. A rank r above 1
    sums the product over r columns of P and Q for each head (equation 10); a layer of l units scores tanh(L h_t + b) in
    place of h_t, so that Q is (l, h r) (equation 7).

    Args:
        heads: h.
        context: c: ``mean`` of the text's states, or ``learned``, initialised as the mean of the embeddings.
        rank: r.
        layer: l; 0: no layer.
        hidden: units per direction of a bi-GRU whose outputs are H; 0: H is the token embeddings; None: 0, or half the
            dimension in :class:`LamaCtx`.
        output_dimension: features after a final linear map; None: no map.

    Source: Mehta, Rangwala & Ramakrishnan (2019), arXiv 1912.00835.
    """

    config_file_name = "lama_config.json"
    reads_gru = False

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        heads: int = 30,
        context: Literal["mean", "learned"] = "mean",
        rank: int = 1,
        layer: int = 0,
        hidden: int | None = None,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        if hidden is None:
            hidden = max(1, dimension // 2) if self.reads_gru else 0
        super().__init__(tokenizer, dimension, heads=heads, hidden=hidden, **table)
        require_size("rank", rank)
        d = scored = self.state_dimension
        if layer != 0 or isinstance(layer, bool):
            require_size("layer", layer)
            self.scored, scored = nn.Linear(d, layer), layer
        self.rank = rank
        self.layer = layer
        self.P = nn.Parameter(torch.randn(d, heads * rank) * d**-0.5)
        self.Q = nn.Parameter(torch.randn(scored, heads * rank) * scored**-0.5)
        self.begin_context(context)
        self.begin_output(heads * d, output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return A^T, (N, h), of packed states (N, d)."""
        tokens = torch.tanh(self.scored(states)) if self.layer else states
        # In float16 the products of small factors would underflow.
        exact = torch.promote_types(tokens.dtype, torch.float32)
        products = self.asked(states, offsets, self.P).to(exact) * (tokens @ self.Q).to(exact)
        # The ``rank`` columns of a head lie next to each other.
        scores = unit(torch.tanh(products.unflatten(1, (-1, self.rank)).sum(2)))
        return segment_softmax(scores, offsets)


class LamaCtx(Lama):
    """:class:`Lama` over the outputs of a bi-GRU (LAMA+ctx).

    H = [forward GRU; backward GRU]. Shapes: H (n, 2 hidden); all other shapes and the options as in :class:`Lama`.

    Source: Mehta, Rangwala & Ramakrishnan (2019), arXiv 1912.00835; Cho et al. (2014) for the GRU.
    """

    config_file_name = "lama_ctx_config.json"
    reads_gru = True


class Bilinear(_AskedByContext):
    """Single-head bilinear attention: the full matrix whose factors :class:`Lama` learns.

        e_t = c^T W h_t
        sentence embedding = sum_t softmax(e)_t h_t

    Shapes: H (n, d); W (d, d); c (d,); the embedding (d,). d is m, or 2 hidden. A text without tokens is embedded as
    zeros, or as the bias of the linear map. The options are those of :class:`Lama`.

    Source: Mehta, Rangwala & Ramakrishnan (2019), arXiv 1912.00835, eq. 8; Luong et al. (2015).
    """

    config_file_name = "bilinear_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        context: Literal["mean", "learned"] = "mean",
        hidden: int = 0,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, hidden=hidden, **table)
        d = self.state_dimension
        self.W = nn.Parameter(torch.randn(d, d) * d**-0.5)
        self.begin_context(context)
        self.begin_output(d, output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return softmax(e), (N, 1), of packed states (N, d)."""
        scores = (self.asked(states, offsets, self.W) * states).sum(1, keepdim=True)
        return segment_softmax(scores, offsets)


class StructuredSelfAttention(HeadsEncoder):
    """Structured self-attention (SAN), with a penalty on heads that look at the same tokens.

        A = softmax(W2 tanh(W1 H^T)) over the tokens
        sentence embedding = A H, flattened
        added to the training loss: penalty * ||A A^T - I||_F^2, averaged over the batch's texts

    Shapes: H (n, d); W1 (u, d); W2 (h, u); A (h, n); the embedding (h d,), or (output_dimension,) after a linear map. d
    is m, or 2 hidden. A text without tokens is embedded as zeros, or as the bias of the linear map.

    Args:
        heads: h.
        attention_dimension: u, the perceptron's units.
        penalty: weight of the penalty; 0: none.
        hidden, output_dimension: as for :class:`Lama`.

    Source: Lin et al. (2017), arXiv 1703.03130, whose H is a bi-LSTM's outputs.
    """

    config_file_name = "san_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        heads: int = 30,
        attention_dimension: int = 350,
        penalty: float = 1.0,
        hidden: int = 0,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, heads=heads, hidden=hidden, **table)
        require_size("attention_dimension", attention_dimension)
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty < float("inf"):
            raise InputError(f"penalty must be a number of at least 0, got {quoted(penalty)}")
        d = self.state_dimension
        self.W1 = nn.Parameter(torch.randn(attention_dimension, d) * d**-0.5)
        self.W2 = nn.Parameter(torch.randn(heads, attention_dimension) * attention_dimension**-0.5)
        self.attention_dimension = attention_dimension
        self.penalty = penalty
        self._regularizer: Tensor | float = 0.0
        self.begin_output(heads * d, output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return A^T, (N, h), of packed states (N, d); in training, also store the penalty."""
        weights = segment_softmax(torch.tanh(states @ self.W1.T) @ self.W2.T, offsets)
        if self.training and torch.is_grad_enabled() and self.penalty:
            lengths = offsets.diff()
            groups = list(groups_of(lengths.tolist(), weights.device))
            # A A^T of the texts with tokens: how much their heads overlap.
            gram = attended(weights, weights, lengths.tolist(), groups)[lengths > 0]
            excess = gram - torch.eye(self.heads, dtype=gram.dtype, device=gram.device)
            self._regularizer = self.penalty * (excess.square().sum((1, 2)).mean() if len(gram) else weights.sum())
        return weights

    def regularizer(self) -> Tensor | float:
        """Return the penalty of the last training batch. A second call returns 0."""
        last, self._regularizer = self._regularizer, 0.0
        return last

    def __getstate__(self) -> dict[str, Any]:
        # Drop the penalty: it belongs to an autograd graph, which is not copied.
        return {**self.__dict__, "_regularizer": 0.0}


class AttentivePooling(HeadsEncoder):
    """Attentive pooling with a learned query q.

        content     e_t = cos(q, h_t)                        Graves et al. (2014)
        additive    e_t = v^T tanh(W_q q + W_h h_t)          Bahdanau et al. (2015)
        location    e_t = (W q)_t, depends only on t         Luong et al. (2015)
        general     e_t = q^T W h_t                          Luong et al. (2015)
        dot         e_t = q^T h_t                            Luong et al. (2015)
        scaled-dot  e_t = q^T h_t / sqrt(d)                  Vaswani et al. (2017)
        sentence embedding = sum_t softmax(e)_t h_t

    Shapes: H (n, d); q (d,); W, W_q, W_h (d, d), under location (locations, d); v (d,); the embedding (d,). d is m, or
    2 hidden. A text without tokens is embedded as zeros, or as the bias of the linear map.

    Args:
        score: one of the above.
        locations: distinct positions under ``location``; all later ones share the last score.
        hidden, output_dimension: as for :class:`Lama`.

    Source: next to each score above.
    """

    config_file_name = "attentive_config.json"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        score: Literal["content", "additive", "location", "general", "dot", "scaled-dot"] = "scaled-dot",
        locations: int = 512,
        hidden: int = 0,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, hidden=hidden, **table)
        if score not in list(SCORES):
            raise unknown_name("score", score, SCORES)
        require_size("locations", locations)
        self.score = score
        self.locations = locations
        d = self.state_dimension
        self.q = nn.Parameter(torch.randn(d))
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "additive": {"W_query": (d, d), "W_token": (d, d), "v": (d,)},
            "location": {"W": (locations, d)},
            "general": {"W": (d, d)},
        }
        self.of_score = nn.ParameterDict(
            {
                name: nn.Parameter(torch.randn(shape) * shape[-1] ** -0.5)
                for name, shape in shapes.get(score, {}).items()
            }
        )
        self.begin_output(d, output_dimension)

    def token_weights(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Return softmax(e), (N, 1), of packed states (N, d)."""
        q, given = self.q, dict(self.of_score.items())
        if self.score == "content":
            scores = unit(states) @ unit(q)
        elif self.score == "additive":
            scores = torch.tanh(q @ given["W_query"].T + states @ given["W_token"].T) @ given["v"]
        elif self.score == "location":
            scores = (given["W"] @ q)[token_positions(offsets).clamp(max=self.locations - 1)]
        elif self.score == "general":
            scores = states @ (q @ given["W"])
        else:
            scores = states @ q
            if self.score == "scaled-dot":
                scores = scores / math.sqrt(len(q))
        return segment_softmax(scores[:, None], offsets)
