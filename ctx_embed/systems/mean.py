"""The mean of token embeddings (AVG): what the steps of a Contextualizer are measured against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.modules.token_encoder import TokenEncoder


class MeanEmbedding(TokenEncoder):
    """The mean of a text's token embeddings: sum_i e(w_i) / n, zero for a text without tokens.

    Parameters: the table alone. Cost: O(n m).

    Args:
        tokenizer, dimension, max_seq_length, weights: as those of :class:`ctx_embed.Contextualizer`.
    """

    config_file_name = "mean_config.json"

    @property
    def ids_name_rows(self) -> bool:
        """True: the mean needs the rows alone."""
        return True

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """The mean of each packed document, (B, m); arguments as those of :meth:`TokenEncoder.embed`."""
        offsets = torch.tensor([0, *lengths], device=ids.device).cumsum(0)
        return F.embedding_bag(ids, self.embedding.weight, offsets, mode="mean", include_last_offset=True)
