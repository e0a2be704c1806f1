"""The modules: their conventions and invariances, and each of their ways through the steps against the plain one."""

import copy
import itertools
import json
import re

import numpy as np
import peft
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Dropout
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

from ctx_embed import Contextualizer, ContextualizerPooling, InputError, load, second_order
from ctx_embed.modules import contextualizer as contextualizer_module, token_encoder
from ctx_embed.modules.token_encoder import dequantized, quantized
from ctx_embed.numpy_model.embedder import Embedder, PackedContextualizer
from ctx_embed.numpy_model.saved import TokenTable
from ctx_embed.systems import system, untrained
from ctx_embed.training.supervised.train import new_encoder
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error
from tests.index.support.cross_encoder import save_cross_encoder

KINDS = sorted(second_order.POSITIONS), second_order.SCALES, sorted(second_order.INITIAL_CONTEXTS)
OPTIONS = [
    pytest.param(dict(zip(("positions", "scale", "initial_context"), kinds, strict=True)), id="-".join(kinds))
    for kinds in itertools.product(*KINDS)
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


def embed(module: Contextualizer, texts: list[str] = TEXTS) -> torch.Tensor:
    return module(module.preprocess(texts))["sentence_embedding"]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_way_gives_the_direct_form_and_its_gradients(tokenizer, options, monkeypatch):
    module, long = drawn(tokenizer, **options), [*TEXTS, " ".join(SENTENCES * 100)]
    expected = reference(module, long)
    with torch.no_grad():
        for order in (list(range(6)), [5, 0, 1, 3, 2, 4], [1], [3, 1]):
            torch.testing.assert_close(embed(module, [TEXTS[i] for i in order]), expected[order], rtol=1e-9, atol=1e-9)
        # Float32 on a CPU is embedded without torch.
        found = embed(copy.deepcopy(module).float(), long).double()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        monkeypatch.setattr(contextualizer_module, "LONG_DOCUMENT_TOKENS", 5)
        monkeypatch.setattr(second_order, "BLOCK_TOKENS", 4)
        torch.testing.assert_close(embed(module), expected[:-1], rtol=1e-9, atol=1e-9)
    found = embed(module)
    torch.testing.assert_close(found.detach(), expected[:-1], rtol=1e-9, atol=1e-9)
    # And the gradients of the direct form.
    other = copy.deepcopy(module)
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64)
    (found * weight).sum().backward()
    ids, offsets = packed(other, TEXTS)
    (other.attention(other.embedding(ids), ids, offsets)[-1] * weight).sum().backward()
    for (name, ours), (_, plain) in zip(module.named_parameters(), other.named_parameters(), strict=True):
        if plain.grad is None:
            assert ours.grad is None or not ours.grad.any(), name
        else:
            torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-8, atol=1e-8, msg=name)


