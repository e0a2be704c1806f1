"""The mathematics against plain loops, and itself in other forms."""

import hashlib

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ctx_embed import second_order
from ctx_embed.second_order import Steps

DOUBLE = torch.float64


def by_sums(x: Tensor, offsets: Tensor, context: Tensor, steps: Steps) -> Tensor:
    """The contexts c^K of documents, each from sums over its tokens."""
    found = []
    for part, first in zip(x.split(offsets.diff().tolist()), context, strict=True):
        G = part.T @ (part @ steps.U.flatten(0, 1).T)
        found.append(second_order.recurrence(G, part.sum(0), first, steps) if len(part) else first)
    return torch.stack(found)


FORMS = {
    "direct": lambda *given: second_order.direct(*given)[-1],
    "sums": by_sums,
    "vocabulary": lambda x, *given: second_order.over_vocabulary(x, torch.arange(len(x)), *given, shared=False),
}


def random_steps(K: int, u: int, m: int, dtype: torch.dtype = DOUBLE) -> Steps:
    shapes = [(K, u, m), (K, u, m), (K, m, u), (K, m), (K, m), (K, m)]
    return Steps(*(torch.randn(*shape, dtype=dtype) for shape in shapes))


def offsets_of(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def plain(x: Tensor, offsets: Tensor, context: Tensor, steps: Steps) -> Tensor:
    """The contexts c^K, document by document and token by token, as the formulas are written."""
    found = []
    for part, c in zip(x.split(offsets.diff().tolist()), context, strict=True):
        for U, V, W, b, gain, bias in zip(*steps, strict=True) if len(part) else ():
            total = sum((W @ ((U @ token) * (V @ c)) + b) * token for token in part)
            centred = total - total.mean()
            c = c + centred / (centred.square().mean() + 1e-12).sqrt() * gain + bias
        found.append(c)
    return torch.stack(found)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    K=st.integers(1, 4),
    u=st.integers(1, 6),
    m=st.integers(2, 7),
    seed=st.integers(0, 1000),
)
def test_each_form_is_the_plain_one_with_its_gradients(lengths, K, u, m, seed):
    torch.manual_seed(seed)
    drawn = torch.randn(sum(lengths), m, dtype=DOUBLE), torch.randn(len(lengths), m, dtype=DOUBLE)
    steps, offsets, results, gradients = random_steps(K, u, m), offsets_of(*lengths), [], []
    for form in (plain, *FORMS.values()):
        inputs = [tensor.clone().requires_grad_() for tensor in (*drawn, *steps)]
        result = form(inputs[0], offsets, inputs[1], Steps(*inputs[2:]))
        (result * torch.linspace(1, 2, m, dtype=DOUBLE)).sum().backward()
        results.append(result.detach())
        gradients.append([torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in inputs])
    for result, gradient in zip(results[1:], gradients[1:], strict=True):
        torch.testing.assert_close(result, results[0], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-5, atol=1e-5)
    every = second_order.direct(drawn[0], offsets, drawn[1], steps)
    assert every.shape == (K + 1, *drawn[1].shape)
    torch.testing.assert_close(every[0], drawn[1])


