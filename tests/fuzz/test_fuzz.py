"""Damaged input of every kind gives a result or one line of an error of ours; `make fuzz` tries for longer."""

import sys

import pytest

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.targets import TARGETS

EXAMPLES = {"filter": 150, "ignore rules": 150, "recipe": 150, "state": 60, "rows": 80}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")


@pytest.mark.parametrize("kind", TARGETS)
def test_damaged_input_is_used_or_refused_in_one_line(tmp_path, kind):
    target = TARGETS[kind]
    target.make(tmp_path)
    fuzz(target, tmp_path, EXAMPLES.get(kind, 25))