def test_padding_does_not_change_a_result_and_much_of_it_is_packed(tokenizer, monkeypatch):
    module = drawn(tokenizer, positions="absolute")
    expected = reference(module, TEXTS)
    wide = {name: F.pad(tensor, (2, 3)) for name, tensor in module.preprocess(TEXTS).items()}
    wide["input_ids"][wide["attention_mask"] == 0] = 7
    torch.testing.assert_close(module(wide)["sentence_embedding"].detach(), expected, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(token_encoder, "PADDED_TOKENS", 20)
    features = module.preprocess(TEXTS)
    assert "attention_mask" not in features
    assert features["input_ids"].shape == (1, int(features["cu_seq_lens_q"][-1]))
    torch.testing.assert_close(module(features)["sentence_embedding"].detach(), expected, rtol=1e-9, atol=1e-9)


def one_row(module, value=0.0) -> None:
    module.embedding.weight.data[int(module.text_tokenizer.read(["cat"])[0][0])] = value


# Values are compared, so that nothing need record a change: .data, of which torch counts no version, is enough.
CHANGES = {
    "steps": lambda module: module.attention.W.data.mul_(2),
    "one number of the steps": lambda module: module.attention.bias.data[-1, 1:2].add_(2),
    "one row": one_row,
    "one row, no longer int8": lambda module: one_row(module, torch.linspace(0, 1, module.dimension) ** 3),
    "swapped rows": lambda module: module.embedding.weight.data.copy_(module.embedding.weight.data.flip(0)),
    "another parameter": lambda it: setattr(it.embedding, "weight", torch.nn.Parameter(it.embedding.weight * -0.3)),
    "another precision": lambda module: module.half().float().attention.W.data.mul_(0.5),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("int8", [True, False])
def test_held_products_follow_changes(tokenizer, change, int8):
    module = drawn(tokenizer).float()
    if int8:
        module.round_table()
    with torch.no_grad():
        # Products are held in full precision.
        with torch.autocast("cpu", torch.bfloat16):
            embed(module)
        before = embed(module)
        torch.testing.assert_close(before, reference(module, TEXTS), rtol=1e-5, atol=1e-5)
        assert (module._held is not None) is int8
        CHANGES[change](module)
        after = embed(module)
    assert not torch.allclose(before[0], after[0], atol=1e-3)
    torch.testing.assert_close(after, reference(module, TEXTS), rtol=1e-4, atol=1e-4)


class Scaled(torch.nn.Module):
    def forward(self, values):
        return values * torch.linspace(-1, 2, values.shape[-1])


def low_rank(module) -> torch.Tensor:
    config = peft.LoraConfig(target_modules=["embedding"], r=2, init_lora_weights=False)
    peft.inject_adapter_in_model(config, module)
    layer = module.embedding
    product = layer.lora_embedding_B["default"] @ layer.lora_embedding_A["default"]
    return layer.weight + product.T * layer.scaling["default"]


def parametrized(module) -> torch.Tensor:
    expected = Scaled()(module.embedding.weight)
    parametrize.register_parametrization(module.embedding, "weight", Scaled())
    return expected


def pruned(module) -> torch.Tensor:
    mask = (torch.arange(module.embedding.weight.numel()) % 3 > 0).view_as(module.embedding.weight)
    prune.custom_from_mask(module.embedding, "weight", mask)
    module.embedding.weight_orig.data *= 2
    return module.embedding.weight_orig * mask


def hooked(module) -> torch.Tensor:
    module.embedding.register_forward_hook(lambda _, given, found: Scaled()(found))
    return Scaled()(module.embedding.weight)


@pytest.mark.parametrize("name", ["contextualizer", "mean", "dan"])
@pytest.mark.parametrize("around", [low_rank, parametrized, pruned, hooked])
def test_what_stands_around_the_table_or_a_step_counts_and_is_not_saved(tokenizer, tmp_path, name, around):
    """The table that each puts in the place of the parameter is computed by hand."""
    torch.manual_seed(0)
    module, texts = system(name)(tokenizer, 16), [*TEXTS, " ".join(SENTENCES * 50)]
    with torch.no_grad():
        before = embed(module, texts)
        plain = copy.deepcopy(module)
        plain.embedding.weight.copy_(around(module))
        if name == "contextualizer":
            parametrize.register_parametrization(module.attention, "V", Scaled())
            plain.attention.V.copy_(module.attention.V)
            assert not torch.equal(plain.attention.V, module.attention.parametrizations.V.original)
        expected, found = embed(plain, texts), embed(module, texts)
    assert not torch.allclose(before[0], found[0], atol=1e-3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(embed(module, texts).detach(), expected, rtol=1e-4, atol=1e-4)
    if around is not hooked:
        message = "is no parameter of a saved model; merge adapters .* and remove parametrizations and pruning"
        assert re.search(message, error(module.save, str(tmp_path)))


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


def test_a_table_of_any_number_type_becomes_float32_and_a_tokenizer_must_fit_it(tokenizer):
    size = tokenizer.get_vocab_size()
    for table in (np.ones((size, 2)), np.ones((size, 2), int), [[1, 1]] * size, torch.ones(size, 2)):
        module = Contextualizer(tokenizer, 2, steps=1, rank=1, weights=table)
        assert module.embedding.weight.dtype == torch.float32
    with pytest.raises(InputError, match=f"the tokenizer must have {size} entries like the token table, got 1"):
        module.tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))


@pytest.mark.parametrize("options", OPTIONS)
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


def test_what_cannot_be_encoded_is_one_line(tiny_model, tokenizer):
    assert error(tiny_model.encode, [1, 2]) == "each text must be a string, got an int"
    said = error(untrained("mean", tokenizer, 8).encode, SENTENCES, output_value="token_embeddings")
    assert "has no token embeddings; ask for" in said


def test_a_cut_is_never_silent(tokenizer):
    module = drawn(tokenizer)
    full = module.preprocess(["the cat sat on the mat", "a"])["input_ids"]
    module.max_seq_length = 3
    said = r"1 of 2 texts, the longest of \d+ tokens, were cut to max_seq_length=3 \('the cat"
    with pytest.warns(UserWarning, match=said):
        cut = module.preprocess(["the cat sat on the mat", "a"])
    assert cut["input_ids"].tolist() == full[:, :3].tolist()
    assert cut["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    module.max_seq_length = None
    assert module.preprocess(["the cat sat on the mat"])["input_ids"].tolist() == full[:1].tolist()
    with pytest.warns(UserWarning, match="max_seq_length=2"):
        assert module.preprocess(["the cat sat"], max_length=2)["input_ids"].tolist() == full[:1, :2].tolist()


def test_a_model_in_training_encodes_as_in_evaluation(tokenizer, tmp_path):
    """Also in float16, where the zeros of a text without a token could become NaN."""
    model = make_model(tokenizer)
    model.append(Dropout(0.5))
    model.save_pretrained(str(tmp_path))
    for dtype in ("float32", "float16"):
        model = load(tmp_path, dtype=dtype)
        expected = model.encode([*SENTENCES, ""])
        assert np.isfinite(expected).all()
        assert not expected[-1].any()
        assert np.array_equal(model.train().encode([*SENTENCES, ""]), expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_text_without_tokens_is_zero_if_vectors_are_normalised(tokenizer, tmp_path, normalize):
    made = new_encoder(None, SENTENCES, vocabulary_size=90, device="cpu", dimension=8, steps=1, rank=2)
    torch.nn.init.normal_(made[0].attention.bias)
    if not normalize:
        made = SentenceTransformer(modules=[made[0]], device="cpu")
    made.save_pretrained(str(path := tmp_path / "model"))
    for model in (made, load(path), SentenceTransformer(str(path), trust_remote_code=True), Embedder.load(path)):
        nothing, sentence = model.encode(["", SENTENCES[0]])
        assert np.linalg.norm(sentence) == pytest.approx(1, abs=1e-5) or not normalize
        assert nothing.any() != normalize
        assert nothing == pytest.approx(made.encode([""])[0], abs=1e-5)
    assert untrained("contextualizer", tokenizer, 8).encode("").tolist() == [0] * 8


def test_drawn_weights_keep_variances_and_others_have_no_effect_yet(tokenizer):
    module = Contextualizer(tokenizer, 64, steps=3, rank=50, positions="relative", initial_context="learned")
    weights = module.attention.state_dict()
    for name, size in (("U", 64), ("V", 64), ("W", 50)):
        assert float(weights[name].mean().abs()) < 0.1 * size**-0.5
        assert float(weights[name].std()) == pytest.approx(size**-0.5, rel=0.05)
    assert [float(weights[name].unique()) for name in ("b", "gain", "bias", "s", "c0")] == [1, 1, 0, 0, 1]


def test_only_what_the_embedding_depends_on_is_saved_bit_for_bit_and_as_safetensors(tokenizer, tmp_path):
    module = drawn(tokenizer, max_seq_length=900).float()
    said = error(module.save, str(tmp_path), safe_serialization=False)
    assert "saved as safetensors only" in said
    assert list(tmp_path.iterdir()) == []
    # However its numbers lie in memory.
    module.attention.U.data = module.attention.U.data.transpose(1, 2).contiguous().transpose(1, 2)
    module.save(str(tmp_path))
    names = {"embedding.weight", *(f"attention.{name}" for name in ("U", "V", "W", "b", "gain", "bias"))}
    assert load_file(tmp_path / "model.safetensors").keys() == names
    loaded = Contextualizer.load(str(tmp_path))
    assert loaded.get_config_dict() == module.get_config_dict()
    assert loaded.state_dict().keys() == module.state_dict().keys()
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in module.state_dict().items())


# The steps over another module's token embeddings


@pytest.mark.parametrize("longest", [1 << 20, 20], ids=["padded", "packed"])
def test_a_contextualizer_is_the_pooling_over_a_table(tokenizer, longest, monkeypatch):
    monkeypatch.setattr(token_encoder, "PADDED_TOKENS", longest)
    options = {"steps": 2, "rank": 3, "positions": "relative", "scale": "sum", "initial_context": "uniform"}
    module, pooling = drawn(tokenizer, **options), ContextualizerPooling(12, **options)
    pooling.attention.load_state_dict(module.attention.state_dict())
    features = module.preprocess(TEXTS)
    assert ("cu_seq_lens_q" in features) == (longest == 20)
    tokens = {**features, "token_embeddings": module.embedding(features["input_ids"]).float()}
    expected = module(features)["sentence_embedding"].float()
    torch.testing.assert_close(pooling(tokens)["sentence_embedding"], expected, rtol=1e-4, atol=1e-4)


def test_it_sits_on_a_transformer_and_is_saved_and_loaded(tokenizer, tmp_path):
    transformer = Transformer(str(save_cross_encoder(tmp_path / "bert", tokenizer)), max_seq_length=64)
    model = SentenceTransformer(modules=[transformer, ContextualizerPooling(8, steps=2, rank=4)], device="cpu")
    torch.nn.init.normal_(model[1].attention.W, std=0.1)
    expected = model.encode(SENTENCES)
    assert expected.shape == (len(SENTENCES), 8)
    model.save_pretrained(str(tmp_path / "model"))
    # As GPT-2 names its own.
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "activation_function": "gelu_new"}))
    (tmp_path / "model" / "README.md").unlink()
    for loaded in (load(tmp_path / "model"), SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True)):
        assert (loaded.encode(SENTENCES) == expected).all()
    loaded = load(tmp_path / "model", dtype="bfloat16")
    assert {tensor.dtype for tensor in loaded.parameters()} == {torch.bfloat16}
    # The card is that of sentence-transformers.
    loaded.save_pretrained(str(tmp_path / "again"))
    assert "### Model Description" in (tmp_path / "again" / "README.md").read_text()


