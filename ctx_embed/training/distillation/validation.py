"""A validation metric of a training: correlation on scored pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from ctx_embed.errors import InputError
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.reading import read_lines
from ctx_embed.texts import well_formed


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts and their similarity: scores (P,), first and second texts."""

    scores: Sequence[float]
    first: Sequence[str]
    second: Sequence[str]

    @torch.no_grad()
    def spearman(self, encoder: TokenEncoder) -> float:
        """Return Spearman's correlation of the scores with the encoder's cosines, in -1..1."""
        encoder.eval()
        packed, lengths = encoder.text_tokenizer([*self.first, *self.second])
        ids = torch.from_numpy(packed.astype("int64")).to(encoder.embedding.weight.device)
        embeddings = encoder.embed(ids, lengths.tolist())
        cosines = F.cosine_similarity(embeddings[: len(self.first)], embeddings[len(self.first) :], dim=1)
        return float(spearmanr(self.scores, cosines.cpu().numpy()).statistic)


def read_pairs(path: str | Path) -> Pairs:
    """Read the pairs of a file of lines ``score<TAB>text<TAB>text``.

    Raises:
        InputError: as :func:`ctx_embed.reading.read_lines`; another line; fewer than two pairs.
    """
    scores: list[float] = []
    texts: list[list[str]] = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        score, *columns = line.rstrip("\n").split("\t")
        try:
            scores.append(float(score))
        except ValueError:
            columns = []
        if len(columns) != 2:
            raise InputError(f"{path}, line {number}: {line[:40]!r} is not score<TAB>text<TAB>text")
        texts.append([well_formed(column) for column in columns])
    if len(texts) < 2:
        raise InputError(f"{path}: must have at least two pairs, got {len(texts)}")
    first, second = zip(*texts, strict=True)
    return Pairs(scores, first, second)
