"""Damaged input of every kind gives a result or one line of an error of ours; `make fuzz` tries for longer."""

import sys
import time
from unittest.mock import Mock

import pytest

from ctx_embed.errors import InputError
from tests.fuzz.fuzzing import MEGABYTES, HangError, fuzz, judge
from tests.fuzz.targets import TARGETS, Target

EXAMPLES = {"filter": 150, "ignore rules": 150, "recipe": 150, "state": 60, "rows": 80}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")


@pytest.mark.parametrize("kind", TARGETS)
def test_damaged_input_is_used_or_refused_in_one_line(tmp_path, kind):
    target = TARGETS[kind]
    target.make(tmp_path)
    fuzz(target, tmp_path, EXAMPLES.get(kind, 25))


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda folder, name: 1 / 0, ZeroDivisionError),
        (lambda folder, name: time.sleep(60), HangError),
        (Mock(side_effect=InputError("one line\nand another")), AssertionError),
        (lambda folder, name: (folder / name).write_text("changed"), AssertionError),
        (lambda folder, name: (folder.parent / "outside").touch(), AssertionError),
        (lambda folder, name: b"x" * (MEGABYTES << 21), AssertionError),
    ],
)
def test_a_wrong_use_is_noticed(tmp_path, use, error):
    (tmp_path / "file").touch()
    assert judge(Target(make=print, use=lambda folder, name: None), tmp_path, "file", b"content")
    with pytest.raises(error):
        judge(Target(make=print, use=use), tmp_path, "file", b"content", seconds=1 if error is HangError else 20)
