from __future__ import annotations

import json

import pytest

from ctx_embed.errors import InputError
from ctx_embed.training.distillation.loop import log as log_module
from ctx_embed.training.distillation.loop.log import TrainingLog, plot_log


def test_a_resumed_log_forgets_what_came_after(tmp_path):
    log = TrainingLog(tmp_path / "run" / "log.jsonl")
    log.resume(5)
    for step in (0, 2, 4):
        log.add(step, loss=step / 2)
    with log.path.open("a") as file:
        file.write('{"step": 5, "lo')  # killed while writing
    log.resume(2)
    log.add(3, loss=9.0)
    assert [json.loads(line) for line in log.path.read_text().splitlines()] == [
        {"step": 0, "loss": 0.0},
        {"step": 2, "loss": 1.0},
        {"step": 3, "loss": 9.0},
    ]
    log.resume(-1)
    assert log.path.read_text() == ""


def test_no_log(tmp_path):
    log = TrainingLog(None)
    log.add(1, loss=1.0)
    log.resume(1)


def test_the_picture_of_a_log(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need the extra plots")
    log = TrainingLog(tmp_path / "log.jsonl")
    log.add(0, epoch=0, held_out_distance=0.5)
    log.add(50, loss=1.0)
    log.add(60, epoch=1, held_out_distance=0.25)
    plot_log(log.path, tmp_path / "log.png")
    assert (tmp_path / "log.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_a_panel_for_each_thing_that_was_logged(tmp_path, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots")
    panels = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: panels.extend(figure.axes))
    log = TrainingLog(tmp_path / "log.jsonl")
    log.add(0, epoch=0, held_out_distance=0.5)
    plot_log(log.path, tmp_path / "log.png")
    assert [axis.get_ylabel() for axis in panels] == ["held out distance"]


def test_a_picture_of_something_else(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    for content in ("{", '{"loss": 1}', "3"):
        path.write_text(content + "\n")
        with pytest.raises(InputError) as caught:
            plot_log(path, tmp_path / "log.png")
        assert "not the log of a training" in str(caught.value) or "the extra plots" in str(caught.value)
    monkeypatch.setattr(log_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="a plot needs the extra plots: pip install "):
        plot_log(path, tmp_path / "log.png")


def test_an_entry_that_an_error_of_the_disk_cut_off_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "loss": 2.0}\n{"step": 2, "lo{"step": 2, "loss": 1.0}\n[3]\n{"step": 3, "loss": 1.0}\n'
    )
    TrainingLog(path).resume(3)
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n{"step": 3, "loss": 1.0}\n'