@pytest.mark.parametrize("u", [1, 40])
def test_a_shared_first_context_gives_the_same(u):
    torch.manual_seed(4)
    steps = random_steps(3, u, 5)
    x, row, offsets = torch.randn(90, 5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE), offsets_of(50, 0, 40)
    assert second_order.first_step_is_linear(x, row.expand(3, -1), steps) == (u == 40)
    assert not second_order.first_step_is_linear(x, row.repeat(3, 1), steps)

    def run(context):
        inputs = [tensor.clone().requires_grad_() for tensor in steps]
        result = second_order.direct(x, offsets, context, Steps(*inputs))
        result[-1][:, 0].sum().backward()
        return [result.detach(), *(tensor.grad for tensor in inputs)]

    for shared, apart in zip(run(row.expand(3, -1)), run(row.repeat(3, 1)), strict=True):
        torch.testing.assert_close(shared, apart, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", sorted(second_order.POSITIONS))
@pytest.mark.parametrize("scale", second_order.SCALES)
@pytest.mark.parametrize("block", [1, 20, 4096])
def test_a_long_document_is_read_block_by_block(kind, scale, block, monkeypatch):
    monkeypatch.setattr(second_order, "BLOCK_TOKENS", block)
    torch.manual_seed(2)
    table, s, context = (torch.randn(*shape, dtype=DOUBLE) for shape in ((9, 6), (6,), (1, 6)))
    ids, offsets, steps = torch.randint(9, (50,)), offsets_of(50), random_steps(3, 4, 6)
    x = table[ids] * second_order.position_weights(offsets, s, kind=kind, scale=scale)
    expected = second_order.direct(x, offsets, context, steps)[-1, 0]
    for convert in (lambda tensor: tensor, Tensor.numpy):
        rows, read, first, slopes, *parameters = map(convert, (table, ids, context[0], s, *steps))
        given = rows.__getitem__, read, first, Steps(*parameters), slopes
        found = second_order.long_document(*given, kind=kind, scale=scale)
        torch.testing.assert_close(torch.as_tensor(found), expected)


@pytest.mark.parametrize("kind", sorted(second_order.POSITIONS))
@pytest.mark.parametrize("scale", second_order.SCALES)
def test_position_weights_are_a_softmax_over_each_document(kind, scale):
    # A flat position has a gradient, too.
    s, aim, parts = torch.tensor([0.7, -0.7, 0.0], dtype=DOUBLE, requires_grad=True), torch.randn(8, 3), []
    for n in (3, 0, 5):
        places = torch.arange(1.0, n + 1, dtype=DOUBLE)[:, None] / (n if kind == "relative" else 1)
        parts.append(torch.softmax(places * (s if kind != "none" else 0 * s[:1]), 0) * (n if scale == "mean" else 1))
    found = second_order.position_weights(offsets_of(3, 0, 5), s, kind=kind, scale=scale)
    torch.testing.assert_close(found.double(), torch.cat(parts))
    if kind != "none":
        ours, expected = (torch.autograd.grad((of * aim).sum(), s) for of in (found, torch.cat(parts)))
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("kind", sorted(second_order.POSITIONS))
@pytest.mark.parametrize("n", [1, 1000, 1_000_000])
def test_weights_sum_to_one_or_average_one_at_any_length(kind, n):
    s = torch.tensor([-3.0, -1e-6, 0.0, 1e-6, 3.0])
    for scale, expected in (("sum", 1.0), ("mean", float(n))):
        weights = second_order.position_weights(offsets_of(n), s, kind=kind, scale=scale)
        assert weights.isfinite().all()
        total = weights.double().sum(0)
        torch.testing.assert_close(total, torch.full_like(total, expected), rtol=1e-5, atol=0)


def test_first_contexts():
    learned = torch.tensor([1.0, 2.0, 3.0])
    ids, offsets = torch.tensor([5, 6, 5, 6, 7]), offsets_of(2, 0, 2, 1)
    assert torch.equal(second_order.initial_context("ones", learned, ids, offsets), torch.ones(4, 3))
    assert torch.equal(second_order.initial_context("learned", learned, ids, offsets), learned.expand(4, 3))
    uniform = second_order.initial_context("uniform", learned, ids, offsets)
    assert torch.equal(uniform[0], uniform[2])  # the same tokens, the same draw
    assert not torch.equal(uniform[0], uniform[3])
    assert uniform.abs().max() <= 1
    # It is torch's own draw, seeded by 63 bits of a hash of the ids.
    digest = hashlib.blake2b(ids[4:].numpy().astype("<i8").tobytes(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    assert torch.equal(uniform[3].float(), 2 * torch.rand(len(learned), generator=generator) - 1)
    assert torch.equal(uniform[3], second_order.initial_context("uniform", learned, ids[4:], offsets_of(1))[0])
    draws = second_order.initial_context("uniform", torch.zeros(8), torch.arange(2000), torch.arange(2001))
    assert draws.mean().abs() < 0.02
    assert (draws.square().mean() - 1 / 3).abs() < 0.02


@pytest.mark.parametrize("lengths", [(3, 0, 2), (600, 0, 500)])
def test_segment_sum_with_and_without_gradients(lengths):
    values = torch.randn(sum(lengths), 3, dtype=DOUBLE)
    expected = torch.stack([part.sum(0) for part in values.split(lengths)])
    for tracked in (values, values.clone().requires_grad_()):
        result = second_order.segment_sum(tracked, offsets_of(*lengths))
        torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert torch.equal(tracked.grad, torch.ones_like(values))
    # A bfloat16 sum would stop growing at 256.
    ones = torch.ones(4000, 2, dtype=torch.bfloat16)
    assert torch.equal(second_order.segment_sum(ones, offsets_of(1000, 3000)), torch.tensor([[1e3] * 2, [3e3] * 2]))
