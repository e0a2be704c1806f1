from __future__ import annotations

import json

import pytest

from ctx_embed.errors import InputError
from ctx_embed.training.distillation.options import Source
from ctx_embed.training.distillation.texts.fair_sample import fair_order, read_fair_blocks
from ctx_embed.training.distillation.texts.mixture import read_mixture


def test_any_beginning_is_a_fair_sample():
    families = {"many": [(f"m{n}",) for n in range(900)], "few": [(f"f{n}",) for n in range(100)]}
    order = fair_order(families)
    assert sorted(order) == sorted((name, item) for name, items in families.items() for item in items)
    for length in (8, 40, 200):
        # The square roots of 900 and 100 are as 3 to 1.
        few = sum(name == "few" for name, _ in order[:length])
        assert abs(few - length / 4) <= 1
    # A text's place within its family is decided by the texts alone.
    again = fair_order({"many": families["many"][::-1] + families["many"][:5]})
    assert again == [place for place in order if place[0] == "many"]


def test_a_fair_source_of_lines_labels_and_pairs(tmp_path):
    (tmp_path / "a.00.txt").write_text("one two three\nfour five six\n")
    (tmp_path / "a.01.txt").write_text("seven\n")
    (tmp_path / "b.tsv").write_text("1\tgood\n0\tvery very bad\n")
    rows = [
        {"query": "what is it", "passage": "it is that"},
        {"a": "he runs", "b": "a man runs", "label": "entailment"},
        {"a": "he runs", "b": "he sits", "label": "contradiction"},
        {"a": "same", "b": "alike", "label": 1},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = sorted(tmp_path.iterdir())
    mixture = read_mixture([Source(files, fair=True, most_words=3), Source(files[:1], fair=True, span_words=1)], 0)
    singles = ["one two three", "four five six", "seven", "good", "very very bad"]
    paired = ["what is it", "it is that", "he runs", "a man runs", "he runs", "he sits", "same", "alike"]
    assert sorted(mixture.texts[:-2]) == sorted(singles + paired)
    assert [len(text.split()) for text in mixture.texts[-2:]] == [1, 1]
    assert mixture.genre_names == ["a", "b", "c"]
    assert mixture.genres[mixture.texts.index("good")] == 1
    pairs = {tuple(mixture.texts[row] for row in pair) for pair in mixture.pairs}
    # What contradicts a text does not belong with it.
    assert pairs == {("what is it", "it is that"), ("he runs", "a man runs"), ("same", "alike")}
    assert [[mixture.texts[row] for row in pair] for pair in mixture.opposed] == [["he runs", "he sits"]]


def test_pairs_that_no_teacher_embeds(tmp_path):
    texts, pairs = tmp_path / "a.txt", tmp_path / "b.jsonl"
    texts.write_text("one two three\nfour\n")
    pairs.write_text(json.dumps({"query": "what", "passage": "this is a long one"}))
    untaught = Source([pairs], fair=True, taught=False, first_words=2)
    mixture = read_mixture([untaught, Source([texts], fair=True)], 0)
    # Texts of pairs are cut, others are not.
    assert mixture.texts[:2] == ["what", "this is"]
    assert sorted(mixture.texts[2:]) == ["four", "one two three"]
    assert mixture.pairs.tolist() == [[0, 1]]
    assert mixture.taught_blocks == [1]
    assert mixture.taught_rows.tolist() == [2, 3]
    for options in ({"fair": False}, {"fair": True, "second_texts": 3}):
        with pytest.raises(InputError, match="a source with taught = false must have fair = true and no second_texts"):
            Source([pairs], taught=False, **options)
    with pytest.raises(InputError, match="first_words of a source must be at least 1, got 0"):
        Source([pairs], first_words=0, fair=True)
    with pytest.raises(InputError, match="first_words of a source needs fair = true; add it, or leave first_words out"):
        Source([pairs], first_words=3)


def test_more_texts_begin_with_the_same_blocks(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"text {n}\n" for n in range(3000)))
    blocks = read_fair_blocks([path])
    assert [len(block.texts) for block in blocks] == [1024, 1024, 952]
    assert [block.key for block in read_fair_blocks([path], 1500)] == [block.key for block in blocks[:2]]


def test_what_is_no_pair(tmp_path):
    path = tmp_path / "c.jsonl"
    for line in ("[1]", '{"query": "a"}', '{"a": "b", "b": "c"}', '{"query": 1, "passage": "b"}', "{"):
        path.write_text(line + "\n")
        with pytest.raises(InputError, match=r"c\.jsonl, line 1: .* is no pair: a JSON object with query and passage"):
            read_fair_blocks([path])
    path.write_text("")
    with pytest.raises(InputError, match="the corpus must have at least one text"):
        read_fair_blocks([path])


def test_pairs_are_made_of_texts_and_their_neighbours(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"this is line number {number}\n" for number in range(11)), encoding="utf-8")
    source = Source([path], fair=True, cloze=True, passage_lines=3, span_words=4, taught=False)
    mixture = read_mixture([source, Source([path])], 0)
    pairs = {tuple(mixture.texts[row] for row in rows) for rows in mixture.pairs}
    # Lines 9 and 10 fill no passage.
    assert {passage for _, passage in pairs} == {
        f"this is line number {start} this is line number {start + 2}" for start in (0, 3, 6)
    }
    for query, passage in pairs:
        middle = f"this is line number {int(passage[-1]) - 1}"
        assert query in middle
    assert sorted(len(query.split()) for query, _ in pairs) == [1, 2, 3]
    for missing in ({"fair": False}, {"passage_lines": 1}, {"span_words": 0}):
        with pytest.raises(InputError, match="cloze = true of a source needs fair = true, passage_lines above 1 and"):
            Source(**{"files": [path], "fair": True, "cloze": True, "passage_lines": 3, "span_words": 4, **missing})
