from __future__ import annotations

import builtins
from xml.etree import ElementTree

import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.reports.html import as_html
from ctx_embed.eval.reports.plots import plots


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


def test_what_has_no_figures_is_not_drawn(report):
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
    with pytest.raises(
        InputError, match=r'^a plot needs the extra plots: pip install "ctx-embed\[plots\]", or in a clone'
    ):
        plots(report)


def test_the_page_needs_nothing_beside_it(report, drawn_plots):
    report["encoders"][1]["name"] = "<script>"
    report["failures"] = ["CR: absent & gone"]
    page = as_html(report, drawn_plots)
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert "CR: absent &amp; gone" in page
    assert report["tasks"][0]["sha256"] in page
    # Names of XML's own and licences of drawing programs apart, nothing is to be fetched.
    assert not [part for part in ('src="', "@import", "url(http", '<link rel="stylesheet"') if part in page]
