"""A forked process shares no connection with its parent: SQLite's locks belong to one process alone."""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest

from ctx_embed import InputError, SearchIndex
from tests.index.support.stored import stored

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def fork(work) -> int:
    """Return the number of a child that does some work, and ends as a script does."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def succeeds(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_forked_workers_that_open_an_index_lose_nothing(index, hash_model):
    index.add(["of the parent"], ["parent"])

    def work(number: int) -> None:
        with SearchIndex.open(index.path, hash_model) as own:
            for place in range(5):
                own.add([f"text {number} {place}"], [f"{number} {place}"])

    children = [fork(partial(work, number)) for number in range(3)]
    for number in range(5):
        index.add([f"parent {number}"], [f"parent {number}"])
    assert all(map(succeeds, children))
    assert index.count() == 1 + 15 + 5
    index.close()
    assert len(stored(index.path)) == 21


def test_an_inherited_index_goes_on_with_a_connection_of_its_own(index):
    index.add(["one"])

    def work() -> None:
        assert index.search("one", mode="dense")[0].text == "one"
        index.add(["of the child"])
        index.close()

    assert succeeds(fork(work))
    assert [document.text for document in index] == ["one", "of the child"]
    index.add(["two"])
    index.close()
    assert list(stored(index.path).values()) == ["one", "of the child", "two"]


def test_a_child_born_during_a_change_is_refused_in_one_line(index, hash_model):
    index.add(["one"])

    def work() -> None:
        for use in (index.count, lambda: SearchIndex.open(index.path, hash_model)):
            with pytest.raises(InputError, match="the parent process was reading or changing this index when it"):
                use()

    with index.writer.editing() as edit:
        edit.delete([0])
        assert succeeds(fork(work))
    index.add(["two"])
    index.close()
    assert list(stored(index.path).values()) == ["two"]
