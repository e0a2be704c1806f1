from __future__ import annotations

import builtins
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.reports.plots import plots
from papers.plotting import bars


@pytest.fixture
def drawn_plots(report):
    pytest.importorskip("matplotlib")
    report["curves"] = [
        {"encoder": name, "task": "MR", "rows": rows, "mean": mean, "std": 1.0}
        for name in ("drawn", "a|b [v2]")
        for rows, mean in ((100, 70.0), (300, 75.0))
    ]
    return plots(report)


def test_each_is_a_picture_with_the_names_on_it(report, drawn_plots):
    assert list(drawn_plots) == ["quality_by_speed.svg", "heat_map.svg", "learning_curves.svg"]
    for svg in drawn_plots.values():
        ElementTree.fromstring(svg)
        assert "a|b [v2]" in svg
    assert "training rows" in drawn_plots["learning_curves.svg"]
    assert drawn_plots == plots(report)


def test_plots_without_scores_are_not_drawn(report):
    pytest.importorskip("matplotlib")
    report["curves"] = []
    report["encoders"][0]["cost"] = None
    assert list(plots(report)) == ["heat_map.svg"]
    report["results"] = []
    assert plots(report) == {}


def test_without_the_extra(report, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "matplotlib":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"^a plot needs the extra plots: pip install "):
        plots(report)


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
