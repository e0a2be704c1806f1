from __future__ import annotations

import ctx_embed
from ctx_embed.errors import InputError, unknown_name


def test_an_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)
    assert ctx_embed.InputError is InputError


def test_an_unknown_name_with_a_near_one():
    error = unknown_name("task", "SUBJJ", ["SUBJ", "MR"])
    assert isinstance(error, InputError)
    assert str(error) == "unknown task 'SUBJJ': did you mean 'SUBJ'? known are MR, SUBJ"


def test_an_unknown_name_with_no_near_one():
    assert str(unknown_name("task", "xyz", {"SUBJ": 1, "MR": 2})) == "unknown task 'xyz': known are MR, SUBJ"
