"""Errors quote what a user gave in at most 80 characters, in time that does not grow with it."""

import time

import numpy as np

from ctx_embed import SearchIndex
from ctx_embed.errors import SHOWN, listed_names, nearest_name, quoted, unknown_name
from ctx_embed.index.filters import field_path
from tests.helpers.cli import Command
from tests.helpers.errors import error


def test_a_quoted_value_has_at_most_80_characters_and_a_short_one_all_of_its_own():
    for value in ("'" * 80, "\xad" * 10**6, ["y" * 500] * 9, 10**6000, {"a": [[["b" * 99]]]}, b"z" * 999, np.ones(999)):
        assert len(quoted(value)) <= SHOWN
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


def test_each_error_of_an_index_is_short(tmp_path):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(["a cat"], metadata=[{"m" * 200 + str(number): number for number in range(200)}])
        for wrong in (
            lambda: index.search("x", mode=LONG),
            lambda: index.search("x", group=LONG),
            lambda: index.search("x", **{LONG: 1}),
            lambda: index.search(like=LONG),
            lambda: index.search("x", exclude=[7, 10**6000]),
            lambda: index.search("x", where=f"{LONG} ="),
            lambda: index.search("x", where=LONG * 2),
            lambda: index.update_metadata([LONG], {}),
            lambda: index.add(["x", "y"], [LONG, LONG]),
            lambda: index.add(["x"], [10**6000]),
            lambda: index.add(["x"], metadata=[{LONG: object()}]),
            lambda: index.duplicates(threshold=10**6000),
            lambda: field_path(f"`{LONG}\\`"),
        ):
            begin = time.process_time()
            assert len(error(wrong)) < 2500
            assert time.process_time() - begin < 1


def test_each_error_of_the_command_line_is_short():
    long = LONG[:50_000]
    for arguments in (
        [long],
        ["index", long],
        ["index", "query", long, "x"],
        ["index", "query", "x", "x", "--mode", long],
        ["index", "query", "x", "x", f"--{long}"],
        ["embed", "x", "--model", long],
    ):
        done = Command("").run(*arguments)
        assert done.exit_code in (1, 2)
        assert isinstance(done.exception, SystemExit)
        assert 0 < len(done.stderr) < 4500
