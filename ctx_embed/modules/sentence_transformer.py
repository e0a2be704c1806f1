"""The class of loaded models: sentence-transformers' own, with any collection of texts as input."""

import threading
import warnings
from contextlib import nullcontext
from functools import wraps
from inspect import signature
from typing import Any, cast

import numpy as np
import sentence_transformers
import torch
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Normalize
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ctx_embed.errors import InputError, UnknownTextsWarning, unknown_name
from ctx_embed.modules.contextualizer import Contextualizer
from ctx_embed.modules.token_encoder import Features
from ctx_embed.numpy_model.embedder import BATCH_TEXTS, PRECISIONS, embed_in_batches, int8, require_dimensions
from ctx_embed.texts import as_texts
from ctx_embed.vectors import comparable

VECTORS = "sentence_embedding"
# The modules that need nothing else of what a Contextualizer returns; a Pooling reads its tokens.
READ_VECTORS = (Dense, Dropout, LayerNorm, Normalize)
# For more values than this torch would start threads of its own, for each of the threads that embed.
SERIAL_VALUES = (1 << 15) - 1
# The names of encode's arguments after the texts, in their order.
_ARGUMENTS = list(signature(sentence_transformers.SentenceTransformer.encode).parameters)[2:]


def raw_embeddings(
    model: sentence_transformers.SentenceTransformer, texts: list[str], token_dropout: float = 0.0
) -> Tensor:
    """Return the embeddings (texts, m) before any normalisation: a Contextualizer's c^K, zeros without tokens."""
    features: Any = batch_to_device(model.preprocess(texts), model.device)
    if token_dropout > 0 and "attention_mask" in features:
        seen = torch.rand(features["attention_mask"].shape, device=model.device) >= token_dropout
        features["attention_mask"] = features["attention_mask"] * seen
    for module in model:
        # Skip normalisation: embeddings of unit length would limit the logits.
        if not isinstance(module, Normalize):
            features = module(features)
    found: Tensor = features[VECTORS]
    return found * features["attention_mask"].any(1, keepdim=True) if isinstance(features, Features) else found


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """A SentenceTransformer that also takes series, arrays and generators of texts.

    Arguments and results are those of sentence-transformers, with three exceptions: no texts have a result of shape
    (0, dimension); ``precision="int8"`` scales each vector by itself, so that a text has one vector in any batch, and
    ``uint8``, whose ranges would depend on the batch, is refused; similarities read int8 vectors and packed bits.
    """

    @wraps(sentence_transformers.SentenceTransformer.encode)
    def encode(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Embed texts."""
        if not isinstance(inputs, str | dict):
            inputs = as_texts(inputs)
        options = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        precision = options.get("precision") or "float32"
        if precision not in PRECISIONS and precision != "binary":
            raise unknown_name("precision", precision, (*PRECISIONS, "binary"))
        dim = options.get("truncate_dim")
        require_dimensions(self.truncate_dim if dim is None else dim, self.dimension)
        of_vectors = options.get("output_value", VECTORS) == VECTORS
        kept = self.get_embedding_dimension() if of_vectors and precision in ("int8", "binary") else None
        if kept is not None and dim not in (None, kept):
            # Both are arrays of int8, which similarities tell apart by their width.
            packed = -(-kept // 8)
            if dim == packed if precision == "int8" else -(-dim // 8) != packed:
                raise InputError(
                    f"similarities would misread {precision} vectors of {dim} of {kept} features; load the model with "
                    f"truncate_dim={dim} instead"
                )
        if isinstance(inputs, list) and not inputs:
            return cast(Any, self).encode(["a"], **options)[:0]
        if precision != "int8" or not of_vectors:
            return self._encode(inputs, options)
        as_tensor, as_array = (options.pop(f"convert_to_{name}", name == "numpy") for name in ("tensor", "numpy"))
        floats = np.asarray(self._encode(inputs, {**options, "precision": "float32"}))
        found = int8(np.atleast_2d(floats)).reshape(floats.shape)
        if as_tensor:
            return torch.from_numpy(found)
        return found if as_array or found.ndim == 1 else list(torch.from_numpy(found))

    def _encode(self, inputs: Any, options: dict[str, Any]) -> Any:
        # Threads that share a pool of processes would take each other's results from its queue.
        pool = options.get("pool")
        with nullcontext() if pool is None else pool.setdefault("turn", threading.Lock()):
            return super().encode(inputs, **options)

    @property
    def dimension(self) -> int | None:
        """The number of features before any are cut."""
        # Not by setting truncate_dim to None for a moment: other threads would read it.
        for module in reversed(list(self)):
            for name in ("get_embedding_dimension", "get_sentence_embedding_dimension", "get_word_embedding_dimension"):
                if width := getattr(module, name, lambda: None)():
                    return int(width)
        return None

    def _floats(self, embeddings: Any) -> Any:
        """Return embeddings as sentence-transformers compares them: int8 as floats, packed bits as -1 and 1."""
        values = torch.stack(embeddings) if isinstance(embeddings, list) and embeddings else embeddings
        if not isinstance(values, Tensor):
            values = torch.as_tensor(np.asarray(values))
        if values.is_floating_point():
            return values
        kept = self.get_embedding_dimension() or values.shape[-1]
        return torch.from_numpy(comparable(values.cpu().numpy(), kept, self.dimension or kept, signed_bits=True))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the similarities of all pairs of embeddings, of any precision."""
        return super().similarity(self._floats(embeddings1), self._floats(embeddings2))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the similarity of each pair of embeddings, of any precision."""
        return super().similarity_pairwise(self._floats(embeddings1), self._floats(embeddings2))

    def _inference(self, inputs: list[Any], **options: Any) -> Any:
        """Embed texts like sentence-transformers, but use the kernel and its batches for a Contextualizer on a CPU."""
        first, *others = self
        on_cpu = self._resolve_inference_device(options.get("device")).type == "cpu"
        if not (
            isinstance(first, Contextualizer)
            and on_cpu
            and first.runs_without_torch
            and all(isinstance(module, READ_VECTORS) for module in others)
            and all(getattr(module, "module_input_name", VECTORS) == VECTORS for module in others)
            and options["output_value"] == VECTORS
            and "processing_kwargs" not in options
            # Hooks see what torch computes.
            and not any(each._forward_hooks or each._forward_pre_hooks for each in (self, first))
        ):
            return super()._inference(inputs, **options)
        self.eval()
        # Made here once, not by each thread.
        first.without_torch(np.empty(0, np.int32))

        def embedded(texts: list[str]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            ids, lengths = first.read(texts, options["prompt"], first.max_seq_length)
            contexts, empty = first.without_torch(ids).embed(ids, lengths), lengths == 0
            if first.normalized:
                contexts[empty] = 0
            parts = []
            with torch.inference_mode():
                for part in torch.from_numpy(contexts).split(max(1, SERIAL_VALUES // contexts.shape[1])):
                    features = {VECTORS: part}
                    for module in others:
                        features = module(features)
                    parts.append(features[VECTORS].numpy())
            return np.concatenate(parts), empty

        vectors, unread = embed_in_batches(inputs, embedded, BATCH_TEXTS, options["show_progress_bar"])
        if unread:
            warnings.warn(UnknownTextsWarning(unread, len(unread), len(inputs), first.normalized), stacklevel=2)
        found: Tensor = torch.from_numpy(np.ascontiguousarray(vectors[:, : options["truncate_dim"]]))
        return torch.nn.functional.normalize(found, p=2, dim=1) if options["normalize_embeddings"] else found
