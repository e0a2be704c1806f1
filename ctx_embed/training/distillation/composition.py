"""Phrases in training: a phrase's row is the sum of its parts' rows and a row of its own.

What is learned of a word thus serves every phrase it is in, and a rare phrase begins as the words it stands for. After
training the sums are folded into the table: reading a text costs a look-up a phrase.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import functional_call

from ctx_embed.modules.token_encoder import TokenEncoder


class Composition:
    """The sums of an encoder's phrases, whose table holds each phrase's own row while it is trained.

    Args:
        encoder: with or without phrases.
    """

    def __init__(self, encoder: TokenEncoder) -> None:
        self.encoder = encoder
        self.pairs = None if encoder.phrases is None else encoder.phrases.long()
        self.entries = encoder.tokenizer.get_vocab_size()

    def rows(self, ids: Tensor) -> Tensor:
        """The composed rows (ids, m) of entries and phrases."""
        rows: Tensor = torch.nn.functional.embedding(ids, self.encoder.embedding.weight)
        phrase = (ids >= self.entries).nonzero().flatten()
        if self.pairs is None or not len(phrase):
            return rows
        parts, place = torch.unique(self.pairs[ids[phrase] - self.entries], return_inverse=True)
        of_parts = self.rows(parts)
        return rows.index_add(0, phrase, of_parts[place[:, 0]] + of_parts[place[:, 1]])

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """:meth:`TokenEncoder.embed` over the composed rows of the texts' entries."""
        if self.pairs is None:
            return self.encoder.embed(ids, lengths)
        entries, renumbered = torch.unique(ids, return_inverse=True)
        rows = self.rows(entries)
        if self.encoder.ids_name_rows:
            ids, table = renumbered, rows
        else:
            table = self.encoder.embedding.weight.detach().index_copy(0, entries, rows)
        features = {"input_ids": ids[None], "cu_seq_lens_q": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)}
        embedded = functional_call(self.encoder, {"embedding.weight": table}, (features,))
        embeddings: Tensor = embedded["sentence_embedding"]
        return embeddings

    @torch.no_grad()
    def fold(self) -> None:
        """Put the sums into the encoder's table, for good."""
        if self.pairs is not None:
            self.encoder.embedding.weight.copy_(self.rows(torch.arange(self.encoder.entries)))

    @contextmanager
    def folded(self) -> Iterator[None]:
        """Have the sums in the encoder's table for a while."""
        own = self.encoder.embedding.weight.detach().clone()
        self.fold()
        try:
            yield
        finally:
            with torch.no_grad():
                self.encoder.embedding.weight.copy_(own)
