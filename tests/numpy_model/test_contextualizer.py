"""Threads and held products change how vectors are computed, not what they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ctx_embed.cli.demo import standard_library_docstrings
from ctx_embed.numpy_model import Embedder, contextualizer


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return ["", *sorted(standard_library_docstrings().values())[:150], "a cat " * 3000]


@pytest.fixture(scope="module")
def expected(texts) -> np.ndarray:
    return Embedder.load().encode(texts)


def test_threads_share_a_batch(texts, expected, monkeypatch):
    monkeypatch.setattr(contextualizer, "PARALLEL_TOKENS", 1)
    monkeypatch.setattr(contextualizer.blas(), "num_threads", 3)
    assert np.abs(Embedder.load().encode(texts) - expected).max() <= 1e-6


def test_products_are_begun_anew_when_they_are_too_many(texts, expected, monkeypatch):
    monkeypatch.setattr(contextualizer, "HELD_ENTRIES", 60)
    embedder = Embedder.load()
    for size in (1, 10, 1000):
        assert np.abs(embedder.encode(texts, size) - expected).max() <= 1e-6
    assert np.abs(embedder.encode(texts[1]) - expected[1]).max() <= 1e-6


def test_several_threads_use_one_embedder(texts, expected):
    embedder = Embedder.load()
    with ThreadPoolExecutor(4) as pool:
        for found, row in zip(pool.map(embedder.encode, texts * 3), [*expected, *expected, *expected], strict=True):
            assert np.abs(found - row).max() <= 1e-6


def test_texts_of_similar_length_are_grouped_with_little_padding():
    generator = np.random.default_rng(0)
    for lengths in ([], [0, 0], [5], [900], [3, 0, 3], generator.integers(0, 60, 500), generator.integers(0, 3000, 20)):
        lengths = np.array(lengths, np.int64)
        N, seen = int(lengths.sum()), []
        for n, texts, places in contextualizer.similar_lengths(lengths, 768, 64):
            assert places.shape == (len(texts), n)
            assert n == lengths[texts].max()
            assert places.size <= 768 or len(texts) == 1
            assert (places == N).sum() <= 64
            assert ((places < N).sum(1) == lengths[texts]).all()
            # The tokens of a text come first, in their order.
            assert all((np.diff(row[row < N]) == 1).all() and (row[: (row < N).sum()] < N).all() for row in places)
            seen.append(places[places < N])
        assert sorted(np.concatenate(seen).tolist() if seen else []) == list(range(N))
