"""One model, whatever computes it: NumPy and torch agree, and whatever is returned is checked."""

import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dropout

from ctx_embed import SearchIndex
from ctx_embed.model import LATE_CHARACTERS, Model
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
    for fact in ("fingerprint", "dimension", "raw_dimension", "reference", "name"):
        assert len({getattr(model, fact) for model in models}) == 1, fact
    assert (models[0].dimension, models[0].raw_dimension) == (6, 16)
    reads = [model.read(TEXTS) for model in models]
    assert np.array_equal(reads[0].ids, reads[1].ids)
    vectors, counts = models[0].encode_and_count(TEXTS)
    assert np.array_equal(vectors, models[0].encode(TEXTS))
    for lengths in (counts, reads[1].lengths):
        assert np.array_equal(lengths, reads[0].lengths)
    # As long as it may be, also with another prompt.
    for name in ("encode", "encode_query", "encode_document"):
        ours, theirs = (getattr(model.backend, name) for model in models)
        for options in ({}, {"prompt": "rain "}):
            with pytest.warns(UserWarning, match="cut to max_seq_length=40"):
                of_numpy = ours([*SENTENCES, TEXTS[-1]], **options)
            assert np.abs(of_numpy - theirs([*SENTENCES, TEXTS[-1]], **options)).max() < NEAR


@pytest.mark.filterwarnings("ignore")
def test_a_cosine_is_that_of_the_pair_alone(embedder):
    model, texts = Model.of(embedder), [*TEXTS, *(" ".join(SENTENCES[:count]) for count in range(1, 9))]
    together = model.similarity(texts, texts)
    alone = [[model.similarity([left], [right])[0, 0] for right in texts] for left in texts]
    assert together.dtype == np.float32
    assert np.array_equal(together, alone)
    assert np.abs(together).max() <= 1
    assert np.allclose(together, model.queries(texts) @ model.documents(texts).T, atol=1e-6)


def test_raw_embeddings_are_those_of_use_even_after_training(tokenizer):
    transformer = make_model(tokenizer)
    transformer.append(Dropout(0.5))
    expected = Model.of(transformer).raw(SENTENCES)
    transformer.train()
    assert np.array_equal(Model.of(transformer).raw(SENTENCES), expected)


def test_a_pickle_needs_no_folder(folder):
    model = Model.of(folder)
    stored, before = pickle.dumps(model), model.documents(SENTENCES)
    shutil.rmtree(folder)
    for copy in (pickle.loads(stored), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(copy.documents(SENTENCES), before)
        assert (copy.fingerprint, copy.reference) == (model.fingerprint, str(folder))


def test_anything_that_encodes_is_a_model_but_an_index_must_know_it_again(tmp_path):
    # A row of another width for long texts.
    other = SimpleNamespace(encode=lambda texts: [[len(text), 1.0][: 1 + (len(text) < 50)] for text in texts])
    model = Model.of(other)
    assert Model.of(model) is model
    assert model.encode(["a", "bbb"]).tolist() == [[1, 1], [3, 1]]
    assert np.allclose(model.documents(["a"]), 0.5**0.5)
    assert model.dimension == 2
    assert model.documents([]).shape == (0, 2)
    assert "must return 2 numbers for each text, got an array (1, 1)" in error(model.encode, ["x" * 60])
    assert ": has no fingerprint; give the folder" in error(SearchIndex.create, tmp_path / "index", other)
    assert not (tmp_path / "index").exists()
    assert error(Model.of, 3) == "a model must have a method encode(list of texts) -> array, got an int"
    assert error(Model.of, "default", "jax").startswith("unknown backend 'jax'")


def test_a_second_look_reads_the_beginning_of_a_passage_and_only_what_the_model_can_read(embedder):
    model, query = Model.of(embedder), "a telescope in the garden"
    beginning = ("the cat sat on the mat " * 1000)[:LATE_CHARACTERS]
    texts = [beginning, beginning + query, "日本語 a", query]
    (vector,), vectors = model.queries([query]), model.documents(texts)
    vectors[0] = vectors[1]
    late = model.late(query, vector, texts, vectors)
    assert np.array_equal(late.cosines[0], late.cosines[1])
    # The third has a word that occurs in English texts, but the model does not read it.
    assert not vectors[2].any()
    assert (late.places[2] == -1).all()
    assert late.scores.argmax() == 3
    # A token that works against the query's own embedding does not count.
    query = "Most programs take a SentenceTransformer, which `ctx_embed.load()` returns; some"
    assert model.late(query, model.queries([query])[0], texts, vectors).weights.min() == 0