def test_it_begins_as_the_normalised_mean_and_wrong_features_are_one_line(tmp_path):
    features = {"token_embeddings": torch.randn(2, 3, 6), "attention_mask": torch.ones(2, 3, dtype=torch.int64)}
    expected = 1 + F.layer_norm(features["token_embeddings"].mean(1), (6,), eps=1e-12)
    result = ContextualizerPooling(6, steps=1, rank=2)(features)["sentence_embedding"]
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    pooling = ContextualizerPooling(8)
    assert "saved as safetensors only" in error(pooling.save, str(tmp_path), safe_serialization=False)
    assert "token embeddings must have 8 features, got 6; set the dim" in error(pooling, features)
    assert error(pooling.load, str(tmp_path)).endswith(": no config.json, not a saved ContextualizerPooling")
    seeded = ContextualizerPooling(6, initial_context="uniform")
    assert "must have input_ids, which seed initial_context='uniform'" in error(seeded, features)


# Tables of int8 rows


@given(st.integers(0, 2**31), st.floats(1e-6, 100))
def test_rounding_is_near_and_once(seed, size):
    table = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)) * size
    table[0] = torch.tensor([127.0, -127, 1.4, -0.6, 0, 0, 0]) / 127
    table[1] = 0
    levels, scales = quantized(table)
    assert (levels.dtype, scales.dtype) == (torch.int8, torch.float16)
    assert levels[:2].tolist() == [[127, -127, 1, -1, 0, 0, 0], [0] * 7]
    rounded = dequantized(levels, scales)
    half_a_level = table.abs().amax(1, keepdim=True).clamp(min=0.008) / 127 * 0.502
    assert bool(((rounded - table).abs() <= half_a_level).all())
    assert torch.equal(dequantized(*quantized(rounded)), rounded)


