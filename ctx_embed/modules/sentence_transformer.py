"""The class of loaded models: sentence-transformers' own, with any collection of texts as input."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

import numpy as np
import sentence_transformers
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctx_embed.errors import UnknownTextsWarning
from ctx_embed.modules.contextualizer import Contextualizer
from ctx_embed.numpy_model.embedder import BATCH_TEXTS, embed_in_batches
from ctx_embed.texts import as_texts


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """A SentenceTransformer that also takes series, arrays and generators of texts.

    Arguments and results are those of sentence-transformers, except that no texts have a result of shape
    (0, dimension).
    """

    @wraps(sentence_transformers.SentenceTransformer.encode)
    def encode(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Embed texts."""
        if not isinstance(inputs, str | dict):
            inputs = as_texts(inputs)
        if isinstance(inputs, list) and not inputs:
            return super().encode(["a"], *args, **kwargs)[:0]
        return super().encode(inputs, *args, **kwargs)

    def _inference(self, inputs: list[Any], **options: Any) -> Any:
        """Embed texts as sentence-transformers does, a Contextualizer on a CPU in batches of its own by the kernel."""
        first = self[0]
        on_cpu = self._resolve_inference_device(options.get("device")).type == "cpu"
        if not (
            isinstance(first, Contextualizer)
            and on_cpu
            and first.runs_without_torch
            and options["output_value"] == "sentence_embedding"
        ):
            return super()._inference(inputs, **options)
        self.eval()
        packed, others = first.without_torch(), list(self)[1:]

        def embedded(texts: list[str]) -> tuple[NDArray[Any], int]:
            ids, lengths = first.text_tokenizer.read(texts, options["prompt"], first.max_seq_length)
            features = {"sentence_embedding": torch.from_numpy(packed.embed(ids, lengths))}
            if first.normalized:
                features["sentence_embedding"][torch.from_numpy(lengths == 0)] = 0
            with torch.inference_mode():
                for module in others:
                    features = module(features)
            return features["sentence_embedding"].numpy(), int((lengths == 0).sum())

        vectors, unread = embed_in_batches(inputs, embedded, BATCH_TEXTS, options["show_progress_bar"])
        if unread:
            warnings.warn(UnknownTextsWarning(unread, len(inputs), first.normalized), stacklevel=2)
        found: Tensor = torch.from_numpy(np.ascontiguousarray(vectors[:, : options["truncate_dim"]]))
        return torch.nn.functional.normalize(found, p=2, dim=1) if options["normalize_embeddings"] else found
