"""The class of loaded models: precisions, dimensions, shared pools of processes, and the view of the tokenizer."""

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sentence_transformers
import torch
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import ctx_embed
from ctx_embed import Contextualizer
from ctx_embed.fingerprint import fingerprint
from ctx_embed.modules import token_encoder
from ctx_embed.numpy_model import Embedder
from tests.conftest import SENTENCES, make_model
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


@pytest.mark.parametrize("place", ["", "0", "1"])
def test_encode_calls_the_modules_that_have_hooks(tiny_model_path, place):
    model, seen = ctx_embed.load(tiny_model_path, "cpu"), []
    expected = model.encode(SENTENCES)
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        hook = getattr(model.get_submodule(place), register)(lambda *given: seen.append(given[0]))
        np.testing.assert_allclose(model.encode(SENTENCES), expected, atol=1e-6)
        assert seen == [model.get_submodule(place)]
        hook.remove()
        seen.clear()


@pytest.mark.parametrize("place", ["", "0"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_compiled_modules_embed_as_before(tiny_model_path, place, wrapped):
    model = ctx_embed.load(tiny_model_path, "cpu")
    texts = [" ".join(SENTENCES[:count]) for count in range(len(SENTENCES))]
    expected = model.encode(texts)
    module = model.get_submodule(place)
    if not wrapped:
        module.compile(backend="eager")
    elif place:
        model[0] = torch.compile(module, backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    np.testing.assert_allclose(model.encode(texts), expected, atol=2e-6)
    found = model.get_submodule("0")(model.preprocess(texts))["sentence_embedding"]
    found.sum().backward()
    np.testing.assert_allclose(torch.nn.functional.normalize(found.detach(), dim=1), expected, atol=2e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # texts are cut
def test_a_call_may_have_a_length_of_its_own(tiny_model_path):
    model = ctx_embed.load(tiny_model_path, "cpu")
    whole = model.encode(SENTENCES)
    model.max_seq_length = 4
    cut = model.encode(SENTENCES)
    assert np.abs(cut - whole).max() > 0.01
    np.testing.assert_allclose(model.encode(SENTENCES, processing_kwargs={"text": {"padding": True}}), cut, atol=1e-6)
    for settings in ({"max_length": 99, "truncation": True}, {"truncation": False}):
        found = model.encode(SENTENCES, processing_kwargs={"text": settings})
        np.testing.assert_allclose(found, whole, atol=1e-6)
    model.max_seq_length = None
    found = model.encode(SENTENCES, processing_kwargs={"text": {"max_length": 4}})
    np.testing.assert_allclose(found, cut, atol=1e-6)


def test_a_pooling_reads_the_tokens(tokenizer, monkeypatch):
    monkeypatch.setattr(token_encoder, "PADDED_TOKENS", 1 << 13)
    modules = [make_model(tokenizer)[0], Dense(16, 16, module_input_name="token_embeddings"), Pooling(16, "mean")]
    expected = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
    model = type(ctx_embed.load())(modules=modules)
    assert np.allclose(model.encode(SENTENCES), expected.encode(SENTENCES))
    # It may leave out the prompt, also where it is most of the text, and where texts are packed.
    model.set_pooling_include_prompt(False)
    for prompt, texts in (
        (f"{SENTENCES[0]} ", SENTENCES[1:]),
        ("the ", [" ".join(SENTENCES) * 10, *SENTENCES[1:] * 20]),
    ):
        # accelerate, which trains, counts the texts of what comes first.
        features = model.preprocess(texts, prompt=prompt)
        assert next(iter(features)) == "input_ids"
        assert ("cu_seq_lens_q" in features) == (prompt == "the ")
        length = len(tokenizer.encode(prompt, add_special_tokens=False))
        tokens = model.encode(texts, prompt=prompt, output_value="token_embeddings", batch_size=len(texts))
        assert sum(map(len, tokens)) == len(model[0].read(texts, prompt, 9_999)[0])
        expected = torch.stack([of_text[length:].mean(0) for of_text in tokens])
        found = model.encode(texts, prompt=prompt, convert_to_tensor=True, batch_size=len(texts))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("precision", ["int8", "binary", "ubinary"])
@pytest.mark.parametrize("dim", [None, 100])
def test_similarities_of_any_precision(shipped_model, precision, dim):
    floats = shipped_model.encode(SENTENCES, truncate_dim=dim)
    expected = floats if precision == "int8" else 2 * (floats > 0).astype(np.float32) - 1
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    with shipped_model.truncate_embeddings(dim):
        found = shipped_model.encode(SENTENCES, precision=precision)
        similarities = shipped_model.similarity(found, found)
        assert np.abs(similarities.numpy() - expected @ expected.T).max() <= 0.01
        assert torch.allclose(similarities, shipped_model.similarity(list(torch.from_numpy(found)), found))
        assert torch.allclose(similarities.diagonal(), torch.ones(len(found)))
        assert torch.allclose(shipped_model.similarity_pairwise(found, found), torch.ones(len(found)))


def test_what_cannot_be_compared_or_kept_is_refused(shipped_model, tiny_model_path, monkeypatch):
    assert error(shipped_model.encode, SENTENCES, precision="uint8").startswith("unknown precision 'uint8'")
    for precision in ("int8", "binary"):
        assert f"misread {precision} vectors" in error(shipped_model.encode, "a", precision=precision, truncate_dim=40)
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
    calls = (shipped_model.encode, "a"), (ctx_embed.load, tiny_model_path), (Embedder.load().encode, "a")
    for dim, message in ((0, "a positive integer, got 0"), (321, "at most ")):
        for call, given in calls:
            assert f"truncate_dim must be {message}" in error(call, given, truncate_dim=dim)
    # Threads share a model, so no call may change what it keeps, not even for a moment.
    kept = property(lambda _: 50, lambda *_: pytest.fail("truncate_dim was changed"))
    monkeypatch.setattr(type(shipped_model), "truncate_dim", kept, raising=False)
    assert shipped_model.encode("a").shape == (50,)


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


# What programs over transformers do with model.tokenizer
TEXT = "I don't know, said one of the men."


def test_it_is_a_fast_tokenizer_of_transformers(shipped_model):
    view, own = shipped_model.tokenizer, shipped_model[0].backend_tokenizer
    assert isinstance(view, PreTrainedTokenizerFast)
    assert len(view.vocab) == own.get_vocab_size()
    assert view.tokenize(TEXT) == own.encode(TEXT).tokens
    assert shipped_model.tokenizer is view
    # The first and the last id are padding.
    ids = view.encode("a cat", add_special_tokens=False)
    assert ids == own.encode("a cat").ids
    assert view.encode("a cat") == [view.pad_token_id, *ids, view.pad_token_id]
    assert view.decode(view.encode("unbelievably a cat"), skip_special_tokens=True) == "unbelievably a cat"
    module = Contextualizer(Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="b")), 8)
    assert module.tokenizer.encode("a") == [0]
    assert module.tokenizer.pad_token is None


def test_a_view_is_taken_without_changing_the_model_and_another_tokenizer_has_another(tokenizer):
    model = make_model(tokenizer)
    before, view = fingerprint(model), model.tokenizer
    assert fingerprint(model) == before
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.tokenizer = other.tokenizer
        assert fingerprint(other) == before
    assert Contextualizer(view, 8).backend_tokenizer.to_str() == model[0].backend_tokenizer.to_str()
    content = tokenizer.to_str().replace('"lowercase":true', '"lowercase":false')
    assert content != tokenizer.to_str()
    model.tokenizer = Tokenizer.from_str(content)
    assert model.tokenizer is not view
    assert model.tokenizer.tokenize("THE") != ["the"] == view.tokenize("THE")
