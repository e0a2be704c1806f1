"""The module: its conventions, its invariances, and each of its ways through the steps against the plain one."""

import copy
import itertools

import numpy as np
import pytest
import sentence_transformers
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn import functional as F

import ctx_embed
from ctx_embed import Contextualizer, InputError, second_order
from ctx_embed.modules import contextualizer as contextualizer_module
from ctx_embed.modules import token_encoder
from ctx_embed.numpy_model.embedder import PackedContextualizer
from ctx_embed.systems.pooling import MeanEmbedding
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error

OPTIONS = [
    {"positions": positions, "scale": scale, "initial_context": initial}
    for positions, scale, initial in itertools.product(
        sorted(second_order.POSITIONS), second_order.SCALES, sorted(second_order.INITIAL_CONTEXTS)
    )
]


def drawn(tokenizer, **options) -> Contextualizer:
    """A module whose every parameter is drawn, so that no option is without effect."""
    torch.manual_seed(0)
    module = Contextualizer(tokenizer, 12, **{"steps": 3, "rank": 5, **options}).double()
    with torch.no_grad():
        for parameter in module.attention.parameters():
            parameter.normal_(std=0.5)
    return module.eval()


def packed(module: Contextualizer, texts: list[str]):
    features = module.preprocess(texts)
    mask = features["attention_mask"]
    offsets = F.pad(mask.sum(1).cumsum(0), (1, 0))
    return features["input_ids"][mask.bool()], offsets


def reference(module: Contextualizer, texts: list[str]) -> torch.Tensor:
    """c^K by the direct form over single texts."""
    rows = []
    for text in texts:
        ids, offsets = packed(module, [text])
        rows.append(module.attention(module.embedding(ids), ids, offsets)[-1])
    return torch.cat(rows).detach()


