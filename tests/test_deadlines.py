"""Reading and embedding a text ends at the deadline, as a search of the index does: in Python, commands and HTTP."""

import gc
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

from ctx_embed import SearchIndex, deadlines
from ctx_embed.deadlines import within
from ctx_embed.errors import LateError
from ctx_embed.index.hits import word_shares
from ctx_embed.text.normalisation import normalised, placed_words, words
from tests.index.support.child import environment

# Each of these characters is read as 18 letters, so that the tokenizer has the most to do.
LONG = "\ufdfa" * 500_000


def test_a_search_with_a_long_query_or_many_ends_at_its_deadline(tmp_path):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(["a cat"])
        index.search("a cat")
        for deadline, latest, queries in (
            (0.5, 3, LONG),
            (0.5, 3, ["a cat", LONG[:400_000], LONG[400_000:] * 4]),
            (0.01, 0.3, ["a cat"] * 500_000),
            (0.01, 0.3, np.ones((50_000, 320), np.float32)),
        ):
            begin = time.process_time()
            with pytest.raises(LateError, match=f"took longer than {deadline} s"):
                index.search(queries, deadline=deadline)
            assert time.process_time() - begin < latest
            assert index.search("a cat", deadline=60)[0].text == "a cat"


def test_many_words_of_a_query_that_begin_a_long_one_take_little_time(tmp_path):
    query, text = " ".join("a" * size for size in range(3, 43)), "a cat x" + "a" * 800_000
    begin = time.process_time()
    assert word_shares(query, [text, "aaaa"]) == [0.0, 0.05]
    assert time.process_time() - begin < 5
    with pytest.raises(LateError), within(0.0):
        word_shares(query, [text])


@pytest.mark.parametrize("mode", ["dense", "words", "hybrid"])
def test_a_command_ends_at_its_deadline_with_one_line(tmp_path, mode):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(["a cat"])
    # Linux takes arguments of at most 128 KiB; a file of queries may be longer.
    queries = tmp_path / "queries.txt"
    queries.write_text(LONG, encoding="utf-8")
    command = [sys.executable, "-m", "ctx_embed", "index", "query", tmp_path / "index", "--queries", queries]
    command += ["--mode", mode, "--deadline", "0.3"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended
    assert "took longer than 0.3 s" in ended.stderr


def longest_wait(monkeypatch, work: Callable[[], object]) -> float:
    """Return the most processor time between looks at the deadline."""
    looks = [time.thread_time()]
    # The clock stands still, so that it is never late.
    clock = Mock(monotonic=lambda: looks.append(time.thread_time()) or 0.0)
    monkeypatch.setattr(deadlines, "time", clock)
    work()
    clock.monotonic()
    return float(np.diff(looks).max())


ODD = ["\xad", "\xada", "\u200b\xad", "\ufdfa", "\u6771", "\uac00", "\U0001f600", "\ud83d", "e\u0301", "-", "\xe9"]


@pytest.mark.parametrize("piece", ODD)
def test_work_on_odd_characters_looks_at_the_deadline_again_and_again(monkeypatch, embedder, piece):
    text = piece * (200_000 // len(normalised(piece) or piece))
    # As the server does: else the objects of all tests are collected in between.
    gc.freeze()
    try:
        for work in (words, lambda text: embedder.tokens([text]), lambda text: deque(placed_words(text[:50_000]), 0)):
            # Once in three times: this machine may be busy.
            assert any(longest_wait(monkeypatch, partial(work, text)) < 0.1 for _ in range(3))
    finally:
        gc.unfreeze()


def longest_hold(work: Callable[[], object]) -> float:
    """Return the most processor time that a thread takes while another one cannot run."""
    longest, thread = 0.0, threading.Thread(target=work)
    thread.start()
    with suppress(OSError):  # when the thread has ended
        clock = time.pthread_getcpuclockid(thread.ident)
        last = time.clock_gettime(clock)
        while thread.is_alive():
            time.sleep(0.0005)
            longest = max(longest, time.clock_gettime(clock) - last)
            last = time.clock_gettime(clock)
    thread.join()
    return longest


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="needs the clock of a thread")
@pytest.mark.parametrize(
    "piece", ["\xad", "\u200b\xad", "\u0301", "\u0301\u0323", "\U0001f1e6", "a", "- a\u0301", "\ufdfa", "a\n", "\u2e17"]
)
def test_others_run_while_odd_characters_are_read(tmp_path, embedder, piece):
    text, before = piece * (1_000_000 // len(normalised(piece) or piece)), sys.getswitchinterval()
    part = text[: 300_000 // len(normalised(piece) or piece)]
    gc.freeze()
    sys.setswitchinterval(0.0005)
    try:
        with SearchIndex.create(tmp_path / "index", chunk="tokens:64") as index:
            for work in (
                lambda: embedder.encode(text),
                lambda: index.upsert([part], ["a"]),
                lambda: deque(placed_words(part[:100_000]), 0),
            ):
                # Once in five times: this machine may be busy.
                assert any(longest_hold(work) < 0.02 for _ in range(5))
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
