"""Every system: against a plain computation, what is true of all, and the weights that each gives its tokens."""

import copy
from inspect import Parameter, signature

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from torch import nn
from torch.nn import functional as F

import ctx_embed
from ctx_embed import load
from ctx_embed.second_order import contributions_of_steps, shares_of_steps
from ctx_embed.systems import SYSTEMS, attention, option_defaults, parameter_count, require_options, system, untrained
from ctx_embed.systems.encoder import offsets_of, recurrent_states
from ctx_embed.systems.heads import SCORES
from ctx_embed.systems.transformer import sinusoids
from tests.conftest import SENTENCES
from tests.helpers.errors import error
from tests.systems.references import REFERENCES, WEIGHTS

# Of each system its sizes here, and the options that are tried with them.
OPTIONS = {
    "contextualizer": [{"steps": 2, "rank": 3}, {}],
    "mean": [{}, {}],
    "lama": [
        {"heads": 4},
        *({}, {"context": "learned", "output_dimension": 6}, {"hidden": 4}, {"rank": 3, "layer": 5}),
    ],
    "lama-ctx": [{"heads": 3, "hidden": 5}, {}, {"context": "learned", "rank": 2, "layer": 4}],
    "bilinear": [{}, {}, {"context": "learned", "hidden": 3}],
    "san": [{"heads": 3, "attention_dimension": 6}, {}, {"hidden": 4, "output_dimension": 6, "penalty": 0.5}],
    "transformer": [{"layers": 2, "heads": 2, "feedforward": 10}, {}, {"norm_first": True}],
    "dan": [{"layers": 3, "hidden": 7, "buckets": 50}, {}, {"layers": 1}],
    "use-transformer": [{"layers": 1, "heads": 2, "feedforward": 10}, {}],
    "bigru": [{"hidden": 5}, {}, {"output_dimension": 6}],
    "cnn": [{"filters": 4}, {}, {"widths": [1, 4], "output_dimension": 6}],
    "self-attention": [{}, {}],
    "self-attention-parametric": [{}, {}],
    "attentive": [
        {"locations": 6},
        *({"score": score} for score in sorted(SCORES)),
        {"score": "additive", "hidden": 3},
    ],
}
CASES = [(name, options) for name, (_, *several) in OPTIONS.items() for options in several]
every_system = pytest.mark.parametrize(("name", "options"), CASES, ids=str)


@pytest.fixture
def make(tokenizer):
    """Make a system of 8 dimensions in float64, every parameter drawn, in evaluation mode."""

    def drawn(name, **options):
        torch.manual_seed(0)
        module = system(name)(tokenizer, 8, **{**OPTIONS[name][0], **options}).double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.5)
        return module.eval()

    return drawn


TEXTS = [SENTENCES[0], "", "cat", " ".join(SENTENCES), SENTENCES[2], "cat", "the dog", SENTENCES[3]]


def embed(module, texts):
    return module(module.preprocess(texts))["sentence_embedding"]


def ids_of(module, text):
    return module.preprocess([text])["input_ids"].flatten()


def plain(name, module, texts):
    """The reference text by text; of an empty text, what the system's last map gives for zeros."""
    rows = []
    for ids in (ids_of(module, text) for text in texts):
        if len(ids) or name == "dan":
            row = REFERENCES[name](module, ids)
        else:
            value = float(name == "contextualizer")
            row = torch.full((getattr(module, "natural_dimension", 8),), value, dtype=torch.float64)
        mapped = getattr(module, "output_dimension", None) is not None
        rows.append(module.output.weight @ row + module.output.bias if mapped else row)
    return torch.stack(rows)


