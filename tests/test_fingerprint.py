import hashlib
import json
import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ctx_embed import load
from ctx_embed.fingerprint import fingerprint
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model import saved as stored
from ctx_embed.numpy_model.saved import DEFAULT_MODEL, SavedContextualizer
from ctx_embed.text import normalisation
from tests.conftest import make_model


@pytest.fixture
def model(tokenizer):
    return make_model(tokenizer)


def test_a_fingerprint_by_hand(tokenizer, tiny_model):
    assert len(fingerprint(tiny_model)) == 64
    assert fingerprint(make_model(tokenizer)) == fingerprint(tiny_model)
    module = torch.nn.Linear(1, 1)
    module.load_state_dict({"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])})
    tensors = b"0.bias torch.float32 [1]\n\x00\x00\x80\x3f" + b"0.weight torch.float32 [1, 1]\n\x00\x00\x00\x40"
    expected = hashlib.sha256(b'["Linear", {}]' + tensors)
    assert fingerprint(torch.nn.Sequential(module)) == expected.hexdigest()


def test_each_weight_and_the_dtype_count(model):
    seen = {fingerprint(model)}
    for name, tensor in model.state_dict().items():
        with torch.no_grad():
            tensor.view(-1)[-1].nextafter_(torch.tensor(float("inf")))
        before = len(seen)
        seen.add(fingerprint(model))
        assert len(seen) == before + 1, name
    assert len({fingerprint(model), fingerprint(model.bfloat16()), fingerprint(model.half())}) == 3


def test_options_and_modules_count_where_the_tensors_are_the_same(tokenizer, tiny_model):
    others = [make_model(tokenizer, **option) for option in ({"scale": "sum"}, {"max_seq_length": 9})]
    others.append(SentenceTransformer(modules=[tiny_model[0]], device="cpu"))
    for other in others:
        for name, tensor in tiny_model.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])
        assert fingerprint(other) != fingerprint(tiny_model)


def test_the_tokenizer_counts_but_not_its_padding_and_truncation(tokenizer, tiny_model):
    content = json.loads(tokenizer.to_str())
    content["normalizer"]["lowercase"] = False
    assert fingerprint(make_model(Tokenizer.from_str(json.dumps(content)))) != fingerprint(tiny_model)
    padded = Tokenizer.from_str(tokenizer.to_str())
    padded.enable_padding()
    padded.enable_truncation(5)
    model = make_model(tokenizer)
    model[0].text_tokenizer.tokenizer = padded
    assert fingerprint(model) == fingerprint(tiny_model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_folder_of_smaller_numbers_has_one_fingerprint_as_float32(model, tmp_path, dtype):
    model.to(dtype).save_pretrained(str(tmp_path / "small"))
    loaded = load(tmp_path / "small")
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    assert fingerprint(loaded) == fingerprint(model.float())
    loaded.save_pretrained(str(tmp_path / "large"))
    assert fingerprint(load(tmp_path / "large")) == fingerprint(loaded)
    again = load(tmp_path / "small", dtype=dtype)
    assert fingerprint(again) == fingerprint(model.to(dtype))


# A fingerprint is stored with what its files hold, and computed again when one of them changes.


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(stored, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def folder(tmp_path, tiny_model_path):
    shutil.copytree(tiny_model_path, tmp_path / "model")
    return tmp_path / "model"


def test_the_default_models_file_is_its_own():
    content = json.loads((DEFAULT_MODEL / stored.FILE).read_text(encoding="utf-8"))
    saved = SavedContextualizer.read(DEFAULT_MODEL)
    expected = {"key": stored.files_key(saved), "fingerprint": stored.computed_fingerprint(saved)}
    assert content == expected, f"write {json.dumps(expected)} into {DEFAULT_MODEL / stored.FILE}"


def test_it_is_computed_once(cache, folder, monkeypatch):
    found = Embedder.load(folder).fingerprint
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(stored, "computed_fingerprint", lambda saved: pytest.fail("computed again"))
    assert Embedder.load(folder).fingerprint == found


def test_no_folder_says_itself_what_its_model_is(cache, folder):
    key = stored.files_key(SavedContextualizer.read(folder))
    other = json.loads((DEFAULT_MODEL / stored.FILE).read_text(encoding="utf-8"))["fingerprint"]
    (folder / stored.FILE).write_text(json.dumps({"key": key, "fingerprint": other}))
    assert Embedder.load(folder).fingerprint == fingerprint(load(folder)) != other


def test_a_changed_file_gives_another(cache, folder):
    before = Embedder.load(folder).fingerprint
    config = folder / "contextualizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "scale": "sum"}))
    assert Embedder.load(folder).fingerprint == fingerprint(load(folder)) != before


def test_the_version_of_the_normalisation_counts(cache, folder, tiny_model, monkeypatch):
    before = fingerprint(tiny_model)
    assert Embedder.load(folder).fingerprint == before
    monkeypatch.setattr(normalisation, "VERSION", normalisation.VERSION + 1)
    assert Embedder.load(folder).fingerprint == fingerprint(tiny_model) != before


def test_a_broken_or_unwritable_cache_does_no_harm(cache, folder):
    found = Embedder.load(folder).fingerprint
    (file,) = cache.iterdir()
    file.write_text("{")
    assert Embedder.load(folder).fingerprint == found
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert Embedder.load(folder).fingerprint == found
