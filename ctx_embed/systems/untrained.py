"""Encoders with random weights: baselines that show what an architecture alone contributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctx_embed.errors import InputError
from ctx_embed.modules import Contextualizer
from ctx_embed.numpy_model.saved import DEFAULT_MODEL
from ctx_embed.systems.registry import require_options, system


def untrained(
    name: str,
    tokenizer: Tokenizer | PreTrainedTokenizerBase | None = None,
    dimension: int | None = None,
    seed: int = 0,
    *,
    phrases: Tensor | np.ndarray[Any, Any] | None = None,
    weights: Tensor | np.ndarray[Any, Any] | None = None,
    **options: Any,
) -> SentenceTransformer:
    """Return a SentenceTransformer with randomly initialised weights and l2-normalised embeddings.

    Args:
        name: a name of :data:`ctx_embed.systems.SYSTEMS`.
        tokenizer: the tokenizer; None takes that of the default model, with its token table.
        dimension: m; None takes 256, or the dimension of the default model's table.
        seed: seed of all random weights; torch's own generator keeps its state.
        phrases: pairs of ids that form an entry; only with a tokenizer.
        weights: (entries, m) token table; None initialises it randomly if there is a tokenizer.
        **options: options of the encoder.

    Raises:
        InputError: an unknown name or option, or another dimension than the default model's table has.
    """
    require_options(name, options)
    labelled_texts = None
    if tokenizer is None:
        shipped = Contextualizer.load(str(DEFAULT_MODEL), local_files_only=True)
        tokenizer, phrases, weights = shipped.backend_tokenizer, shipped.phrases, shipped.embedding.weight.detach()
        if dimension not in (None, shipped.dimension):
            raise InputError(
                f"dimension must be {shipped.dimension} for the default model's token table, got {dimension}; leave it "
                "out, or give a tokenizer for a randomly initialised table"
            )
        dimension, labelled_texts = shipped.dimension, shipped.labelled_texts
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = system(name)(tokenizer, dimension or 256, phrases=phrases, weights=weights, **options)
    module.labelled_texts = labelled_texts
    module.normalized = True  # sentence-transformers 5.7 does not call on_model_ready
    return SentenceTransformer(modules=[module, Normalize()], device="cpu")
