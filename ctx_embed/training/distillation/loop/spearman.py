"""Spearman's correlation of a student's cosines with the scores of pairs."""

from __future__ import annotations

import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.training.distillation.texts.scored_pairs import Pairs


@torch.no_grad()
def spearman(pairs: Pairs, encoder: TokenEncoder) -> float:
    """Return Spearman's correlation of the pairs' scores with the encoder's cosines, in -1..1."""
    encoder.eval()
    packed, lengths = encoder.text_tokenizer([*pairs.first, *pairs.second])
    ids = torch.from_numpy(packed.astype("int64")).to(encoder.embedding.weight.device)
    embeddings = encoder.embed(ids, lengths.tolist())
    cosines = F.cosine_similarity(embeddings[: len(pairs.first)], embeddings[len(pairs.first) :], dim=1)
    return float(spearmanr(pairs.scores, cosines.cpu().numpy()).statistic)
