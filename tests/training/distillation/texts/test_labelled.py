from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ctx_embed.errors import InputError
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.distillation.loop.labelled_spans import SPAN_TOKENS, LabelledSpans
from ctx_embed.training.distillation.texts.labelled import read_labelled_files, read_skipped
from tests.conftest import SENTENCES


def test_labelled_files_have_a_label_first_and_a_text_last(tmp_path):
    first, second = tmp_path / "a.tsv", tmp_path / "b.tsv"
    first.write_text("1\tgood\n\n0\tbad\n1\tleft out\n")
    second.write_text("1\t9\tvery good\n")
    assert read_labelled_files([first, second], {"a.tsv": {4}}) == (["1", "0", "1"], ["good", "bad", "very good"])
    with pytest.raises(InputError, match="the labelled files must have at least two labels, got 1"):
        read_labelled_files([second])
    second.write_text("no tab\n")
    with pytest.raises(InputError, match=r"b\.tsv, line 1: 'no tab' is not label<TAB>text"):
        read_labelled_files([second])


def test_skipped_lines_come_from_json(tmp_path):
    path = tmp_path / "skip.json"
    path.write_text(json.dumps({"note": "x", "lines": {"a.tsv": [3, 1]}}))
    assert read_skipped(path) == {"a.tsv": {1, 3}}
    for content in ("{", "[]", '{"lines": [1]}', '{"lines": {"a": 1}}', "{}"):
        path.write_text(content)
        with pytest.raises(InputError, match="not JSON of the form"):
            read_skipped(path)


def spans(tokenizer) -> LabelledSpans:
    texts = [" ".join([sentence] * 9) for sentence in SENTENCES] + [""]
    labels = ["good"] * 7 + ["bad"] * 2
    return LabelledSpans(
        TextTokenizer(tokenizer), labels * 10, [text and f"{text} {n}" for n in range(10) for text in texts], seed=3
    )


def test_spans_are_pieces_of_their_texts(tokenizer):
    labelled = spans(tokenizer)
    ids, lengths, targets = labelled.draw(500, step=0)
    assert len(lengths) == len(targets) == 500
    assert sum(lengths) == len(ids)
    assert max(lengths) <= SPAN_TOKENS[1]
    assert min(length for length in lengths if length) >= SPAN_TOKENS[0]
    texts = [labelled.packed.batch(np.array([row]))[0].tolist() for row in range(len(labelled.packed))]
    for part, target in list(zip(ids.split(lengths), targets.tolist(), strict=True))[:40]:
        rows = labelled.rows_of_class[target]
        piece = str(part.tolist())[1:-1]
        assert any(piece in str(texts[row]) for row in rows)


def test_labels_are_drawn_alike_and_by_the_step(tokenizer):
    labelled = spans(tokenizer)
    targets = labelled.draw(4000, step=1)[2]
    assert abs(targets.float().mean() - 0.5) < 0.05
    assert torch.equal(targets, labelled.draw(4000, step=1)[2])
    assert not torch.equal(targets, labelled.draw(4000, step=2)[2])


def test_the_held_out_part_is_not_drawn(tokenizer):
    labelled = spans(tokenizer)
    assert 9 <= len(labelled.held_out_rows) < 19  # ten texts are empty
    assert not set(labelled.held_out_rows) & {row for rows in labelled.rows_of_class for row in rows}
    assert torch.equal(labelled.held_out()[0], labelled.held_out()[0])


def test_no_copy_of_a_held_out_text_is_drawn(tokenizer):
    texts = [f"text {number % 40}" for number in range(80)]
    labelled = LabelledSpans(TextTokenizer(tokenizer), ["a", "b"] * 40, texts, seed=0)
    held_out = {texts[row] for row in labelled.held_out_rows}
    drawn = {texts[row] for rows in labelled.rows_of_class for row in rows}
    assert (len(labelled.held_out_rows), held_out & drawn) == (8, set())