@every_system
def test_the_plain_computation_and_its_gradients_whatever_the_batch_and_padding(make, name, options):
    module = make(name, **options)
    other = copy.deepcopy(module)
    ours, theirs = embed(module, TEXTS), plain(name, other, TEXTS)
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-7, atol=1e-9)
    torch.manual_seed(1)
    weight = torch.randn(module.get_embedding_dimension(), dtype=torch.float64)
    (ours @ weight).sum().backward()
    (theirs @ weight).sum().backward()
    gradients = [{path: each.grad for path, each in one.named_parameters()} for one in (module, other)]
    assert None not in gradients[1].values()
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)
    with torch.no_grad():
        expected = embed(module, TEXTS)
        torch.testing.assert_close(embed(module, ["", " \n"]), expected[[1, 1]])
        assert embed(module, []).shape == (0, module.get_embedding_dimension())
        for order in ([7, 5, 0, 6, 1, 3, 2, 4], [1], [3, 1]):
            torch.testing.assert_close(embed(module, [TEXTS[i] for i in order]), expected[order], rtol=1e-9, atol=1e-9)
        features = module.preprocess(TEXTS)
        wide = {key: F.pad(value, (0, 3)) for key, value in features.items()}
        wide["input_ids"][wide["attention_mask"] == 0] = 7
        torch.testing.assert_close(module(wide)["sentence_embedding"], expected, rtol=1e-9, atol=1e-9)


def test_groups_hold_each_token_once():
    lengths = [3, 0, 7, 1, 7, 2, 40]
    for group_tokens in (1, 14, 8192):
        found = list(attention.groups_of(lengths, torch.device("cpu"), group_tokens))
        assert sorted(torch.cat([group.documents for group in found]).tolist()) == [0, 2, 3, 4, 5, 6]
        assert sorted(torch.cat([group.places[group.mask] for group in found]).tolist()) == list(range(sum(lengths)))
        assert all(len(group.documents) == 1 or group.mask.numel() <= group_tokens for group in found)


@pytest.mark.parametrize(
    ("name", "options"), [("lama", {}), ("lama", {"context": "learned"}), ("attentive", {"score": "content"})]
)
def test_a_row_of_zeros_has_a_gradient_of_usual_size(name, options, tokenizer):
    torch.manual_seed(0)
    table = torch.randn(tokenizer.get_vocab_size(), 8)
    cat, dog = map(tokenizer.token_to_id, ("cat", "dog"))
    table[cat] = 0
    module = system(name)(tokenizer, 8, weights=table, **options)
    embedding = module.embed(torch.tensor([cat, dog, cat]), [2, 1])
    (embedding * torch.randn_like(embedding)).sum().backward()
    assert 0 < module.embedding.weight.grad[cat].abs().max() < 100


@every_system
def test_save_and_load_with_phrases(tokenizer, tmp_path, name, options):
    the, cat, dog = map(tokenizer.token_to_id, ("the", "cat", "dog"))
    torch.manual_seed(0)
    phrases = np.array([[the, cat], [the, dog]])
    module = system(name)(tokenizer, 8, phrases=phrases, **{**OPTIONS[name][0], **options})
    module.eval().round_table()
    assert module.preprocess(["the cat"])["input_ids"].tolist() == [[module.entries - 2]]
    model = SentenceTransformer(modules=[module, Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "model"))
    loaded = load(tmp_path / "model")
    assert type(loaded[0]) is type(module) is system(name)
    assert loaded[0].get_config_dict() == module.get_config_dict()
    assert torch.equal(loaded[0].phrases, module.phrases)
    direct = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    low, half = (load(tmp_path / "model", dtype=dtype) for dtype in ("bfloat16", "float16"))
    # Where a loaded tensor lies in memory may change the last bit.
    for other, most in ((loaded, 1e-6), (direct, 1e-6), (low, 0.2), (half, 0.02)):
        np.testing.assert_allclose(other.encode(TEXTS), model.encode(TEXTS), rtol=0, atol=most)


