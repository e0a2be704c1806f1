from __future__ import annotations

import hashlib
import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ctx_embed import load
from ctx_embed.fingerprint import fingerprint
from tests.conftest import make_model


@pytest.fixture
def model(tokenizer):
    return make_model(tokenizer)


def test_a_fingerprint_by_hand(tokenizer, tiny_model):
    assert len(fingerprint(tiny_model)) == 64
    assert fingerprint(make_model(tokenizer)) == fingerprint(tiny_model)
    module = torch.nn.Linear(1, 1)
    module.load_state_dict({"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])})
    expected = hashlib.sha256(
        b'["Linear", {}]'
        + b"0.bias torch.float32 [1]\n"
        + b"\x00\x00\x80\x3f"
        + b"0.weight torch.float32 [1, 1]\n"
        + b"\x00\x00\x00\x40"
    )
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


def test_save_and_load_do_not_change_it(tiny_model, tiny_model_path):
    assert fingerprint(load(tiny_model_path)) == fingerprint(tiny_model)
    assert fingerprint(SentenceTransformer(str(tiny_model_path), trust_remote_code=True)) == fingerprint(tiny_model)


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
