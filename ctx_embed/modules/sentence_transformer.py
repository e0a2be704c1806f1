"""The class of loaded models: sentence-transformers' own, with any collection of texts as input."""

from __future__ import annotations

from functools import wraps
from typing import Any

import sentence_transformers

from ctx_embed.texts import as_texts


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """A SentenceTransformer that also takes series, arrays and generators of texts.

    Arguments and results are those of sentence-transformers, except that no texts have a result of shape
    (0, dimension).
    """

    @wraps(sentence_transformers.SentenceTransformer.encode)
    def encode(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Embed texts."""
        if not isinstance(inputs, str | dict | list):
            inputs = as_texts(inputs)
        if isinstance(inputs, list) and not inputs:
            return super().encode(["a"], *args, **kwargs)[:0]
        return super().encode(inputs, *args, **kwargs)
