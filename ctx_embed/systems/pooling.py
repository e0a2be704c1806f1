"""Systems without attention heads: means of tokens, deep averaging, pooled bi-GRU and CNN, and self-attention."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import InputError, quoted
from ctx_embed.modules.token_encoder import DRAWN_DEVIATION, TokenEncoder
from ctx_embed.options import require_size
from ctx_embed.second_order import document_ids
from ctx_embed.systems.attention import (
    groups_of,
    rows_of_documents,
    segment_max,
    segment_mean,
    self_attention,
    self_attention_weights,
)
from ctx_embed.systems.encoder import SystemEncoder, TableOptions, offsets_of, recurrent_states, require_share


class MeanEmbedding(TokenEncoder):
    """The mean of a text's token embeddings: sum_i e(w_i) / n, zero for a text without tokens.

    Shapes: e(w_i) and the embedding (m,).

    Source: Wieting et al. (2016), arXiv 1511.08198.
    """

    config_file_name = "mean_config.json"
    ids_may_be_renumbered = True

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the mean of each packed document, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        offsets = offsets_of(lengths, ids.device)
        return F.embedding_bag(ids, self.table, offsets, mode="mean", include_last_offset=True)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return 1 / n for each token, (1, n) for each text."""
        return [torch.full((1, n), 1 / max(n, 1)) for n in lengths]


