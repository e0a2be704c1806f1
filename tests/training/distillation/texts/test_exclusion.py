from __future__ import annotations

import gzip

import pytest

from ctx_embed.errors import InputError
from ctx_embed.training.distillation.options import Source
from ctx_embed.training.distillation.texts.exclusion import is_excluded, read_excluded
from ctx_embed.training.distillation.texts.mixture import read_mixture
from ctx_embed.training.labelled_texts import words_of


def test_texts_are_compared_by_their_words():
    assert words_of("  It's  GOOD , isn't it?") == "it s good isn t it"
    assert words_of("...") == ""
    excluded = frozenset({"so good", "bad"})
    assert [text for text in ("So good!", "good so", "so so good", "Bad.", "") if is_excluded(text, excluded)] == [
        "So good!",
        "Bad.",
    ]
    assert not is_excluded("bad", frozenset())


def test_lines_and_columns_are_read(tmp_path):
    first, second = tmp_path / "a.tsv", tmp_path / "b.txt.gz"
    first.write_text("1\tA good film.\tA book\n\n0\t!\tA book\n")
    second.write_bytes(gzip.compress(b"one line\n"))
    expected = {"1", "0", "a good film", "a book", "one line"}
    assert read_excluded([first, second]) == expected
    (tmp_path / "c.jsonl").write_text('{"_id": "7", "text": "Of a collection."}\n')
    assert read_excluded([tmp_path / "c.jsonl"]) == {"7", "of a collection"}
    (tmp_path / "d.csv").write_text('text,second\n"Well, well","One more"\n')
    assert read_excluded([tmp_path / "d.csv"]) == {"well well", "one more"}
    with pytest.raises(InputError, match=r"^.*nowhere\.tsv: "):
        read_excluded([tmp_path / "nowhere.tsv"])


def test_an_excluded_text_is_never_shown(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one two\nthree four\nfive six\n")
    mixture = read_mixture([Source([file]), Source([file])], 0, frozenset({"three four"}))
    assert mixture.texts == ["one two", "three four", "five six"] * 2
    assert mixture.shown.tolist() == [True, False, True] * 2
    with pytest.raises(InputError, match=r"^all 3 texts are excluded; give texts that are not in the excluded files$"):
        read_mixture([Source([file])], 0, frozenset({"one two", "three four", "five six"}))
