"""The mean of token embeddings (AVG): the baseline for the steps of a Contextualizer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.systems.encoder import offsets_of


class MeanEmbedding(TokenEncoder):
    """The mean of a text's token embeddings: sum_i e(w_i) / n, zero for a text without tokens.

    Shapes: e(w_i) and the embedding (m,). Parameters: none besides the table. Cost: O(n m).

    Args:
        tokenizer, dimension, max_seq_length, phrases, weights: as for :class:`ctx_embed.Contextualizer`.

    Source: Wieting et al. (2016), arXiv 1511.08198.
    """

    config_file_name = "mean_config.json"
    ids_may_be_renumbered = True

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the mean of each packed document, (B, m); arguments as for :meth:`TokenEncoder.embed`."""
        offsets = offsets_of(lengths, ids.device)
        return F.embedding_bag(ids, self.embedding.weight, offsets, mode="mean", include_last_offset=True)

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return 1 / n for each token, (1, n) for each text."""
        return [torch.full((1, n), 1 / max(n, 1)) for n in lengths]
