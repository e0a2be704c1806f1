import pytest
import torch

from papers.complexity import LAYERS, fitted_exponent


def test_the_exponent_of_a_power_law():
    sizes = [64, 128, 256, 512, 1024]
    for exponent, factor in ((0.1, 1e-3), (1, 2.0), (3, 1e3)):
        assert fitted_exponent(sizes, [factor * size**exponent for size in sizes]) == pytest.approx(exponent, abs=1e-6)
    # Only the largest sizes count.
    assert fitted_exponent([1, 10, 20, 40], [99, 10, 40, 160]) == pytest.approx(2)
    # The least squares through log 1, 2, 3 and log 1, 4, 4 by hand: ln 4 / 2 ln 4.
    assert fitted_exponent([1, 4, 16], [1, 4, 4]) == pytest.approx(0.5)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_gives_as_many_features(layer):
    given = LAYERS[layer](torch.randn(24, 16), 4)()
    assert given.shape[-2:] == {"convolution": (16, 24), "Contextualizer": (1, 16)}.get(layer, (24, 16))
    assert given.isfinite().all()
