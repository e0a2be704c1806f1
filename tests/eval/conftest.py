"""Encoders that need no model, and small data in the published layout."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from ctx_embed.eval.encoders import Encoder


def draw(text: str) -> np.ndarray:
    """Eight numbers decided by the text alone; the first tells whether it holds the word 'good'."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    row = np.random.default_rng(seed).normal(size=8)
    row[0] += 6.0 * ("good" in text)
    return row


@pytest.fixture
def drawn() -> Encoder:
    return Encoder("drawn", lambda texts: np.stack([draw(text) for text in texts]), "f" * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with 40 rows of MR, 10 pairs of STSB, and the two subsets of a small STS13."""
    senteval = tmp_path / "data" / "senteval"
    senteval.mkdir(parents=True)
    (senteval / "MR.tsv").write_text("".join(f"{i % 2}\t{('bad', 'good')[i % 2]} film {i}\n" for i in range(40)))
    pairs = [f"{i % 5}.0\tgood day {i}\tgood night {i}\n" for i in range(10)]
    (senteval / "STSB_test.tsv").write_text("".join(pairs))
    (senteval / "STSB_dev.tsv").write_text("2.0\tright 0\tleft 0\n" + "".join(pairs))
    for subset in ("FNWN", "OnWN", "headlines"):
        rows = "".join(f"{i % 4}.5\tleft {i}\tright {i}\n" for i in range(8))
        (senteval / f"STS13_{subset}.tsv").write_text(rows if subset != "OnWN" else "".join(pairs))
    return tmp_path / "data"
