from __future__ import annotations

import pytest

from ctx_embed.errors import InputError
from ctx_embed.training.distillation.texts.corpus import passages
from ctx_embed.training.distillation.texts.mixture import Source, genre, read_mixture


def test_passages_are_of_all_lengths_and_hold_every_line_once():
    lines = [str(number) for number in range(12)]
    assert passages(lines, 4) == ["0 1", "2 3 4", "5 6 7 8", "9 10", "11"]
    assert passages(lines, 1) == lines
    assert passages([], 4) == []


def test_a_mixture_knows_genres(tmp_path):
    first, second = tmp_path / "books.00.txt", tmp_path / "news.txt"
    first.write_text("a\nb\nc\n")
    second.write_text("d\ne\n")
    mixture = read_mixture([Source([first, second]), Source([first], passage_lines=2)], seed=0)
    assert sorted(mixture.texts) == ["a", "a b", "b", "c", "c", "d", "e"]
    assert mixture.genre_names == ["books", "news"]
    for row, text in enumerate(mixture.texts):
        assert mixture.genres[row] == (text in "de")
    assert genre("books.00.txt.gz") == "books"
    assert genre(".hidden") == ".hidden"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"files": []}, "a source must have at least one file, got none"),
        ({"texts": 0}, "texts of a source must be at least 1, got 0"),
        ({"passage_lines": 0}, "passage_lines of a source must be at least 1, got 0"),
        ({"span_words": -1}, "span_words of a source must be at least 0, got -1"),
    ],
)
def test_sources_that_cannot_be(tmp_path, options, message):
    with pytest.raises(InputError) as caught:
        Source(**{"files": [tmp_path], **options})
    assert str(caught.value) == message
