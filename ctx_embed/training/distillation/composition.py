"""Phrases in training: a phrase's row is the sum of its parts' rows and a row of its own.

What is learned about a word thus serves every phrase with it, and a rare phrase is initialised as its words. After
training the sums are folded into the table, so that a phrase costs one look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.training.batches import ranges


class Composition:
    """Maps each entry to the rows that it sums: its own row and, for a phrase, the rows of its parts.

    While the encoder is trained, its table stores own rows only.
    """

    def __init__(self, encoder: TokenEncoder) -> None:
        self.encoder = encoder
        # Each entry is the sum of these own rows: its own, and all that its parts are sums of.
        summed = [[entry] for entry in range(encoder.entries)]
        if encoder.phrases is not None:
            words = encoder.backend_tokenizer.get_vocab_size()
            for phrase, (first, second) in enumerate(encoder.phrases.tolist(), words):
                summed[phrase] += summed[first] + summed[second]
        self.summed = np.array([row for rows in summed for row in rows])
        self.offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in summed])])

    def _summed(self, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows that each entry is the sum of, entry by entry, and where each entry's rows begin."""
        counts = self.offsets[entries + 1] - self.offsets[entries]
        return self.summed[ranges(self.offsets[entries], counts)], counts.cumsum() - counts

    def used(self, ids: Tensor) -> Tensor:
        """Return the numbers of all rows that these ids are sums of, ascending, each once."""
        entries = np.unique(ids.cpu().numpy())
        return torch.from_numpy(np.unique(self._summed(entries)[0])).to(ids.device)

    def rows(self, entries: Tensor, used: Tensor, own: Tensor) -> Tensor:
        """Return the summed rows (entries, m); ``own`` holds the rows ``used``."""
        summed, starts = self._summed(entries.cpu().numpy())
        places = torch.searchsorted(used, torch.from_numpy(summed).to(used.device))
        return F.embedding_bag(places, own, torch.from_numpy(starts).to(used.device), mode="sum")

    def embed(self, ids: Tensor, lengths: list[int], used: Tensor, own: Tensor) -> Tensor:
        """Return the packed texts' embeddings over composed rows; ``own`` (used, m) rows get the gradient."""
        entries, renumbered = torch.unique(ids, return_inverse=True)
        rows = self.rows(entries, used, own)
        if self.encoder.ids_may_be_renumbered:
            ids, table = renumbered, rows
        else:
            table = self.encoder.embedding.weight.detach().index_copy(0, entries, rows)
        offsets = torch.tensor([0, *lengths], device=ids.device).cumsum(0).to(torch.int32)
        features = {"input_ids": ids[None], "cu_seq_lens_q": offsets}
        embedded = functional_call(self.encoder, {"embedding.weight": table}, (features,))
        embeddings: Tensor = embedded["sentence_embedding"]
        return embeddings

    @torch.no_grad()
    def fold(self) -> None:
        """Put the sums into the encoder's table, for good."""
        if self.encoder.phrases is not None:
            table = self.encoder.embedding.weight
            every = torch.arange(len(table), device=table.device)
            table.copy_(self.rows(every, every, table))

    @contextmanager
    def folded(self) -> Iterator[None]:
        """Put the sums into the encoder's table within a ``with`` block."""
        own = self.encoder.embedding.weight.detach().clone()
        self.fold()
        try:
            yield
        finally:
            with torch.no_grad():
                self.encoder.embedding.weight.copy_(own)
