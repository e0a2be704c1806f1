"""The mean of token embeddings (AVG): what the steps of a Contextualizer are measured against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.systems.encoder import offsets_of


class MeanEmbedding(TokenEncoder):
    """The mean of a text's token embeddings: sum_i e(w_i) / n, zero for a text without tokens.

    Shapes: e(w_i) and the embedding (m,). Parameters: none beside the table. Cost: O(n m).

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as those of :class:`ctx_embed.Contextualizer`.

    Source: Wieting et al. (2016), arXiv 1511.08198.
    """

    config_file_name = "mean_config.json"

    @property
    def ids_name_rows(self) -> bool:
        """True: the mean needs the rows alone."""
        return True

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """The mean of each packed document, (B, m); arguments as those of :meth:`TokenEncoder.embed`."""
        offsets = offsets_of(lengths, ids.device)
        return F.embedding_bag(ids, self.embedding.weight, offsets, mode="mean", include_last_offset=True)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """1 / n for each token, (1, n) a text."""
        return [torch.full((1, n), 1 / max(n, 1)) for n in lengths]