def test_what_a_class_says_of_itself(make, tokenizer):
    # Its parameters exclude the tables. By the default sizes: 3 steps of rank 64, 30 heads, 350 units and so on.
    counts = {
        "contextualizer": 3 * 12 * (3 * 64 + 3),
        "lama": 2 * 30 * 12,
        "lama-ctx": 1440,
        "bilinear": 144,
        "mean": 0,
    }
    counts |= {"san": 350 * (12 + 30), "transformer": 3768, "use-transformer": 3768, "dan": 312, "bigru": 1872}
    counts |= {"cnn": 100 * (12 * 12 + 3), "self-attention": 0, "self-attention-parametric": 576, "attentive": 12}
    assert {name: parameter_count(system(name)(tokenizer, 12)) for name in SYSTEMS} == counts
    assert system("dan")(tokenizer, 12).bigrams.weight.shape == (2**15, 12)
    assert set(SYSTEMS) == set(OPTIONS) == set(REFERENCES)
    for name, cls in zip(SYSTEMS, map(system, SYSTEMS), strict=True):
        assert ["dimension", *option_defaults(name)] == list(cls.config_keys), name
        # Only the bigrams read more of an id than its row.
        assert make(name).ids_may_be_renumbered == (name != "dan")
        assert signature(cls).parameters["dimension"].default in (256, Parameter.empty), name
        assert "Shapes" in cls.__doc__, name
        assert "Source: " in cls.__doc__, name
    names = {cls.config_file_name for cls in map(system, SYSTEMS)}
    assert len(names - {"config.json"}) == len(SYSTEMS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lama", {"heads": 0}, "heads must be a positive integer, got 0"),
        ("lama", {"context": "means"}, "unknown context 'means': did you mean 'mean'? known are learned, mean"),
        ("san", {"attention_dimension": "x"}, "attention_dimension must be a positive integer, got 'x'"),
        ("san", {"penalty": -1}, "penalty must be a number of at least 0, got -1"),
        ("transformer", {"heads": 3}, "heads must divide the dimension 8, got 3"),
        ("attentive", {"score": [1, 2]}, f"unknown score [1, 2]: known are {', '.join(sorted(SCORES))}"),
        ("transformer", {"dropout": 1}, "dropout must be a number from 0 to below 1, got 1"),
        ("transformer", {"norm_first": 1}, "norm_first must be true or false, got 1"),
        ("dan", {"buckets": 0}, "buckets must be a positive integer, got 0"),
        ("cnn", {"widths": []}, "widths must be a list of positive integers, got []"),
        ("cnn", {"widths": [3, 0]}, "each of widths must be a positive integer, got 0"),
    ],
)
def test_options_that_cannot_be_used(tokenizer, name, options, message):
    assert error(system(name), tokenizer, 8, **options) == message
    assert error(system, "lamma").startswith("unknown encoder 'lamma': did you mean 'lama'? known are attentive, bigru")
    said = error(require_options, "lama", ["heads", "head"])
    assert said.startswith("unknown option of lama 'head': did you mean 'heads'? known are context, heads, hidden, ")


def test_untrained_encoders(tokenizer, shipped_model):
    state = torch.get_rng_state()
    first, again, other = (untrained("lama", tokenizer, 8, seed, heads=2) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first.encode(SENTENCES), again.encode(SENTENCES))
    assert np.abs(first.encode(SENTENCES) - other.encode(SENTENCES)).max() > 0.1
    assert first.encode(["cat"]).shape == (1, 16)
    assert untrained("mean", tokenizer).get_embedding_dimension() == 256
    # Without a tokenizer they have the shipped table.
    assert torch.equal(untrained("san", seed=1)[0].embedding.weight, shipped_model[0].embedding.weight)
    assert "must be 320 for the default model's token table, got 8; " in error(untrained, "san", dimension=8)


AS_A_MEAN = [("mean", {}), *(("dan", {"layers": n, "hidden": hidden}) for n, hidden in ((1, 7), (2, 16), (4, 19)))]
NEARLY = [("lama", {"output_dimension": 8}, 0.8), ("san", {"output_dimension": 8}, 0.95)]
NEARLY += [(name, {}, 0.95) for name in ("self-attention-parametric", "bilinear", "attentive")]


