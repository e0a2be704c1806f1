"""Threads and held products change how vectors are computed, not what they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ctx_embed.cli.demo import standard_library_docstrings
from ctx_embed.numpy_model import Embedder, contextualizer
from ctx_embed.numpy_model.contextualizer import EntryProducts, bags, similar_sizes


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return ["", *sorted(standard_library_docstrings().values())[:150], "a cat " * 3000]


@pytest.fixture(scope="module")
def expected(texts) -> np.ndarray:
    return Embedder.load().encode(texts)


def test_threads_share_a_batch(texts):
    embedder = Embedder.load()
    ids, lengths = embedder.tokens(texts)
    alone = embedder.contextualizer.embed(ids, lengths, threads=1)
    for threads in (2, 3, 40):
        assert np.abs(embedder.contextualizer.embed(ids, lengths, threads=threads) - alone).max() <= 1e-5


def test_products_are_dropped_when_they_are_too_many(texts):
    contextualizer = Embedder.load().contextualizer
    ids = Embedder.load().tokens(texts)[0].astype(np.int64)
    computed = EntryProducts(contextualizer.table, contextualizer.steps, contextualizer.c0)
    few = EntryProducts(contextualizer.table, contextualizer.steps, contextualizer.c0, held_bytes=60 * 1792)
    for start in (0, 50, 0, 70, 30):
        some = ids[start : start + 40]
        held = few.of(some)
        assert len(held.of_steps) == 60
        for found, expected in zip(held.rows(some), computed.computed(some), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert len(few.of(ids).of_steps) == len(np.unique(ids))


def test_several_threads_use_one_embedder(texts, expected):
    embedder = Embedder.load()
    with ThreadPoolExecutor(4) as pool:
        for found, row in zip(pool.map(embedder.encode, texts * 3), [*expected, *expected, *expected], strict=True):
            assert np.abs(found - row).max() <= 1e-6


def test_an_entry_that_repeats_is_computed_once():
    ids, counts, sizes = bags(np.array([7, 3, 7, 5, 7, 1], np.int32), np.array([3, 0, 2, 1]), 10)
    assert ids.tolist() == [3, 7, 5, 7, 1]
    assert counts.tolist() == [1, 2, 1, 1, 1]
    assert sizes.tolist() == [2, 0, 2, 1]


def test_many_tokens_of_few_entries(texts):
    embedder = Embedder.load()
    state = embedder.state()
    state.add("a cat sat " * 3000)
    assert np.abs(embedder.encode("a cat sat " * 3000) - state.embedding()).max() <= 1e-6


def test_sums_over_blocks_are_those_over_all_entries(monkeypatch):
    made = Embedder.load().contextualizer
    entries = np.arange(2000, 5000)
    counts = 1 + entries % 3
    blocks = made.counted(entries, counts, made.c0)
    monkeypatch.setattr(contextualizer, "BLOCK_TOKENS", 1 << 20)
    assert np.abs(made.counted(entries, counts, made.c0) - blocks).max() <= 1e-5 * np.abs(blocks).max()


def test_texts_of_similar_size_are_grouped_with_little_padding():
    generator = np.random.default_rng(0)
    for sizes in ([], [0, 0], [5], [900], [0, 3, 3], generator.integers(0, 60, 500), generator.integers(0, 3000, 20)):
        sizes = np.sort(np.array(sizes, np.int64))
        groups = list(similar_sizes(sizes, 768, 64))
        for group in groups:
            padded = sizes[group].max() * len(sizes[group])
            assert padded <= 768 or len(sizes[group]) == 1
            assert padded - sizes[group].sum() <= 64
        texts = [text for group in groups for text in range(group.start, group.stop)]
        assert texts == np.flatnonzero(sizes).tolist()
