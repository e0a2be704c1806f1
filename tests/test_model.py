"""One model, whatever computes it: NumPy and torch agree, and whatever is returned is checked."""

import pickle
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from ctx_embed import SearchIndex
from ctx_embed.model import Model
from ctx_embed.runtime import Embedder
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error

NEAR = 2e-5
TEXTS = [*SENTENCES, "", "日本語", "\ud800 lone", " ".join(SENTENCES * 9)]


@pytest.fixture
def folder(tokenizer, tmp_path):
    """A model with all settings that change what is computed."""
    model = make_model(tokenizer, max_seq_length=40)
    model.prompts = {"query": "the cat ", "document": "a dog ", "own": "the garden "}
    model.default_prompt_name, model.truncate_dim = "own", 6
    model.save_pretrained(str(tmp_path / "model"))
    return tmp_path / "model"


@pytest.mark.filterwarnings("ignore")
def test_numpy_and_torch_are_one_model(folder):
    models = [Model.of(folder, backend) for backend in ("numpy", "torch")]
    assert isinstance(models[0].backend, Embedder)
    assert isinstance(models[1].backend, SentenceTransformer)
    for method in ("documents", "queries", "encode", "raw"):
        of_numpy, of_torch = (getattr(model, method)(TEXTS) for model in models)
        assert of_numpy.dtype == of_torch.dtype == np.float32
        assert np.abs(of_numpy - of_torch).max() < NEAR, method
        alone = np.concatenate([getattr(models[0], method)([text]) for text in TEXTS])
        assert np.array_equal(alone, of_numpy)
    for facts in ("fingerprint", "dimension", "raw_dimension", "reference", "name"):
        assert len({getattr(model, facts) for model in models}) == 1, facts
    assert (models[0].dimension, models[0].raw_dimension) == (6, 16)
    reads = [model.read(TEXTS) for model in models]
    assert np.array_equal(reads[0].ids, reads[1].ids)
    assert np.array_equal(reads[0].lengths, reads[1].lengths)
    vectors, counts = models[0].encode_and_count(TEXTS)
    assert np.array_equal(vectors, models[0].encode(TEXTS))
    assert np.array_equal(counts, reads[0].lengths)
    assert models[0].similarity(["a cat"], TEXTS).shape == (1, len(TEXTS))


def test_a_pickle_needs_no_folder(folder):
    model = Model.of(folder)
    stored, before = pickle.dumps(model), model.documents(SENTENCES)
    shutil.rmtree(folder)
    for copy in (pickle.loads(stored), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(copy.documents(SENTENCES), before)
        assert (copy.fingerprint, copy.reference) == (model.fingerprint, str(folder))


class Counting:
    """An object with ``encode``, and a row of another width for long texts."""

    def encode(self, texts):
        return [[len(text), 1.0] if len(text) < 50 else [0.0] for text in texts]


def test_anything_that_encodes_is_a_model_but_an_index_must_know_it_again(tmp_path):
    model = Model.of(Counting())
    assert Model.of(model) is model
    assert model.encode(["a", "bbb"]).tolist() == [[1, 1], [3, 1]]
    assert np.allclose(model.documents(["a"]), 0.5**0.5)
    assert model.dimension == 2
    assert model.documents([]).shape == (0, 2)
    assert error(model.encode, ["x" * 60]).startswith(
        "Counting: must return 2 numbers for each text, got an array (1, 1)"
    )
    said = "Counting: has no fingerprint; give the folder or name of a model, an Embedder or a SentenceTransformer"
    assert error(SearchIndex.create, tmp_path / "index", Counting()) == said
    assert not (tmp_path / "index").exists()
    assert error(Model.of, 3) == "a model must have a method encode(list of texts) -> array, got an int"
    assert error(Model.of, "default", "jax").startswith("unknown backend 'jax'")
