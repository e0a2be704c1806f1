from __future__ import annotations

import pytest
import torch

from ctx_embed.errors import InputError
from ctx_embed.systems import system
from ctx_embed.training.distillation.loop.spearman import spearman
from ctx_embed.training.distillation.texts.scored_pairs import Pairs, read_pairs


def test_pairs_of_a_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("2.5\ta cat\tthe cat\n\n0\ta cat\ta dog\n")
    assert read_pairs(path) == Pairs([2.5, 0.0], ("a cat", "a cat"), ("the cat", "a dog"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\ta\n", "line 1: '1\\ta' is not score<TAB>text<TAB>text"),
        ("good\ta\tb\n", "line 1: 'good\\ta\\tb' is not score<TAB>text<TAB>text"),
        ("1\ta\tb\n", "must have at least two pairs, got 1"),
    ],
)
def test_files_that_hold_no_pairs(tmp_path, content, message):
    path = tmp_path / "pairs.tsv"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_pairs(path)
    assert str(caught.value) in (f"{path}, {message}", f"{path}: {message}")


def test_the_correlation_by_hand(tokenizer, sentences):
    table = torch.eye(tokenizer.get_vocab_size())
    encoder = system("mean")(tokenizer, len(table), weights=table)
    same, part, none = (sentences[0],) * 2, (sentences[0], f"{sentences[0]} {sentences[1]}"), sentences[0:2]
    first, second = zip(none, part, same, strict=True)
    assert spearman(Pairs([1.0, 2.0, 3.0], first, second), encoder) == pytest.approx(1)
    assert spearman(Pairs([3.0, 2.0, 1.0], first, second), encoder) == pytest.approx(-1)