TEXTS = [SENTENCES[0], "", "cat", " ".join(SENTENCES), SENTENCES[2], "cat"]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
def test_every_way_gives_the_direct_form(tokenizer, options, monkeypatch):
    module = drawn(tokenizer, **options)
    expected = reference(module, TEXTS)

    def embed(texts):
        return module(module.preprocess(texts))["sentence_embedding"]

    with torch.no_grad():
        torch.testing.assert_close(embed(TEXTS), expected, rtol=1e-9, atol=1e-9)
        for order in ([5, 0, 1, 3, 2, 4], [1], [3, 1]):
            torch.testing.assert_close(embed([TEXTS[i] for i in order]), expected[order], rtol=1e-9, atol=1e-9)
        monkeypatch.setattr(contextualizer_module, "LONG_DOCUMENT_TOKENS", 5)
        monkeypatch.setattr(second_order, "BLOCK_TOKENS", 4)
        torch.testing.assert_close(embed(TEXTS), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(embed(TEXTS).detach(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", OPTIONS[:: len(OPTIONS) // 6], ids=lambda options: "-".join(options.values()))
def test_training_has_the_gradients_of_the_direct_form(tokenizer, options):
    one = drawn(tokenizer, **options)
    other = copy.deepcopy(one)
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64)
    (one(one.preprocess(TEXTS))["sentence_embedding"] * weight).sum().backward()
    ids, offsets = packed(other, TEXTS)
    (other.attention(other.embedding(ids), ids, offsets)[-1] * weight).sum().backward()
    for (name, ours), (_, plain) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        if plain.grad is None:
            assert ours.grad is None or not ours.grad.any(), name
        else:
            torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-8, atol=1e-8, msg=name)


def test_padding_does_not_change_a_result(tokenizer):
    module = drawn(tokenizer, positions="absolute")
    features = module.preprocess(SENTENCES[:3])
    expected = module(dict(features))["sentence_embedding"]
    wide = {name: F.pad(tensor, (2, 3)) for name, tensor in features.items()}
    wide["input_ids"][wide["attention_mask"] == 0] = 7
    torch.testing.assert_close(module(wide)["sentence_embedding"], expected)


def fused_step(module, texts) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    with torch.enable_grad():
        module(module.preprocess(texts))["sentence_embedding"][:, 0].sum().backward()
    with torch.no_grad():
        module(module.preprocess(TEXTS))
    optimizer.step()


CHANGES = {
    "in place": lambda module: module.attention.W.mul_(1.5),
    "steps, unrecorded": lambda module: module.attention.W.data.mul_(2),  # .data does not count a version
    "table, unrecorded": lambda module: module.embedding.weight.data.add_(0.5),
    "fused": lambda module: fused_step(module, TEXTS),
    "fused, long document": lambda module: fused_step(module, [" ".join(SENTENCES * 50)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_held_products_follow_changes(tokenizer, change):
    module = drawn(tokenizer).float()
    with torch.no_grad():
        before = module(module.preprocess(TEXTS))["sentence_embedding"]
        CHANGES[change](module)
        after = module(module.preprocess(TEXTS))["sentence_embedding"]
    assert not torch.allclose(before[0], after[0], atol=1e-3)
    torch.testing.assert_close(after, reference(module, TEXTS), rtol=1e-4, atol=1e-4)


def test_products_are_held_in_full_precision(tokenizer):
    module = drawn(tokenizer).float()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            module(module.preprocess(TEXTS))
        found = module(module.preprocess(TEXTS))["sentence_embedding"]
    torch.testing.assert_close(found, reference(module, TEXTS), rtol=1e-5, atol=1e-5)


def test_a_batch_of_mostly_padding_is_packed(tokenizer, monkeypatch):
    module = drawn(tokenizer)
    monkeypatch.setattr(token_encoder, "PADDED_TOKENS", 20)
    features = module.preprocess(TEXTS)
    assert "attention_mask" not in features
    assert features["input_ids"].shape == (1, int(features["cu_seq_lens_q"][-1]))
    found = module(features)["sentence_embedding"].detach()
    torch.testing.assert_close(found, reference(module, TEXTS), rtol=1e-9, atol=1e-9)


def test_million_tokens_are_finite(tokenizer):
    for positions in second_order.POSITIONS:
        module = drawn(tokenizer, positions=positions).float()
        with torch.no_grad():
            assert module.embed(torch.arange(1_000_000) % 50, [1_000_000]).isfinite().all()


# Options and errors

GAPS = Tokenizer(WordLevel({"a": 0, "b": 5}, unk_token="a"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimension": 0}, "dimension must be a positive integer, got 0"),
        ({"rank": 2.0}, "rank must be a positive integer, got 2.0"),
        ({"positions": "absolut"}, "unknown positions 'absolut': did you mean 'absolute'?"),
        ({"scale": "x"}, "unknown scale 'x': known are mean, sum"),
        ({"initial_context": "one"}, "unknown initial_context 'one': did you mean 'ones'?"),
        ({"weights": torch.zeros(3, 2)}, "weights must have shape"),
        ({"tokenizer": "bert"}, "tokenizer must be a tokenizers.Tokenizer, got str"),
        ({"tokenizer": GAPS}, "the tokenizer's ids must have no gaps, got 2 entries with ids up to 5"),
    ],
)
def test_a_wrong_option_is_one_line(tokenizer, options, message):
    said = error(Contextualizer, **{"tokenizer": tokenizer, **options})
    assert said.startswith(message)
    assert "\n" not in said


def test_a_table_of_any_number_type_becomes_float32(tokenizer):
    size = tokenizer.get_vocab_size()
    for table in (np.ones((size, 2)), np.ones((size, 2), int), [[1, 1]] * size, torch.ones(size, 2).bfloat16().float()):
        module = Contextualizer(tokenizer, 2, steps=1, rank=1, weights=table)
        assert module.embedding.weight.dtype == torch.float32


def test_another_tokenizer_must_fit_the_table(tokenizer):
    module = drawn(tokenizer)
    with pytest.raises(InputError, match=r"the tokenizer must have \d+ entries like the token table, got 1"):
        module.tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
def test_token_embeddings_are_what_the_last_step_sums(tokenizer, options):
    module = drawn(tokenizer, **options)
    before = drawn(tokenizer, **options)
    before.load_state_dict(module.state_dict())
    before.attention.gain.data[-1] = before.attention.bias.data[-1] = 0
    features = module.preprocess([*SENTENCES, ""])
    found = module(dict(features))
    total = (found["token_embeddings"] * found["attention_mask"][..., None]).sum(1)
    z = F.layer_norm(total, (12,), module.attention.gain[-1], module.attention.bias[-1], second_order.LAYER_NORM_EPS)
    expected = before(dict(features))["sentence_embedding"] + z
    assert torch.allclose(found["sentence_embedding"][:-1], expected[:-1])
    with pytest.raises(KeyError, match="tokens_embeddings"):
        found["tokens_embeddings"]


@pytest.mark.parametrize("longest", [1 << 20, 4])
def test_token_embeddings_of_a_sentence_transformer(tokenizer, longest, monkeypatch, tmp_path):
    monkeypatch.setattr(token_encoder, "PADDED_TOKENS", longest)
    make_model(tokenizer).save(str(tmp_path))
    model = ctx_embed.load(tmp_path, device="cpu")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    texts = [SENTENCES[0] * 9, "", *SENTENCES]
    for each in (model, theirs):
        found = each.encode(texts, output_value="token_embeddings")
        counts = each.preprocess(texts)
        lengths = counts["attention_mask"].sum(1) if "attention_mask" in counts else counts["cu_seq_lens_q"].diff()
        assert [len(tokens) for tokens in found if len(tokens) > 1] == [n for n in lengths.tolist() if n > 1]
        (alone,) = each.encode(texts[:1], output_value="token_embeddings")
        torch.testing.assert_close(alone, found[0], rtol=1e-5, atol=1e-5)
        assert each.encode(texts, output_value=None)[0]["sentence_embedding"].shape == (
            model.get_embedding_dimension(),
        )


def test_an_encoder_without_token_embeddings_says_so(tokenizer):
    model = sentence_transformers.SentenceTransformer(modules=[MeanEmbedding(tokenizer, 8)], device="cpu")
    said = error(model.encode, SENTENCES, output_value="token_embeddings")
    assert "has no token embeddings; ask for" in said


def test_items_that_are_no_strings_are_named(tiny_model):
    assert error(tiny_model.encode, [1, 2]) == "each text must be a string, got an int"
    assert "must be a string" in error(tiny_model.encode, ["a", None])


def test_a_cut_is_never_silent(tokenizer):
    module = drawn(tokenizer)
    full = module.preprocess(["the cat sat on the mat", "a"])["input_ids"]
    module.max_seq_length = 3
    with pytest.warns(UserWarning, match=r"1 of 2 texts, the longest of \d+ tokens, were cut to max_seq_length=3"):
        cut = module.preprocess(["the cat sat on the mat", "a"])
    assert cut["input_ids"].tolist() == full[:, :3].tolist()
    assert cut["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    module.max_seq_length = None
    assert module.preprocess(["the cat sat on the mat"])["input_ids"].tolist() == full[:1].tolist()


# Files


@pytest.mark.parametrize("options", OPTIONS[::5], ids=lambda options: "-".join(options.values()))
def test_saved_and_loaded_bit_for_bit(tokenizer, options, tmp_path):
    module = drawn(tokenizer, max_seq_length=900, **options).float()
    module.save(str(tmp_path))
    loaded = Contextualizer.load(str(tmp_path))
    assert loaded.get_config_dict() == module.get_config_dict()
    assert loaded.state_dict().keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    ids, _ = packed(module, SENTENCES[:2])
    assert torch.equal(packed(loaded, SENTENCES[:2])[0], ids)


def test_saved_tensors_are_those_the_embedding_depends_on(tokenizer, tmp_path):
    drawn(tokenizer).save(str(tmp_path))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert names == {"embedding.weight", *(f"attention.{name}" for name in ("U", "V", "W", "b", "gain", "bias"))}


def test_half_precision_is_stored_and_loaded_as_asked(tokenizer, tmp_path):
    drawn(tokenizer).half().save(str(tmp_path))
    assert Contextualizer.load(str(tmp_path)).embedding.weight.dtype == torch.float32
    loaded = Contextualizer.load(str(tmp_path), model_kwargs={"dtype": "bfloat16"})
    assert loaded.attention.W.dtype == torch.bfloat16


def test_pickle_is_not_written(tokenizer, tmp_path):
    with pytest.raises(InputError, match="saved as safetensors only"):
        drawn(tokenizer).save(str(tmp_path), safe_serialization=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_near(tokenizer, dtype):
    texts = [*SENTENCES, " ".join(SENTENCES * 40)]
    expected = make_model(tokenizer).encode(texts)
    low = make_model(tokenizer).to(dtype).encode(texts)
    assert ((expected * low).sum(1) / np.linalg.norm(low.astype(np.float32), axis=1) > 0.999).all()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
def test_float32_on_a_cpu_is_embedded_as_in_training(tokenizer, options):
    module = drawn(tokenizer, **options).float()
    texts = [*TEXTS, " ".join(SENTENCES * 100)]
    with_gradients = module(module.preprocess(texts))["sentence_embedding"].detach()
    with torch.no_grad():
        found = module(module.preprocess(texts))["sentence_embedding"]
    torch.testing.assert_close(found, with_gradients, rtol=1e-4, atol=1e-4)
    assert isinstance(module._held[1], PackedContextualizer)
