from __future__ import annotations

import json

from ctx_embed.training.distillation.loop.log import TrainingLog


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


def test_an_entry_that_an_error_of_the_disk_cut_off_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 1, "loss": 2.0}\n{"step": 2, "lo{"step": 2, "loss": 1.0}\n[3]\n{"step": 3, "loss": 1.0}\n'
    )
    TrainingLog(path).resume(3)
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n{"step": 3, "loss": 1.0}\n'
