"""Ctrl-C at any line, and words that SQLite cuts: an open index goes on as if nothing had happened."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

import ctx_embed
from tests.index.support.stored import stored

OURS = str(Path(ctx_embed.__file__).parent / "index")


def interrupted_at(line: int, work) -> bool:
    """Do some work and interrupt it before the ``line``-th line of ours; return whether it got so far."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            lines += 1
            if lines == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


# Between open() and the with that closes the file, Ctrl-C leaves the closing to the collector, which warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_an_index_goes_on_after_ctrl_c_at_any_line(index, stride):
    index.add(["one cat", "two cats", "a dog"], [1, 2, 3], [{"n": 1}, {"n": 2}, {"n": 3}])
    for work in (
        lambda: index.search("cat", where="n >= 2"),
        lambda: index.upsert(["a dog again"], [3], [{"n": 3}]),
        index.count,
    ):
        line = 1
        while interrupted_at(line, work):
            assert {hit.id for hit in index.search("cat", mode="words")} == {1, 2}
            assert index.update_metadata(1, {"n": line}) == 1
            line += stride
        assert line > stride
    assert index.verify() == []
    index.close()
    assert list(stored(index.path)) == [1, 2, 3]


def test_a_word_that_sqlite_cuts_inside_a_character(index):
    long = "日" * 10_923
    index.add(["a cat", "a dog"])
    for query in (long, "é" * 20_000):
        assert index.search(query, mode="words") == []
        index.search(query)
        assert index.search("another cat", mode="words")[0].id == 0
    index.add([f"{long} stored"], ["long"])
    assert index.verify() == []
    for query in ("stored", "strored"):
        assert index.search(query, mode="words")[0].id == "long"
    index.delete("long")
    assert index.verify() == []


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def test_ctrl_c_in_a_long_statement_is_ctrl_c(index):
    index.add(["one cat"])
    press = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    press.start()
    store = index._folder.documents
    with pytest.raises(KeyboardInterrupt), store.reporting_errors():
        store.connection.execute(ENDLESS)
    press.join()
    index.add(["two cats"])
    assert index.count() == 2
    assert index.verify() == []
