"""Errors quote what a user gave in at most 80 characters, in time that does not grow with it."""

import time

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.errors import SHOWN, InputError, listed_names, nearest_name, quoted, unknown_name
from ctx_embed.index.filters import field_path, parse_filter
from tests.helpers.cli import Command


@pytest.mark.parametrize(
    "value",
    ["x", "'" * 80, "\xad" * 10**6, ["y" * 500] * 9, 10**6000, {"a": [[["b" * 99]]]}, b"z" * 999, np.ones(999)],
    ids=range(8),
)
def test_a_quoted_value_has_at_most_80_characters(value):
    assert len(quoted(value)) <= SHOWN


def test_short_values_are_quoted_whole():
    assert [quoted(value) for value in ("mini", 7, 0.5, None, [1, "a"])] == ["'mini'", "7", "0.5", "None", "[1, 'a']"]
    assert quoted("a" * 100).strip("'a") == "..."


def test_only_short_names_and_few_known_ones_are_compared():
    assert nearest_name("minlm", ["minilm"]) == "did you mean 'minilm'?"
    begin = time.process_time()
    assert nearest_name("m" * 10**7, ["m" * 10**7, "minilm"]) == ""
    assert nearest_name("m" * SHOWN, ["m" * 10**6, "m" * 70 + "n" * 10]) != ""
    said = str(unknown_name("field", "m" * 10**7, (f"field {number} " + "n" * 1000 for number in range(10_000))))
    assert time.process_time() - begin < 2
    assert len(said) < 2500
    assert listed_names([]) == "none"
    assert listed_names(range(25)).endswith("23, ...")


LONG = "é" * 100_000


@pytest.mark.parametrize(
    "wrong",
    [
        lambda index: index.search("x", mode=LONG),
        lambda index: index.search("x", group=LONG),
        lambda index: index.search("x", **{LONG: 1}),
        lambda index: index.search(like=LONG),
        lambda index: index.search("x", exclude=[7, 10**6000]),
        lambda index: index.search("x", where=f"{LONG} ="),
        lambda index: index.search("x", where=LONG * 2),
        lambda index: index.update_metadata([LONG], {}),
        lambda index: index.add(["x", "y"], [LONG, LONG]),
        lambda index: index.add(["x"], [10**6000]),
        lambda index: index.add(["x"], metadata=[{LONG: object()}]),
        lambda index: index.duplicates(threshold=10**6000),
        lambda index: parse_filter(f"`{LONG}\\` = 1"),
        lambda index: field_path(f"{LONG}\\"),
    ],
    ids=range(14),
)
def test_each_error_of_an_index_is_short(index, wrong):
    begin = time.process_time()
    with pytest.raises(InputError) as said:
        wrong(index)
    assert len(str(said.value)) < 2500
    assert time.process_time() - begin < 1


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A small index."""
    with SearchIndex.create(tmp_path_factory.mktemp("errors") / "index") as index:
        index.add(["a cat"], metadata=[{"m" * 200 + str(number): number for number in range(200)}])
        yield index


@pytest.mark.parametrize(
    "arguments",
    [
        [LONG[:50_000]],
        ["index", LONG[:50_000]],
        ["index", "query", LONG[:50_000], "x"],
        ["index", "query", "x", "x", "--mode", LONG[:50_000]],
        ["index", "query", "x", "x", f"--{LONG[:50_000]}"],
        ["embed", "x", "--model", LONG[:50_000]],
    ],
    ids=range(6),
)
def test_each_error_of_the_command_line_is_short(arguments):
    done = Command("").run(*arguments)
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert 0 < len(done.stderr) < 4500
