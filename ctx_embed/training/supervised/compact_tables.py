"""Training only the rows of a token table that the texts use: a step's cost does not depend on the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import nn

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.text.tokenizer import TextTokenizer


class _Renumbered:
    """A text tokenizer whose ids are positions in a list of entries."""

    def __init__(self, tokenizer: TextTokenizer, entries: NDArray[np.int32]) -> None:
        self.tokenizer = tokenizer
        self.entries = entries

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return self._renumbered(*self.tokenizer(texts))

    def read(
        self, texts: Sequence[str], prompt: str | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return self._renumbered(*self.tokenizer.read(texts, prompt, limit))

    def _renumbered(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return np.searchsorted(self.entries, ids).astype(np.int32), lengths


@contextmanager
def compact_tables(encoder: SentenceTransformer, texts: Sequence[str]) -> Iterator[None]:
    """Reduce token tables to the entries of ``texts`` within a ``with`` block. The trained rows are then put back.

    No other texts may be encoded inside. Rows that no text uses would have no gradient, and Adam does not change such
    rows: the result is that of training the whole table.

    Args:
        encoder: its modules that only look up rows by ids are changed in place.
        texts: all texts that are encoded inside.
    """
    changed: list[tuple[Any, nn.Embedding, TextTokenizer, NDArray[np.int32]]] = []
    for module in encoder.children():
        if isinstance(module, TokenEncoder) and module.ids_may_be_renumbered:
            entries = np.unique(module.text_tokenizer(texts)[0])
            if len(entries):
                changed.append((module, module.embedding, module.text_tokenizer, entries))
                rows = module.embedding.weight.detach()[torch.from_numpy(entries).long()]
                trained = module.embedding.weight.requires_grad
                module.embedding = nn.Embedding(len(rows), rows.shape[1], _weight=rows).requires_grad_(trained)
                module.text_tokenizer = _Renumbered(module.text_tokenizer, entries)  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, embedding, tokenizer, entries in changed:
            with torch.no_grad():
                embedding.weight[torch.from_numpy(entries).long()] = module.embedding.weight
            module.embedding, module.text_tokenizer = embedding, tokenizer
