"""Products of many rows: what torch's own give, with gradients, whichever library multiplies."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ctx_embed.second_order import matmul as products
from ctx_embed.second_order.matmul import BLOCK, ROWS, affine, summed_outer

# Below, at and beyond the rows from which oneDNN is asked, with and without a remainder.
COUNTS = [1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS, 3 * ROWS + 77]


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.fixture(params=["as it is", "without oneDNN"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without oneDNN":
        monkeypatch.setattr(products, "_onednn", lambda: None)


def test_processors_with_avx512_ask_onednn():
    if not torch.backends.mkldnn.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this processor has no AVX-512")
    assert products._onednn() is not None


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.usefixtures("library")
def test_affine_is_torchs_linear_with_its_gradients(n, biased):
    x, W, b, outer = drawn((n, 24), (40, 24), (40,), (n, 40))
    single = [tensor.requires_grad_() for tensor in (x, W, b)]
    double = [tensor.detach().double().requires_grad_() for tensor in single]
    ours = affine(*(single if biased else single[:2]))
    exact = F.linear(*(double if biased else double[:2]))
    torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5)
    wanted = slice(None) if biased else slice(2)
    found = torch.autograd.grad((ours * outer).sum(), single[wanted])
    expected = torch.autograd.grad((exact * outer).sum(), double[wanted])
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("m", "u"), [(40, 24), (24, 40), (24, 24)])
@pytest.mark.parametrize("n", [*COUNTS, 2 * BLOCK + ROWS + 1])
@pytest.mark.usefixtures("library")
def test_summed_outer_is_the_transposed_product_with_its_gradients(n, m, u):
    x, y, outer = drawn((n, m), (n, u), (m, u))
    single = [tensor.requires_grad_() for tensor in (x, y)]
    double = [tensor.detach().double().requires_grad_() for tensor in single]
    ours, exact = summed_outer(*single), double[0].T @ double[1]
    torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)
    found = torch.autograd.grad((ours * outer).sum(), single)
    expected = torch.autograd.grad((exact * outer).sum(), double)
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=1e-4, atol=1e-4)


def test_strided_and_expanded_arguments():
    x, W, b = drawn((24, 2 * ROWS), (24, 40), (80,))
    for bias in (b[::2], b[:1].expand(40)):
        torch.testing.assert_close(affine(x.T, W.T, bias), F.linear(x.T, W.T, bias), rtol=1e-4, atol=1e-5)


def test_other_shapes_are_left_to_torch():
    x, W = drawn((ROWS, 16), (8, 16))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        affine(x, W[:, 1:])
    assert torch.equal(affine(x, W, torch.ones(1)), F.linear(x, W, torch.ones(1)))


def test_functional_gradients():
    x, W = drawn((ROWS, 16), (8, 16))
    found = torch.func.grad(lambda W: affine(x, W).square().sum())(W)
    torch.testing.assert_close(found, torch.func.grad(lambda W: F.linear(x, W).square().sum())(W), rtol=1e-4, atol=1e-3)


def test_a_remainder_is_not_seen_by_the_other_rows():
    x, W = drawn((2 * ROWS + 3, 16), (8, 16))
    torch.testing.assert_close(affine(x, W)[:ROWS], affine(x[:ROWS], W))


def test_autocast_and_other_dtypes_are_left_to_torch():
    x, W = drawn((ROWS, 16), (8, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert affine(x, W).dtype == torch.bfloat16
    assert affine(x.double(), W.double()).dtype == torch.float64
    assert affine(x.bfloat16(), W.bfloat16()).dtype == torch.bfloat16


def test_only_many_rows_are_padded_for_onednn(monkeypatch):
    shapes = []

    def product(x, W, b, *_):
        shapes.append(tuple(x.shape))
        return F.linear(x, W, b)

    monkeypatch.setattr(products, "_onednn", lambda: product)
    W, b = drawn((2 * ROWS, 16), (2 * ROWS,))
    for n in (1, ROWS - 1, ROWS, ROWS + 1):
        (x,) = drawn((n, 16))
        torch.testing.assert_close(affine(x, W, b), F.linear(x, W, b))
    assert shapes == [(ROWS, 16), (2 * ROWS, 16)]
