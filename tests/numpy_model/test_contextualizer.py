"""Threads, blocks and counts change how vectors are computed, not what they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ctx_embed.cli.demo import standard_library_docstrings
from ctx_embed.kernel import kernel
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model import embedder as embedding


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return ["", *sorted(standard_library_docstrings().values())[:150], "a cat " * 3000]


@pytest.fixture(scope="module")
def expected(texts) -> np.ndarray:
    return Embedder.load().encode(texts)


def test_threads_share_a_batch(texts, monkeypatch):
    embedder = Embedder.load()
    alone = np.stack([embedder.encode(text) for text in texts])
    for threads in (1, 2, 3, 40):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        assert (embedder.encode(texts) == alone).all() or kernel() is None


def test_several_threads_use_one_embedder(texts, expected):
    embedder = Embedder.load()
    with ThreadPoolExecutor(4) as pool:
        for found, row in zip(pool.map(embedder.encode, texts * 3), [*expected, *expected, *expected], strict=True):
            assert np.abs(found - row).max() <= 1e-6


def test_many_tokens_of_few_entries(texts):
    embedder = Embedder.load()
    state = embedder.state()
    state.add("a cat sat " * 3000)
    assert np.abs(embedder.encode("a cat sat " * 3000) - state.embedding()).max() <= 1e-6


def test_sums_over_blocks_are_those_over_all_entries(monkeypatch):
    made = Embedder.load().contextualizer
    entries = np.arange(2000, 5000)
    counts = 1 + entries % 3
    blocks = made.embed(entries, np.array([3000]), counts)
    monkeypatch.setattr(embedding, "BLOCK_TOKENS", 1 << 20)
    assert np.abs(made.embed(entries, np.array([3000]), counts) - blocks).max() <= 1e-5 * np.abs(blocks).max()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("beyond", [-1, 0, 1 << 31])
def test_ids_beyond_the_table_are_refused(dtype, beyond):
    made = Embedder.load().contextualizer
    wrong = len(made.table.values) + beyond if beyond >= 0 else beyond
    if wrong > np.iinfo(dtype).max:
        pytest.skip("no such id")
    with pytest.raises(IndexError, match=f"ids must be rows of the table, got .*{wrong}"):
        made.embed(np.array([5, wrong, 7], dtype), np.array([2, 1]))
