"""The class of loaded models: precisions and dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ctx_embed
from ctx_embed import InputError
from ctx_embed.numpy_model import Embedder
from tests.conftest import SENTENCES


@pytest.fixture(scope="module")
def model():
    return ctx_embed.load(device="cpu")


def test_int8_does_not_depend_on_the_batch_or_the_backend(model):
    whole = model.encode(SENTENCES, precision="int8")
    assert whole.dtype == np.int8
    for place, text in enumerate(SENTENCES):
        assert np.array_equal(model.encode(text, precision="int8"), whole[place])
    assert np.abs(Embedder.load().encode(SENTENCES, precision="int8").astype(int) - whole).max() <= 1
    tensor = model.encode(SENTENCES, precision="int8", convert_to_tensor=True)
    assert torch.equal(tensor, torch.from_numpy(whole))
    listed = model.encode(SENTENCES, precision="int8", convert_to_numpy=False)
    assert torch.equal(torch.stack(listed), tensor)
    # The same argument by its position: after prompt_name, prompt, batch_size, show_progress_bar and output_value.
    assert np.array_equal(model.encode(SENTENCES, None, None, 32, False, "sentence_embedding", "int8"), whole)
    assert model.encode([], precision="int8").shape == (0, 320)


@pytest.mark.parametrize("precision", ["int8", "binary", "ubinary"])
@pytest.mark.parametrize("dim", [None, 100])
def test_similarities_of_any_precision(model, precision, dim):
    floats = model.encode(SENTENCES, truncate_dim=dim)
    expected = floats if precision == "int8" else 2 * (floats > 0).astype(np.float32) - 1
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    with model.truncate_embeddings(dim):
        found = model.encode(SENTENCES, precision=precision)
        assert np.abs(model.similarity(found, found).numpy() - expected @ expected.T).max() <= 0.01
        assert torch.allclose(model.similarity(found, found).diagonal(), torch.ones(len(SENTENCES)))
        assert torch.allclose(model.similarity_pairwise(found, found), torch.ones(len(SENTENCES)))
        assert torch.allclose(model.similarity(list(torch.from_numpy(found)), found).diagonal(), torch.ones(len(found)))


def test_what_cannot_be_compared_or_kept_is_refused(model):
    with pytest.raises(InputError, match="unknown precision 'uint8': did you mean 'int8'"):
        model.encode(SENTENCES, precision="uint8")
    with pytest.raises(InputError, match=r"embeddings must be floats, int8 or packed bits, got int32"):
        model.similarity(np.ones((1, 320), np.int32), np.ones((1, 320), np.int32))
    for dtype, width, message in ((np.uint8, 320, "40 bytes of packed bits"), (np.int8, 321, "320 int8 features")):
        for compare in (model.similarity, model.similarity_pairwise):
            with pytest.raises(InputError, match=f"embeddings must have at most {message}, got {width}"):
                compare(np.ones((1, width), dtype), np.ones((1, width), dtype))
    # Bits of the first features are fewer.
    bits = model.encode(SENTENCES, precision="ubinary", truncate_dim=64)
    assert torch.allclose(model.similarity_pairwise(bits, bits), torch.ones(len(SENTENCES)))
    for dim, message in ((-5, "positive integer, got -5"), (0, "positive integer, got 0"), (321, "at most 320")):
        with pytest.raises(InputError, match=f"truncate_dim must be .*{message}"):
            model.encode("a", truncate_dim=dim)
        with pytest.raises(InputError, match=f"truncate_dim must be .*{message}"):
            ctx_embed.load(truncate_dim=dim)
        with pytest.raises(InputError, match=f"truncate_dim must be .*{message}"):
            Embedder.load().encode("a", truncate_dim=dim)
