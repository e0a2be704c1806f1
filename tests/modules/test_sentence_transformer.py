"""The class of loaded models: precisions, dimensions, and threads that share a pool of processes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sentence_transformers
import torch

import ctx_embed
from ctx_embed.numpy_model import Embedder
from tests.conftest import SENTENCES
from tests.helpers.errors import error


def test_int8_does_not_depend_on_the_batch_or_the_backend(shipped_model):
    whole = shipped_model.encode(SENTENCES, precision="int8")
    assert whole.dtype == np.int8
    for place, text in enumerate(SENTENCES):
        assert np.array_equal(shipped_model.encode(text, precision="int8"), whole[place])
    assert np.abs(Embedder.load().encode(SENTENCES, precision="int8").astype(int) - whole).max() <= 1
    tensor = shipped_model.encode(SENTENCES, precision="int8", convert_to_tensor=True)
    assert torch.equal(tensor, torch.from_numpy(whole))
    listed = shipped_model.encode(SENTENCES, precision="int8", convert_to_numpy=False)
    assert torch.equal(torch.stack(listed), tensor)
    # The same argument by its position: after prompt_name, prompt, batch_size, show_progress_bar and output_value.
    assert np.array_equal(shipped_model.encode(SENTENCES, None, None, 32, False, "sentence_embedding", "int8"), whole)
    assert shipped_model.encode([], precision="int8").shape == (0, 320)


@pytest.mark.parametrize("precision", ["int8", "binary", "ubinary"])
@pytest.mark.parametrize("dim", [None, 100])
def test_similarities_of_any_precision(shipped_model, precision, dim):
    floats = shipped_model.encode(SENTENCES, truncate_dim=dim)
    expected = floats if precision == "int8" else 2 * (floats > 0).astype(np.float32) - 1
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    with shipped_model.truncate_embeddings(dim):
        found = shipped_model.encode(SENTENCES, precision=precision)
        assert np.abs(shipped_model.similarity(found, found).numpy() - expected @ expected.T).max() <= 0.01
        assert torch.allclose(shipped_model.similarity(found, found).diagonal(), torch.ones(len(SENTENCES)))
        assert torch.allclose(shipped_model.similarity_pairwise(found, found), torch.ones(len(SENTENCES)))
        assert torch.allclose(
            shipped_model.similarity(list(torch.from_numpy(found)), found).diagonal(), torch.ones(len(found))
        )


def test_what_cannot_be_compared_or_kept_is_refused(shipped_model, tiny_model_path):
    assert error(shipped_model.encode, SENTENCES, precision="uint8").startswith("unknown precision 'uint8'")
    for dtype, width, message in (
        (np.int32, 320, "be floats, int8 or packed bits, got int32"),
        (np.uint8, 320, "have at most 40 bytes of packed bits, got 320"),
        (np.int8, 321, "have at most 320 int8 features, got 321"),
    ):
        for compare in (shipped_model.similarity, shipped_model.similarity_pairwise):
            assert f"embeddings must {message}" in error(compare, *[np.ones((1, width), dtype)] * 2)
    # Bits of the first features are fewer.
    bits = shipped_model.encode(SENTENCES, precision="ubinary", truncate_dim=64)
    assert torch.allclose(shipped_model.similarity_pairwise(bits, bits), torch.ones(len(SENTENCES)))
    for dim, message in ((0, "a positive integer, got 0"), (321, "at most ")):
        for call, given in (
            (shipped_model.encode, "a"),
            (ctx_embed.load, tiny_model_path),
            (Embedder.load().encode, "a"),
        ):
            assert f"truncate_dim must be {message}" in error(call, given, truncate_dim=dim)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_threads_that_share_a_pool_take_turns(shipped_model, monkeypatch, precision):
    """Its queue does not say whose results it holds."""
    inside, most = threading.Semaphore(0), []

    def encode(self, inputs, **options):
        inside.release()
        time.sleep(0.05)
        most.append(inside._value)
        inside.acquire()
        return np.ones((len(inputs), 320), np.float32)

    monkeypatch.setattr(sentence_transformers.SentenceTransformer, "encode", encode)
    pool = {"input": None, "output": None, "processes": []}
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda text: shipped_model.encode([text], pool=pool, precision=precision), "abcd"))
    assert most == [1, 1, 1, 1]
