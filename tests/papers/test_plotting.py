from __future__ import annotations

from types import SimpleNamespace

import pytest

from papers.experiment import bars


@pytest.mark.parametrize("values", [[(51.0, 9.0), (60.0, 3.0)], [(90.0, 0.2), (90.5, 0.1)], [(99.0, 4.0)]])
def test_bars_keep_their_deviations_inside_the_frame(values):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    cells = [SimpleNamespace(row=f"row {n}", column="c", published=None) for n, _ in enumerate(values)]
    figures = [{"accuracy": value, "std": std} for value, std in values]
    outcomes = [SimpleNamespace(cell=cell, figures=of) for cell, of in zip(cells, figures, strict=True)]
    bars("accuracy", "accuracy in %")(axes, outcomes)
    low, high = axes.get_ylim()
    assert low < min(value - std for value, std in values)
    assert high > max(value + std for value, std in values)