@pytest.mark.parametrize(("name", "options", "cosine"), [*((*each, 1 - 1e-5) for each in AS_A_MEAN), *NEARLY])
def test_a_student_begins_as_a_mean(tokenizer, name, options, cosine):
    torch.manual_seed(0)
    table = torch.randn(tokenizer.get_vocab_size(), 8) * 0.1
    module = system(name)(tokenizer, 8, weights=table, **{**OPTIONS[name][0], **options})
    module.begin_as_mean()
    texts = [text for text in TEXTS if text]
    plain_mean = embed(system("mean")(tokenizer, 8, weights=table), texts)
    assert F.cosine_similarity(embed(module.eval(), texts), plain_mean).min() > cosine
    embed(module.train(), texts).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_a_transformer_begins_as_the_mean_of_its_inputs(make):
    module = make("transformer", norm_first=True)
    module.begin_as_mean()
    ids = ids_of(module, SENTENCES[0])
    expected = 8**0.5 * module.embedding(ids).mean(0)
    positions = sinusoids(len(ids), 8).mean(0) - sinusoids(20, 8).mean(0)
    torch.testing.assert_close(embed(module, [SENTENCES[0]])[0], expected + positions)


def test_the_penalty_by_hand_and_dropout_in_training_alone(make):
    module = make("san", penalty=0.7).train()
    embed(module, TEXTS)
    found = module.regularizer()
    weights = [WEIGHTS["san"](module, ids_of(module, text)) for text in TEXTS if text]
    expected = torch.stack([(A @ A.T - torch.eye(3)).square().sum() for A in weights]).mean()
    torch.testing.assert_close(found, 0.7 * expected)
    found.backward()
    assert module.W1.grad.any()
    assert module.regularizer() == 0
    embed(module, TEXTS)
    assert copy.deepcopy(module).regularizer() == 0
    embed(module, [""])
    assert module.regularizer() == 0
    for name in ("cnn", "transformer", "use-transformer"):
        module = make(name, dropout=0.5)
        still = embed(module, TEXTS)
        assert not torch.allclose(embed(module.train(), TEXTS), still)
        assert torch.equal(embed(module.eval(), TEXTS), still)


@pytest.mark.parametrize("name", ["lama", "lama-ctx"])
def test_a_learned_context_begins_as_the_mean_of_the_states_of_each_entry(tokenizer, name):
    module = system(name)(tokenizer, 8, context="learned")
    singles = [module.states(torch.tensor([i]), torch.tensor([0, 1]))[0] for i in range(tokenizer.get_vocab_size())]
    torch.testing.assert_close(module.c.data, torch.stack(singles).mean(0).data)
    assert module.hidden == (4 if name == "lama-ctx" else 0)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), st.booleans(), st.sampled_from([1, 10**6, 0]))
def test_each_document_is_read_by_itself(lengths, bidirectional, most_padding):
    """However documents are padded or packed, states and gradients are those of one document after the other."""
    torch.manual_seed(0)
    network = nn.GRU(3, 2, bidirectional=bidirectional).double()
    tokens = torch.randn(sum(lengths), 3, dtype=torch.double, requires_grad=True)
    weights = torch.randn(sum(lengths), 4 if bidirectional else 2, dtype=torch.double)
    alone = torch.cat([network(part)[0] for part in tokens.split([length for length in lengths if length])])
    states = recurrent_states(network, tokens, offsets_of(lengths, tokens.device), most_padding)
    torch.testing.assert_close(states, alone)
    inputs = [tokens, *network.parameters()]
    ours, expected = (torch.autograd.grad((of * weights).sum(), inputs) for of in (states, alone))
    torch.testing.assert_close(ours, expected)


# The weights that a system gives to the tokens
FOUR = [SENTENCES[0], "", "cat", SENTENCES[2]]


