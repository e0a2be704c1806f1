"""A system with drawn weights, for what its form alone is worth."""

from __future__ import annotations

from pathlib import Path
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
from ctx_embed.systems.registry import require_options, system

SHIPPED = Path(__file__).parent.parent / "pretrained" / "default"


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
    """A SentenceTransformer of the system of that name whose weights are drawn by a seed, then l2-normalised.

    Args:
        name: see :data:`ctx_embed.systems.SYSTEMS`.
        tokenizer: None: that of the shipped default model, whose token table is taken too.
        dimension: m; None: 256, or that of the shipped table.
        seed: of all weights drawn; the state of torch's generator is left as it was.
        phrases: pairs of ids that are entries themselves, beside a tokenizer.
        weights: (entries, m) token table; None draws it where a tokenizer is given.
        **options: of the system.

    Raises:
        InputError: an unknown name or option, or a dimension that the shipped table does not have.
    """
    require_options(name, options)
    labelled_texts = None
    if tokenizer is None:
        shipped = Contextualizer.load(str(SHIPPED), local_files_only=True)
        tokenizer, phrases, weights = shipped.backend_tokenizer, shipped.phrases, shipped.embedding.weight.detach()
        if dimension not in (None, shipped.dimension):
            raise InputError(
                f"dimension {dimension} is not the shipped token table's {shipped.dimension}: leave it out, or give a "
                "tokenizer, for which a table is drawn"
            )
        dimension, labelled_texts = shipped.dimension, shipped.labelled_texts
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = system(name)(tokenizer, dimension or 256, phrases=phrases, weights=weights, **options)
    module.labelled_texts = labelled_texts
    return SentenceTransformer(modules=[module, Normalize()], device="cpu")
