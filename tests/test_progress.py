"""Tests of progress: a bar in a terminal, elsewhere plain lines."""

import io
import re
import subprocess
import sys

from ctx_embed import progress
from ctx_embed.progress import Meter, say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_say_how_much_how_fast_and_how_long(capsys):
    with Meter("encoding", 2000, "rows", done=500, interval=0) as meter:
        meter.update(500)
        meter.note("loss 0.1")
        meter.update(1000)
    first, second, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"encoding: 1,000 of 2,000 rows, [\d,]+ rows/s, 0 s left", first)
    assert re.fullmatch(r"encoding: 2,000 of 2,000 rows, [\d,]+ rows/s, 0 s left, loss 0.1", second)
    assert re.fullmatch(r"encoding: 2,000 of 2,000 rows, [\d,]+ rows/s, after 0 s, loss 0.1", last)


def test_meters_name_the_subject_of_their_block(capsys):
    with progress.about("MR, default"), Meter("folds", 1, "fits", interval=0) as meter:
        meter.update()
    with Meter("folds", 1, "fits", interval=0) as meter:
        meter.update()
    named, _, plain, _ = capsys.readouterr().err.splitlines()
    assert named.startswith("MR, default: folds: 1 of 1 fits")
    assert plain.startswith("folds: 1 of 1 fits")


def test_short_work_and_hidden_work_print_nothing(capsys):
    progress.restart()
    assert list(Meter("reading", 3).each("abc")) == ["a", "b", "c"]
    assert list(Meter("reading", 3, shown=False, interval=0).each("abc")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    script = "import sys, ctx_embed.progress as p; m = p.Meter('x', 1); m.update(); assert 'tqdm' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, check=True).stderr == b""


def test_meters_that_follow_one_another_share_the_interval(capsys):
    progress.restart()
    for _ in range(30):
        with Meter("fold", 1, "folds", interval=0.05) as meter:
            progress.time.sleep(0.01)
            meter.update()
    assert 1 <= len(capsys.readouterr().err.splitlines()) < 20


def test_a_terminal_shows_a_bar_with_lines_above_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Meter("encoding", 3, "rows") as meter:
        for _ in range(3):
            meter.update()
        meter.note("loss 0.1")
        say("a line")
    shown = sys.stderr.getvalue()
    assert "3/3" in shown
    assert "loss 0.1" in shown
    assert re.search(r"(^|[\r\n])a line\n", shown)


def test_durations():
    said = {0.4: "0 s", 59.6: "1 min 00 s", 3599: "59 min 59 s", 7260: "2 h 01 min"}
    assert {seconds: progress.duration(seconds) for seconds in said} == said