def weights_of(module, texts=FOUR):
    return ctx_embed.attention_weights(SentenceTransformer(modules=[module], device="cpu"), texts)


# The axes of the weights, and the sizes of those before the axes of tokens.
AXES = {
    "contextualizer": ("step token", 2),
    **dict.fromkeys(("mean", "bilinear", "attentive"), ("head token", 1)),
    "lama": ("head token", 4),
    **dict.fromkeys(("lama-ctx", "san"), ("head token", 3)),
    **dict.fromkeys(("bigru", "cnn"), ("share token", 1)),
    **dict.fromkeys(("self-attention", "self-attention-parametric"), ("token token",)),
    "transformer": ("layer head token token", 2, 2),
    "use-transformer": ("layer head token token", 1, 2),
}


@pytest.mark.parametrize("name", AXES)
def test_weights_are_those_of_the_plain_computation_and_name_their_axes(make, name):
    module, (axes, *sizes) = make(name).train(), AXES[name]
    found = weights_of(module)
    assert module.training
    for text, of_text in zip(FOUR, found, strict=True):
        ids = ids_of(module, text)
        assert " ".join(of_text.axes) == axes
        assert of_text.weights.shape == (*sizes, *(len(ids),) * axes.count("token"))
        assert of_text.weights.dtype == np.float32
        assert list(of_text.tokens) == module.backend_tokenizer.encode(text, add_special_tokens=False).tokens
        if text and name in WEIGHTS:
            expected = WEIGHTS[name](module, ids).detach().numpy()
            np.testing.assert_allclose(of_text.weights[: len(expected)], expected, rtol=1e-5, atol=1e-9)


def test_a_prompt_is_read_as_by_encode_and_other_models_have_no_weights(make, tokenizer):
    prompts = {"prompts": {"query": "the dog "}, "default_prompt_name": "query"}
    model = SentenceTransformer(modules=[make("lama")], device="cpu", **prompts)
    (found,) = ctx_embed.attention_weights(model, ["cat"])
    assert "".join(found.tokens).replace("##", "").startswith("thedog")
    assert error(weights_of, make("dan")) == "DeepAveraging has no attention weights to show"
    other = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    assert "must be a system of ctx_embed, got StaticEmbedding" in error(ctx_embed.attention_weights, other, ["cat"])


@pytest.mark.parametrize("options", [{}, {"positions": "absolute", "scale": "sum", "initial_context": "learned"}])
def test_shares_are_parts_of_the_correction(make, options):
    module = make("contextualizer", **options)
    ids = ids_of(module, SENTENCES[0])
    (found,) = module.attention_weights(ids, [len(ids)])
    offsets = torch.tensor([0, len(ids)])
    contexts = module.attention(module.embedding(ids), ids, offsets).detach()
    x = module.attention.weighted(module.embedding(ids), offsets).detach()
    for k, (U, V, W, b, gain, bias) in enumerate(zip(*module.attention.parameters_of_steps, strict=True)):
        y = torch.stack([(W @ ((U @ x_i) * (V @ contexts[k, 0])) + b) * x_i for x_i in x])
        v = gain * (y - y.mean(1, keepdim=True)) / (y.sum(0).var(unbiased=False) + 1e-12).sqrt()
        torch.testing.assert_close(v.sum(0) + bias, contexts[k + 1, 0] - contexts[k, 0])
        torch.testing.assert_close(found[k], v @ v.sum(0) / v.sum(0).square().sum())


def test_shares_where_the_tokens_bring_about_nothing(make):
    module = make("contextualizer")
    offsets = torch.tensor([0, 2, 2, 5])
    nothing = torch.zeros(5, 8).double(), offsets, torch.zeros(3, 3, 8).double(), module.attention.parameters_of_steps
    assert shares_of_steps(*nothing).tolist() == [[0.5, 0.5, 1 / 3, 1 / 3, 1 / 3]] * 2
    assert all(contributions.isfinite().all() for contributions in contributions_of_steps(*nothing))
