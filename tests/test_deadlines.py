"""Reading and embedding a text ends at the deadline, as a search of the index does: in Python, commands and HTTP."""

import gc
import math
import subprocess
import sys
import time

import pytest

from ctx_embed import SearchIndex, deadlines
from ctx_embed.errors import LateError
from ctx_embed.runtime import Embedder
from ctx_embed.text.normalisation import normalised, placed_words, words
from tests.index.support.child import ENVIRONMENT

# Each of these characters is read as 18 letters, so that the tokenizer has the most to do.
LONG = "\ufdfa" * 500_000


@pytest.mark.parametrize("queries", [LONG, ["a cat", LONG[:400_000], LONG[400_000:] * 4]])
def test_a_search_with_a_long_query_ends_at_its_deadline(tmp_path, queries):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(["a cat"])
        begin = time.process_time()
        with pytest.raises(LateError, match=r"took longer than 0\.5 s"):
            index.search(queries, deadline=0.5)
        assert time.process_time() - begin < 3
        assert index.search("a cat", deadline=60)[0].text == "a cat"


@pytest.mark.parametrize("mode", ["dense", "words", "hybrid"])
def test_a_command_ends_at_its_deadline_with_one_line(tmp_path, mode):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(["a cat"])
    # Linux takes arguments of at most 128 KiB; a file of queries may be longer.
    queries = tmp_path / "queries.txt"
    queries.write_text(LONG, encoding="utf-8")
    command = [sys.executable, "-m", "ctx_embed", "index", "query", str(tmp_path / "index"), "--queries", str(queries)]
    ended = subprocess.run(
        [*command, "--mode", mode, "--deadline", "0.3"], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended
    assert "took longer than 0.3 s" in ended.stderr


class Clock:
    """Counts the time of the processor between looks at the deadline."""

    def __init__(self) -> None:
        self.longest, self._last = 0.0, time.thread_time()

    def monotonic(self) -> float:
        """Return the start of the clock: it is never late."""
        self.longest = max(self.longest, time.thread_time() - self._last)
        self._last = time.thread_time()
        return 0.0


@pytest.mark.parametrize(
    "piece",
    ["\xad", "\xada", "\u200b\xad", "\ufdfa", "\u6771", "\uac00", "\U0001f600", "\ud83d", "e\u0301", "-", "\xe9"],
)
def test_work_on_odd_characters_looks_at_the_deadline_again_and_again(monkeypatch, piece):
    text = piece * (200_000 // len(normalised(piece) or piece))
    embedder = Embedder.load()
    # As the server does: else the objects of all tests are collected in between.
    gc.freeze()
    longest = math.inf
    # Once in three times: this machine may be busy.
    for _ in range(3):
        clock = Clock()
        monkeypatch.setattr(deadlines, "time", clock)
        words(text)
        embedder.tokens([text])
        for _ in placed_words(text[:50_000]):
            pass
        clock.monotonic()
        longest = min(longest, clock.longest)
        if longest < 0.1:
            break
    gc.unfreeze()
    assert longest < 0.1
