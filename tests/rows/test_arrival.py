from __future__ import annotations

from threading import Event

import pytest

from ctx_embed.rows.reading import arriving, in_blocks


def test_blocks():
    assert list(in_blocks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(in_blocks([], 2)) == []


def test_items_come_as_they_arrive():
    more = Event()

    def items():
        yield 0
        more.wait(10)
        yield from range(1, 100)

    found = arriving(items(), 10)
    assert next(found) == [0]
    more.set()
    blocks = list(found)
    assert [item for block in blocks for item in block] == list(range(1, 100))
    assert max(map(len, blocks)) <= 10


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 0
        raise ValueError("broken")

    found = arriving(items(), 10)
    assert next(found) == [0]
    with pytest.raises(ValueError, match="broken"):
        next(found)