class DeepAveraging(TokenEncoder):
    """A deep averaging network (DAN): the mean of word and bigram embeddings through feed-forward layers.

        x = (sum_t e(w_t) + sum_t g(w_t, w_{t+1})) / (2 n - 1)
        sentence embedding = W_L relu(... relu(W_1 x + b_1)) + b_L

    g is a second table, whose rows bigrams share by hashing. Shapes: x (m,); g (buckets, m); W_1 (f, m), W_L (m, f),
    between them (f, f). A text without tokens is embedded as the network's value at 0.

    Args:
        layers: L.
        hidden: f; None: m.
        buckets: rows of the bigram table.

    Source: Iyyer et al. (2015); Cer et al. (2018), arXiv 1803.11175, section 3.2, for the bigrams.
    """

    config_file_name = "dan_config.json"
    tables = ("embedding", "bigrams")

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        layers: int = 2,
        hidden: int | None = None,
        buckets: int = 32_768,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        hidden = dimension if hidden is None else hidden
        for name, value in (("layers", layers), ("hidden", hidden), ("buckets", buckets)):
            require_size(name, value)
        self.layers = layers
        self.hidden = hidden
        self.buckets = buckets
        self.bigrams = nn.Embedding(buckets, dimension, _weight=torch.randn(buckets, dimension) * DRAWN_DEVIATION)
        sizes = [dimension, *[hidden] * (layers - 1), dimension]
        self.maps = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set the bigrams to zero and the network to the identity. This needs one layer or at least 2 m hidden units.

        x = relu(x) - relu(-x): the first 2 m units of each layer carry both terms, the others stay random.
        """
        m, carried = self.dimension, 2 * self.dimension
        linears = list(cast(Iterable[nn.Linear], self.maps))
        self.bigrams.weight.zero_()
        for linear in linears:
            linear.bias.zero_()
        if self.layers == 1:
            nn.init.eye_(linears[0].weight)
        elif self.hidden >= carried:
            signs = torch.eye(m).repeat(2, 1)
            signs[m:] *= -1
            first, *inner, last = (linear.weight for linear in linears)
            first[:carried] = signs
            for weight in inner:
                weight[:carried] = 0
                weight[:carried, :carried] = torch.eye(carried)
            last.zero_()
            last[:, :carried] = signs.T

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the network's output for packed documents, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        offsets = offsets_of(lengths, ids.device)
        documents = document_ids(offsets)
        together = documents[1:] == documents[:-1]
        first, second = ids[:-1][together].to(torch.int64), ids[1:][together].to(torch.int64)
        # Multiply by odd 32-bit constants, and drop the low bits of the sum, which are the least mixed.
        buckets = ((first * 0x9E3779B1 + second * 0x85EBCA6B) >> 15) % self.buckets
        starts = F.pad((offsets.diff() - 1).clamp(min=0).cumsum(0), (1, 0))
        words = F.embedding_bag(ids, self.table, offsets, mode="sum", include_last_offset=True)
        pairs = F.embedding_bag(buckets, self.bigrams.weight, starts, mode="sum", include_last_offset=True)
        x = (words + pairs) / (2 * offsets.diff() - 1).clamp(min=1)[:, None]
        for index, linear in enumerate(self.maps):
            x = linear(F.relu(x) if index else x)
        return x


class BiGru(SystemEncoder):
    """A bi-directional GRU with max pooling: the greatest value of each feature over the text.

        h_t = [GRU_forward(h_{t-1}, e(w_t)); GRU_backward(h_{t+1}, e(w_t))]
        sentence embedding = max_t h_t, feature by feature

    Shapes: h_t (2 hidden,); the embedding likewise, or (output_dimension,) after a linear map. A text without tokens is
    embedded as zeros, or as the bias of the linear map. sentence-transformers' own recurrent module is an LSTM.

    Args:
        hidden: units per direction; None: m.
        output_dimension: features after a linear map; None: no map.

    Source: Cho et al. (2014); Conneau et al. (2017), arXiv 1705.02364, for the pooling.
    """

    config_file_name = "bigru_config.json"
    weight_axes = ("share", "token")

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        hidden: int | None = None,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        hidden = dimension if hidden is None else hidden
        require_size("hidden", hidden)
        self.hidden = hidden
        self.recurrent = nn.GRU(dimension, hidden, bidirectional=True)
        self.begin_output(2 * hidden, output_dimension)

    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the greatest value of each feature, (B, 2 hidden); zero for a text without tokens."""
        offsets = offsets_of(lengths, ids.device)
        return segment_max(recurrent_states(self.recurrent, self.embedding(ids), offsets), offsets)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return for each text the share of features whose greatest value falls on each token, (1, n)."""
        states = recurrent_states(self.recurrent, self.embedding(ids), offsets_of(lengths, ids.device))
        return [
            torch.bincount(part.argmax(0), minlength=len(part))[None].to(part.dtype) / part.shape[1]
            if len(part)
            else part.new_zeros(1, 0)
            for part in states.split(lengths)
        ]


class Convolution(SystemEncoder):
    """A convolutional network (CNN) with max pooling: the greatest value of each filter over all windows of the text.

        c_j = relu(F_w [e(w_j); ...; e(w_{j+w-1})] + b_w), widths w of 3, 4 and 5
        sentence embedding = max_j c_j, all widths one after the other

    Each text is read with w - 1 zero vectors on both sides, so that it has n + w - 1 windows however short it is.
    Shapes: F_w (filters, w m); the embedding (widths * filters,), or (output_dimension,) after a linear map. A text
    without tokens is embedded as zeros, or as the bias of the linear map. sentence-transformers' own CNN module takes
    odd widths only, and the padding of a batch changes a text's last windows there.

    Args:
        filters: number for each width.
        widths: the windows' widths in tokens.
        dropout: rate on the embedding, in training.
        output_dimension: features after a linear map; None: no map.

    Source: Kim (2014), arXiv 1408.5882.
    """

    config_file_name = "cnn_config.json"
    weight_axes = ("share", "token")

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        filters: int = 100,
        widths: Sequence[int] = (3, 4, 5),
        dropout: float = 0.5,
        output_dimension: int | None = None,
        **table: Unpack[TableOptions],
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
            raise InputError(f"widths must be a list of positive integers, got {quoted(widths)}")
        for width in widths:
            require_size("each of widths", width)
        require_size("filters", filters)
        require_share("dropout", dropout)
        self.filters = filters
        self.widths = list(widths)
        self.dropout = dropout
        self.convolutions = nn.ModuleList(
            nn.Conv1d(dimension, filters, width, padding=width - 1) for width in self.widths
        )
        self.begin_output(len(self.widths) * filters, output_dimension)

    def _greatest(self, tokens: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return for each width the greatest values over windows and the windows that hold them, (G, filters) each.

        ``tokens`` (G, L, m) are zero where ``mask`` (G, L) is False.
        """
        found = []
        for convolution, width in zip(self.convolutions, self.widths, strict=True):
            values = convolution(tokens.transpose(1, 2))
            # Only the n + w - 1 windows that start before the text's end count; w - 1 of them start before the text.
            counts = F.pad(mask, (width - 1, 0), value=True)[:, None]
            found.append(tuple(values.masked_fill(~counts, -torch.inf).max(2)))
        return found

    def pooled(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the greatest values, (B, widths * filters); zero for a text without tokens."""
        tokens = self.embedding(ids)
        groups = list(groups_of(lengths, ids.device))
        parts = [
            torch.cat([F.relu(values) for values, _ in self._greatest(group.pad(tokens), group.mask)], 1)
            for group in groups
        ]
        features = rows_of_documents(parts, groups, len(lengths), tokens, (self.natural_dimension,))
        return F.dropout(features, self.dropout, self.training)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return for each text the share of filters whose greatest window contains each token, (1, n).

        A window's share is divided evenly among its tokens.
        """
        found = []
        for tokens, n in zip(self.embedding(ids).split(lengths), lengths, strict=True):
            shares = tokens.new_zeros(1, n)
            found.append(shares)
            if not n:
                continue
            mask = torch.ones(1, n, dtype=torch.bool, device=tokens.device)
            for (_, windows), width in zip(self._greatest(tokens[None], mask), self.widths, strict=True):
                wins = torch.bincount(windows[0], minlength=n + width - 1)
                # Window j holds those of the tokens j - w + 1 .. j that exist.
                begin = torch.arange(n + width - 1, device=tokens.device) - width + 1
                inside = (begin + width).clamp(max=n) - begin.clamp(min=0)
                each = wins.to(tokens.dtype) / inside
                shares += each.unfold(0, width, 1).sum(1)
            shares /= self.natural_dimension
        return found


class SelfAttention(TokenEncoder):
    """Self-attention without parameters: each token becomes a mean of similar tokens, and these are averaged.

        Y = softmax(X X^T) X, the softmax over each row
        sentence embedding = sum_t Y_t / n

    Shapes: X, Y (n, m). A text without tokens is embedded as zeros.

    Source: Vaswani et al. (2017), arXiv 1706.03762, without its maps and its scale.
    """

    config_file_name = "self_attention_config.json"
    ids_may_be_renumbered = True
    weight_axes = ("token", "token")

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the mean of Y of packed documents, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        x = self.embedding(ids)[:, None]
        y = self_attention(x, x, x, list(groups_of(lengths, ids.device)), scale=1.0)[:, 0]
        return segment_mean(y, offsets_of(lengths, ids.device)).to(y.dtype)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return softmax(X X^T) of each text, (n, n); row i is what token i looks at."""
        return [self_attention_weights(x, x, 1.0)[0] for x in self.embedding(ids)[:, None].split(lengths)]


class ParametricSelfAttention(SelfAttention):
    """Self-attention with query, key and value maps and a tanh before the output map.

        Y = tanh(softmax(Q K^T / sqrt(m)) V) W_o^T, with Q = X W_q^T, K = X W_k^T, V = X W_v^T
        sentence embedding = sum_t Y_t / n

    Shapes: X, Q, K, V, Y (n, m); W_q, W_k, W_v, W_o (m, m). A text without tokens is embedded as zeros.

    Source: Vaswani et al. (2017), arXiv 1706.03762, with one head; the tanh is ours.
    """

    config_file_name = "self_attention_parametric_config.json"

    def __init__(
        self, tokenizer: Tokenizer | PreTrainedTokenizerBase, dimension: int = 256, **table: Unpack[TableOptions]
    ) -> None:
        super().__init__(tokenizer, dimension, **table)
        self.query, self.key, self.value, self.out = (nn.Linear(dimension, dimension, bias=False) for _ in range(4))

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set the value and output maps to the identity: embeddings start as the tanh of weighted means."""
        for linear in (self.value, self.out):
            nn.init.eye_(linear.weight)

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the mean of Y of packed documents, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        x = self.embedding(ids)
        query, key, value = (linear(x)[:, None] for linear in (self.query, self.key, self.value))
        groups = list(groups_of(lengths, ids.device))
        y = self.out(torch.tanh(self_attention(query, key, value, groups, self.dimension**-0.5)[:, 0]))
        return segment_mean(y, offsets_of(lengths, ids.device)).to(y.dtype)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return softmax(Q K^T / sqrt(m)) of each text, (n, n); row i is what token i looks at."""
        x = self.embedding(ids)
        query, key = (linear(x)[:, None].split(lengths) for linear in (self.query, self.key))
        return [self_attention_weights(q, k, self.dimension**-0.5)[0] for q, k in zip(query, key, strict=True)]