def test_a_model_of_int8_rows_stays_one_when_it_is_trained(tokenizer, tmp_path):
    def stored(module, folder=""):
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        module.save(str(path))
        # What is saved is what is in memory.
        assert torch.equal(Contextualizer.load(str(path)).embedding.weight, module.embedding.weight.float())
        return load_file(path / "model.safetensors")["embedding.weight"].dtype

    made = Contextualizer(tokenizer, 4, steps=1, rank=2)
    assert stored(made) == torch.float32
    made.round_table()
    assert stored(made) == torch.int8
    assert stored(copy.deepcopy(made).half(), "half") == torch.float16
    for store, folder in (("int8", "tuned"), ("int8", "checkpoint-3"), ("float32", "tuned")):
        module = Contextualizer.load(str(tmp_path))
        assert module.store == "int8"
        module.store = store
        expected = torch.int8 if (store, folder) == ("int8", "tuned") else torch.float32
        with torch.no_grad():
            module.embedding.weight[3] += torch.tensor([0.1, 0.02, 0.003, 0.0004])
        before = module.embedding.weight.detach().clone()
        assert stored(module, folder) == expected
        # The trained row is rounded, all others are as they were.
        changed = (module.embedding.weight != before).any(1).nonzero().flatten().tolist()
        assert changed == ([3] if expected == torch.int8 else [])


def test_int8_rows_are_read_where_they_are_exact(tokenizer, monkeypatch):
    monkeypatch.setattr(token_encoder, "CHECKED_ROWS", 3)
    module = Contextualizer(tokenizer, 4, steps=2, rank=2).eval()
    read, lengths = module.text_tokenizer(["a cat sat", "a dog ran"])
    floats = module.without_torch(read)
    assert floats.table.scales is None
    assert np.shares_memory(floats.table.values, module.embedding.weight.detach().numpy())
    module.round_table()
    rounded = module.without_torch(read)
    assert rounded.table.values.dtype == np.int8
    assert np.array_equal(rounded.table.rows(slice(None)), module.embedding.weight.detach().numpy())
    parameters = {name: value.detach().numpy() for name, value in module.attention.named_parameters()}
    table = TokenTable(module.embedding.weight.detach().numpy())
    shared = PackedContextualizer(module.get_config_dict(), table, parameters)
    np.testing.assert_allclose(rounded.embed(read, lengths), shared.embed(read, lengths), rtol=1e-5, atol=1e-6)
