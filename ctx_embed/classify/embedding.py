"""The embeddings that classifiers' heads read: those of a SentenceTransformer before any normalisation."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ctx_embed.modules.token_encoder import Features
from ctx_embed.texts import length_batches

Floats = NDArray[Any]


@torch.no_grad()
def dimension_of(encoder: SentenceTransformer) -> int:
    """Return the dimension of an encoder's embeddings before any truncation."""
    with warnings.catch_warnings():
        # Suppress the warning that the empty text has no words.
        warnings.simplefilter("ignore")
        return embeddings(encoder.eval(), [""]).shape[1]


def embeddings(encoder: SentenceTransformer, texts: list[str], token_dropout: float = 0.0) -> Tensor:
    """Return the embeddings (texts, m) before any normalisation: a Contextualizer's c^K, zeros without tokens."""
    features = batch_to_device(encoder.preprocess(texts), encoder.device)
    if token_dropout > 0 and "attention_mask" in features:
        seen = torch.rand(features["attention_mask"].shape, device=encoder.device) >= token_dropout
        features["attention_mask"] = features["attention_mask"] * seen
    for module in encoder:
        # Skip normalisation: embeddings of unit length would limit the logits.
        if not isinstance(module, Normalize):
            features = module(features)
    found: Tensor = features["sentence_embedding"]
    return found * features["attention_mask"].any(1, keepdim=True) if isinstance(features, Features) else found


@torch.inference_mode()
def embedded(encoder: SentenceTransformer, texts: Sequence[str]) -> Floats:
    """Return the embeddings (texts, m) before any normalisation as float32, batch by batch."""
    encoder.eval()
    found: Floats | None = None
    for rows in length_batches(texts):
        batch = embeddings(encoder, [texts[row] for row in rows]).float().cpu().numpy()
        if found is None:
            found = np.empty((len(texts), batch.shape[1]), np.float32)
        found[rows] = batch
    return np.empty((0, 0), np.float32) if found is None else found
