import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

import ctx_embed
from ctx_embed.second_order import contributions_of_steps, shares_of_steps
from tests.conftest import SENTENCES
from tests.helpers.errors import error
from tests.systems.references import gru_states, position

TEXTS = [SENTENCES[0], "", "cat", SENTENCES[2]]


def weights_of(module, texts=TEXTS):
    return ctx_embed.attention_weights(SentenceTransformer(modules=[module], device="cpu"), texts)


def ids_of(module, text):
    return module.preprocess([text])["input_ids"].flatten()


SHAPES = {
    "contextualizer": (("step", "token"), lambda n: (2, n)),
    "mean": (("head", "token"), lambda n: (1, n)),
    "lama": (("head", "token"), lambda n: (4, n)),
    "lama-ctx": (("head", "token"), lambda n: (3, n)),
    "bilinear": (("head", "token"), lambda n: (1, n)),
    "san": (("head", "token"), lambda n: (3, n)),
    "transformer": (("layer", "head", "token", "token"), lambda n: (2, 2, n, n)),
    "use-transformer": (("layer", "head", "token", "token"), lambda n: (1, 2, n, n)),
    "bigru": (("share", "token"), lambda n: (1, n)),
    "cnn": (("share", "token"), lambda n: (1, n)),
    "self-attention": (("token", "token"), lambda n: (n, n)),
    "self-attention-parametric": (("token", "token"), lambda n: (n, n)),
    "attentive": (("head", "token"), lambda n: (1, n)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_sums(make, name):
    module = make(name).train()
    axes, shape = SHAPES[name]
    found = weights_of(module)
    assert module.training
    for text, of_text in zip(TEXTS, found, strict=True):
        n = len(ids_of(module, text))
        assert of_text.axes == axes
        assert of_text.weights.shape == shape(n)
        assert of_text.weights.dtype == np.float32
        assert list(of_text.tokens) == module.backend_tokenizer.encode(text, add_special_tokens=False).tokens
        if n:
            np.testing.assert_allclose(of_text.weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["lama", "san", "bilinear", "attentive", "lama-ctx", "mean"])
def test_the_embedding_is_the_weighted_sum(make, name):
    module = make(name)
    for text, of_text in zip(TEXTS, weights_of(module), strict=True):
        ids = ids_of(module, text)
        states = module.embedding(ids)
        if getattr(module, "hidden", 0) and len(ids):
            states = gru_states(module.recurrent, states)
        if len(ids):
            expected = module(module.preprocess([text]))["sentence_embedding"][0].detach()
            found = torch.from_numpy(of_text.weights).double() @ states.detach()
            torch.testing.assert_close(found.flatten(), expected, rtol=1e-5, atol=1e-6)


def test_the_weights_of_self_attention_give_its_embedding(make):
    module = make("self-attention")
    X = module.embedding(ids_of(module, SENTENCES[0])).detach()
    found = (torch.from_numpy(weights_of(module)[0].weights).double() @ X).mean(0)
    torch.testing.assert_close(found, module(module.preprocess([SENTENCES[0]]))["sentence_embedding"][0].detach())
    module = make("self-attention-parametric")
    X = module.embedding(ids_of(module, SENTENCES[0])).detach()
    A = torch.softmax((X @ module.query.weight.T) @ (X @ module.key.weight.T).T / 8**0.5, 1)
    np.testing.assert_allclose(weights_of(module)[0].weights, A.detach().numpy(), rtol=1e-5)


def test_the_first_layers_weights_of_a_transformer_are_those_of_torch(make):
    module = make("transformer")
    ids = ids_of(module, SENTENCES[0])
    x = 8**0.5 * module.embedding(ids) + torch.stack([position(t, 8) for t in range(len(ids))])
    own = module.stack[0]
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    pairs = {"in_proj_weight": own.qkv.weight, "in_proj_bias": own.qkv.bias}
    pairs |= {"out_proj.weight": own.out.weight, "out_proj.bias": own.out.bias}
    call = {"need_weights": True, "average_attn_weights": False}
    _, expected = torch.func.functional_call(attention, pairs, (x[None],) * 3, call)
    np.testing.assert_allclose(weights_of(module)[0].weights[0], expected[0].detach().numpy(), rtol=1e-5)


def test_each_feature_of_a_bigru_is_won_by_one_token(make):
    module = make("bigru")
    states = gru_states(module.recurrent, module.embedding(ids_of(module, SENTENCES[0])))
    expected = np.zeros(len(states))
    for feature in states.T:
        expected[int(feature.argmax())] += 1 / states.shape[1]
    np.testing.assert_allclose(weights_of(module)[0].weights[0], expected, rtol=1e-6)


def test_a_window_shares_its_filters_among_its_tokens(make):
    module = make("cnn", widths=[3], filters=5)
    tokens = module.embedding(ids_of(module, SENTENCES[2])).detach()
    n = len(tokens)
    zero = tokens.new_zeros(2, 8)
    padded = torch.cat([zero, tokens, zero])
    convolution = module.convolutions[0]
    expected = np.zeros(n)
    for weight, bias in zip(convolution.weight, convolution.bias, strict=True):
        values = [(weight * padded[j : j + 3].T).sum() + bias for j in range(n + 2)]
        best = int(torch.stack(values).argmax())
        inside = [t for t in range(best - 2, best + 1) if 0 <= t < n]
        expected[inside] += 1 / (5 * len(inside))
    np.testing.assert_allclose(weights_of(module, [SENTENCES[2]])[0].weights[0], expected, rtol=1e-6)


# The Contextualizer's exact shares


@pytest.mark.parametrize("options", [{}, {"positions": "absolute", "scale": "sum", "initial_context": "learned"}])
def test_shares_are_parts_of_the_correction(make, options):
    module = make("contextualizer", **options)
    ids = ids_of(module, SENTENCES[0])
    (found,) = module.attention_weights(ids, [len(ids)])
    offsets = torch.tensor([0, len(ids)])
    attention = module.attention
    contexts = attention(module.embedding(ids), ids, offsets).detach()
    x = attention.weighted(module.embedding(ids), offsets).detach()
    for k in range(module.steps):
        U, V, W, b = attention.U[k], attention.V[k], attention.W[k], attention.b[k]
        y = torch.stack([(W @ ((U @ x_i) * (V @ contexts[k, 0])) + b) * x_i for x_i in x])
        total = y.sum(0)
        sigma = (total.var(unbiased=False) + 1e-12).sqrt()
        v = attention.gain[k] * (y - y.mean(1, keepdim=True)) / sigma
        z = contexts[k + 1, 0] - contexts[k, 0]
        torch.testing.assert_close(v.sum(0) + attention.bias[k], z)
        direction = v.sum(0) / v.sum(0).square().sum()
        torch.testing.assert_close(found[k], v @ direction)
        assert found[k].sum().item() == pytest.approx(1)


def test_shares_where_the_tokens_bring_about_nothing(make):
    module = make("contextualizer")
    offsets = torch.tensor([0, 2, 2, 5])
    contexts = torch.zeros(3, 3, 8, dtype=torch.float64)
    shares = shares_of_steps(torch.zeros(5, 8).double(), offsets, contexts, module.attention.parameters_of_steps)
    assert shares.tolist() == [[0.5, 0.5, 1 / 3, 1 / 3, 1 / 3]] * 2
    parameters = module.attention.parameters_of_steps
    for contributions in contributions_of_steps(torch.zeros(5, 8).double(), offsets, contexts, parameters):
        assert contributions.isfinite().all()


# Others


def test_a_prompt_is_read_as_by_encode(make):
    model = SentenceTransformer(
        modules=[make("lama")], device="cpu", prompts={"query": "the dog "}, default_prompt_name="query"
    )
    (found,) = ctx_embed.attention_weights(model, ["cat"])
    assert "".join(found.tokens).replace("##", "").startswith("thedog")


def test_what_has_no_weights(make, tokenizer):
    assert error(weights_of, make("dan")) == "DeepAveraging has no attention weights to show"
    other = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    said = "the model's first module must be a system of ctx_embed, got StaticEmbedding; see `ctx-embed systems`"
    assert error(ctx_embed.attention_weights, other, ["cat"]) == said
