"""Linear layers over a student's embedding during its training: they predict classes and the text's words."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

# Number of the most frequent entries that are predicted; others are ignored.
WORDS = 8000


class LabelHead(nn.Module):
    """A linear classifier over the last dimensions of the embedding at unit length. Its mean cross-entropy is the loss.

    Args:
        dimension: number of the last dimensions that are read.
        classes: at least 2.
    """

    def __init__(self, dimension: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dimension, classes)
        # Logits of unit vectors would be small; scale the vectors to a length of the square root of their dimension.
        self.scale = dimension**0.5

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the logits (B, classes) of embeddings (B, m)."""
        read = embeddings[:, -self.linear.in_features :]
        logits: Tensor = self.linear(F.normalize(read, dim=1) * self.scale)
        return logits

    def loss(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of classes (B,)."""
        return F.cross_entropy(self(embeddings), targets)


class WordHead(nn.Module):
    """A linear layer that predicts which of the most frequent entries are in a text, from its embedding.

    Loss: the mean over texts of the mean over their tokens of -log softmax(linear(c^K)) at the token.

    Args:
        dimension: m.
        counts: (vocabulary,) how often each entry occurs in the corpus.
    """

    def __init__(self, dimension: int, counts: NDArray[np.int64]) -> None:
        super().__init__()
        kept = np.argsort(-counts, kind="stable")[:WORDS]
        place = np.full(len(counts), -1)
        place[kept] = np.arange(len(kept))
        self.linear = nn.Linear(dimension, len(kept))
        self.place: Tensor
        self.register_buffer("place", torch.from_numpy(place))

    def loss(self, embeddings: Tensor, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the loss of texts with these packed ids and embeddings (B, m)."""
        documents = torch.repeat_interleave(torch.tensor(lengths)).to(ids.device)
        places = self.place[ids]
        documents, places = documents[places >= 0], places[places >= 0]
        counts = torch.bincount(documents, minlength=len(lengths))
        named = counts > 0
        log_softmax = F.log_softmax(self.linear(F.normalize(embeddings, dim=1) * embeddings.shape[1] ** 0.5), dim=1)
        sums = embeddings.new_zeros(len(lengths)).index_add(0, documents, log_softmax[documents, places])
        return -(sums[named] / counts[named]).mean() if bool(named.any()) else sums.sum()
