"""Transformer encoders over the token table: TE with mean pooling, and the USE-like one with sum over sqrt(length)."""

from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import InputError, quoted
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.options import require_size
from ctx_embed.second_order import segment_sum, token_positions
from ctx_embed.systems.attention import Group, groups_of, self_attention, self_attention_weights
from ctx_embed.systems.encoder import TableOptions, offsets_of, require_share

# Number of tokens in a usual text: :meth:`TransformerEncoder.begin_as_mean` subtracts the mean of this many positions.
USUAL_LENGTH = 20


def sinusoids(count: int, dimension: int, device: torch.device | None = None) -> Tensor:
    """Return the positions 0..count-1 as sines and cosines of geometric wavelengths, (count, dimension) in float64.

    PE_{t,2j} = sin(t / 10000^{2j/m}), PE_{t,2j+1} = cos(t / 10000^{2j/m}).

    Source: Vaswani et al. (2017), section 3.5.
    """
    feature = torch.arange(dimension, device=device)
    rate = 10_000.0 ** (-(feature - feature % 2).double() / dimension)
    # Use float64, so that the angles of distant positions are exact.
    angle = torch.arange(count, device=device).double()[:, None] * rate
    return torch.where(feature % 2 == 0, angle.sin(), angle.cos())


class Layer(nn.Module):
    """One encoder layer: self-attention and a feed-forward network, each with residual and layer normalisation.

    Source: Vaswani et al. (2017), section 3.1.
    """

    def __init__(self, dimension: int, heads: int, feedforward: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm_first = norm_first
        self.dropout = nn.Dropout(dropout)
        self.qkv = nn.Linear(dimension, 3 * dimension)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        self.out = nn.Linear(dimension, dimension)
        self.up = nn.Linear(dimension, feedforward)
        self.down = nn.Linear(feedforward, dimension)
        self.attention_norm = nn.LayerNorm(dimension)
        self.feedforward_norm = nn.LayerNorm(dimension)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return query, key and value of packed tokens (N, m), (N, heads, m / heads) each."""
        read = self.attention_norm(x) if self.norm_first else x
        query, key, value = self.qkv(read).unflatten(1, (3, self.heads, -1)).unbind(1)
        return query, key, value

    def forward(self, x: Tensor, groups: list[Group]) -> Tensor:
        """Return the layer's output for packed tokens, (N, m)."""
        query, key, value = self.query_key_value(x)
        found = self_attention(query, key, value, groups, query.shape[2] ** -0.5).flatten(1)
        x = x + self.dropout(self.out(found))
        x = x if self.norm_first else self.attention_norm(x)
        read = self.feedforward_norm(x) if self.norm_first else x
        x = x + self.dropout(self.down(F.relu(self.up(read))))
        return x if self.norm_first else self.feedforward_norm(x)


class TransformerEncoder(TokenEncoder):
    """A Transformer encoder (TE) over the token table, with sinusoidal positions.

        x_t = sqrt(m) e(w_t) + PE_t
        x = LayerNorm(x + Attention(x)), x = LayerNorm(x + W_2 relu(W_1 x + b_1) + b_2), N layers
        sentence embedding = sum_t x_t / n

    Shapes: x (n, m); the query, key and value maps, and the output map (m, m) each with bias; W_1 (f, m); W_2 (m, f). A
    text without tokens is embedded as zeros.

    Args:
        layers: N.
        heads: a divisor of m.
        feedforward: f; None: 4 m.
        dropout: rate on the input and on the output of each sublayer.
        norm_first: normalise the input of a sublayer instead of its sum with the residual: more stable at high learning
            rates.

    Source: Vaswani et al. (2017), arXiv 1706.03762.
    """

    config_file_name = "transformer_config.json"
    ids_may_be_renumbered = True
    weight_axes = ("layer", "head", "token", "token")
    # The power of a text's number of tokens that divides the sum of its token outputs.
    length_power = 1.0

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        layers: int = 2,
        heads: int = 4,
        feedforward: int | None = None,
        dropout: float = 0.1,
        norm_first: bool = False,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        feedforward = 4 * dimension if feedforward is None else feedforward
        for name, value in (("layers", layers), ("heads", heads), ("feedforward", feedforward)):
            require_size(name, value)
        require_share("dropout", dropout)
        if dimension % heads:
            raise InputError(f"heads must divide the dimension {dimension}, got {heads}")
        if not isinstance(norm_first, bool):
            raise InputError(f"norm_first must be true or false, got {quoted(norm_first)}")
        self.layers = layers
        self.heads = heads
        self.feedforward = feedforward
        self.dropout = dropout
        self.norm_first = norm_first
        self.input_dropout = nn.Dropout(dropout)
        self.stack: Any = nn.ModuleList(
            Layer(dimension, heads, feedforward, dropout, norm_first) for _ in range(layers)
        )

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set the layers to add nothing, except that the last one subtracts the mean positional encoding of a text."""
        for layer in self.stack:
            for linear in (layer.out, layer.down):
                linear.weight.zero_()
                linear.bias.zero_()
        if self.norm_first:
            layer.down.bias.copy_(-sinusoids(USUAL_LENGTH, self.dimension).mean(0))

    def _inputs(self, ids: Tensor, lengths: list[int]) -> Tensor:
        offsets = offsets_of(lengths, ids.device)
        position = token_positions(offsets)
        tokens: Tensor = self.embedding(ids) * self.dimension**0.5
        positions = sinusoids(max(lengths, default=0), self.dimension, ids.device).to(tokens.dtype)
        return tokens + positions[position]

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the pooled outputs of packed documents, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        groups = list(groups_of(lengths, ids.device))
        x = self.input_dropout(self._inputs(ids, lengths))
        for layer in self.stack:
            x = layer(x, groups)
        offsets = offsets_of(lengths, ids.device)
        size = offsets.diff().clamp(min=1).float() ** self.length_power
        pooled: Tensor = segment_sum(x, offsets) / size[:, None]
        return pooled.to(x.dtype)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return the softmax of each layer and head for each text, (N, heads, n, n); row i is what token i looks at."""
        groups = list(groups_of(lengths, ids.device))
        x = self._inputs(ids, lengths)
        of_layers: list[list[Tensor]] = []
        for layer in self.stack:
            query, key, _ = (part.split(lengths) for part in layer.query_key_value(x))
            scale = (self.dimension // self.heads) ** -0.5
            of_layers.append([self_attention_weights(q, k, scale) for q, k in zip(query, key, strict=True)])
            x = layer(x, groups)
        return [torch.stack(of_text) for of_text in zip(*of_layers, strict=True)]


class UseTransformer(TransformerEncoder):
    """A small version of the Transformer in the Universal Sentence Encoder: the sum of token outputs over sqrt(length).

        sentence embedding = sum_t x_t / sqrt(n), x the outputs of :class:`TransformerEncoder`

    Shapes, options and other formulas are the same. A text without tokens is embedded as zeros.

    Source: Cer et al. (2018), arXiv 1803.11175, section 3.1.
    """

    config_file_name = "use_transformer_config.json"
    length_power = 0.5
