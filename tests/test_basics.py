import io
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ctx_embed
from ctx_embed import progress
from ctx_embed.errors import InputError, installation, unknown_name
from ctx_embed.progress import Meter, say
from ctx_embed.texts import BATCH_CHARACTERS, BATCH_TEXTS, as_texts, length_batches, well_formed
from ctx_embed.vectors import unit_rows


def test_well_formed():
    assert well_formed("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert well_formed("\ud83d\ude00") == "😀"
    text = "nothing to do 😀 \0"
    assert well_formed(text) is text


def test_batches_hold_every_text_once_within_their_bounds():
    texts = ["x" * length for length in [5, BATCH_CHARACTERS * 2, 0, *range(600), BATCH_CHARACTERS // 3]]
    found = list(length_batches(texts))
    assert sorted(place for batch in found for place in batch) == list(range(len(texts)))
    for batch in found:
        padded = len(batch) * max(len(texts[place]) for place in batch)
        assert len(batch) <= BATCH_TEXTS
        assert padded <= BATCH_CHARACTERS or len(batch) == 1
    assert list(length_batches([])) == []


@pytest.mark.parametrize(
    "make",
    [list, tuple, iter, pd.Series, pl.Series, np.array, pa.array, lambda texts: pa.chunked_array([texts])],
    ids=["list", "tuple", "iterator", "pandas", "polars", "numpy", "arrow", "arrow chunks"],
)
def test_texts_come_in_any_collection(make, tiny_model):
    texts = ["the cat", "a dog"]
    assert as_texts(make(texts)) == texts
    np.testing.assert_array_equal(tiny_model.encode(as_texts(make(texts))), tiny_model.encode(texts))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("a", "texts must be a list of strings, got a str; give [text]"),
        (np.array("a"), "texts must be a list of strings, got a ndarray"),
        (None, "texts must be a list of strings, got None"),
        (pd.DataFrame({"text": ["a"]}), "got a DataFrame; give one of its columns ('text')"),
        (pl.DataFrame({"text": ["a"]}), "got a DataFrame; give one of its columns ('text')"),
        (pa.table({"text": ["a"]}), "got a Table; give one of its columns ('text')"),
        (pd.Series(["a", None]), "text 1 must be a string, got "),
    ],
)
def test_what_holds_no_texts_is_one_line(values, message):
    with pytest.raises(InputError, match=re.escape(message)):
        as_texts(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_length_1_and_zero_stays_zero(dtype):
    vectors = np.array([[3, 4], [0, 0], [1e-30, 0], [3e30, -4e30]], dtype)
    found = unit_rows(vectors)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [1, 0], [0.6, -0.8]], rtol=1e-6)
    np.testing.assert_array_equal(unit_rows(vectors[0]), found[0])


def test_an_unknown_name():
    assert issubclass(InputError, ValueError)
    assert ctx_embed.InputError is InputError
    error = unknown_name("task", "SUBJJ", ["SUBJ", "MR"])
    assert isinstance(error, InputError)
    assert str(error) == "unknown task 'SUBJJ': did you mean 'SUBJ'? known are MR, SUBJ"
    assert str(unknown_name("task", "xyz", {"SUBJ": 1, "MR": 2})) == "unknown task 'xyz': known are MR, SUBJ"


def test_an_extra_is_installed_from_where_the_package_came_from(tmp_path):
    wheel = tmp_path / "a wheel.whl"
    wheel.touch()
    origin = json.dumps({"url": wheel.as_uri(), "archive_info": {}})
    assert installation("peers", origin) == f'pip install "{wheel}[peers]"'
    assert installation("", origin) == f"pip install '{wheel}'"
    clone = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert installation("peers", clone) == f'pip install -e "{tmp_path}[peers]"'


@pytest.mark.parametrize("url", [None, "file:///nowhere/ctx_embed.whl", "https://example.org/ctx_embed.whl"])
def test_an_installation_from_an_index_or_from_what_is_gone_goes_by_name(url):
    origin = json.dumps({"url": url, "archive_info": {}}) if url else ""
    assert installation("peers", origin) == 'pip install "ctx-embed[peers]"'
    assert installation(origin=origin) == "pip install ctx-embed"


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
