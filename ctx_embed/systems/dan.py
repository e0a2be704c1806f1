"""The deep averaging network: the mean of words and bigrams through feed-forward layers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from ctx_embed.errors import require_size
from ctx_embed.modules.token_encoder import DRAWN_DEVIATION, TokenEncoder
from ctx_embed.second_order import document_ids
from ctx_embed.systems.encoder import TableOptions, offsets_of


class DeepAveraging(TokenEncoder):
    """A deep averaging network (DAN): the mean of word and bigram embeddings through feed-forward layers.

        x = (sum_t e(w_t) + sum_t g(w_t, w_{t+1})) / (2 n - 1)
        sentence embedding = W_L relu(... relu(W_1 x + b_1)) + b_L

    g is a second table, whose rows bigrams share by hashing. Shapes: x (m,); g (buckets, m); W_1 (f, m), W_L (m, f),
    between them (f, f). Parameters, excluding both tables: m f + f + (L - 2)(f^2 + f) + f m + m, for one layer m^2 + m.
    Cost: O(n m + m f), the fastest after the mean. A text without tokens is embedded as the network's value at 0.

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.
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

    @property
    def layers(self) -> int:
        """The number of layers L."""
        return len(self.maps)

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the network's output for packed documents, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        offsets = offsets_of(lengths, ids.device)
        documents = document_ids(offsets)
        together = documents[1:] == documents[:-1]
        first, second = ids[:-1][together].to(torch.int64), ids[1:][together].to(torch.int64)
        # Multiply by odd 32-bit constants, and drop the low bits of the sum, which are the least mixed.
        buckets = ((first * 0x9E3779B1 + second * 0x85EBCA6B) >> 15) % self.buckets
        starts = F.pad((offsets.diff() - 1).clamp(min=0).cumsum(0), (1, 0))
        words = F.embedding_bag(ids, self.embedding.weight, offsets, mode="sum", include_last_offset=True)
        pairs = F.embedding_bag(buckets, self.bigrams.weight, starts, mode="sum", include_last_offset=True)
        x = (words + pairs) / (2 * offsets.diff() - 1).clamp(min=1)[:, None]
        for index, linear in enumerate(self.maps):
            x = linear(F.relu(x) if index else x)
        return x
