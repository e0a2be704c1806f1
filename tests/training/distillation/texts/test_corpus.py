from __future__ import annotations

import gzip

import pytest

from ctx_embed.errors import InputError
from ctx_embed.training.distillation.texts import corpus
from ctx_embed.training.distillation.texts.corpus import Block


def read_blocks(*arguments, **options):
    return corpus.read_blocks(*arguments, **options, block_texts=4)


@pytest.fixture
def files(tmp_path):
    """Three files of 9, 4 and 1 sentences, one of them gzip: blocks of 4, 4, 1, 4 and 1."""
    contents = {"a.txt": 9, "b.txt.gz": 4, "c.txt": 1}
    for name, count in contents.items():
        text = "".join(f"sentence {number} of {name}\n\n" for number in range(count)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return [tmp_path / name for name in contents]


def texts(blocks) -> list[tuple[str, ...]]:
    return [block.texts for block in blocks]


def test_blocks_are_consecutive_sentences_of_one_file(files):
    blocks = read_blocks(files)
    assert sorted((block.source, len(block.texts)) for block in blocks) == [
        ("a.txt", 1),
        ("a.txt", 4),
        ("a.txt", 4),
        ("b.txt.gz", 4),
        ("c.txt", 1),
    ]
    assert ("sentence 4 of a.txt", "sentence 5 of a.txt", "sentence 6 of a.txt", "sentence 7 of a.txt") in texts(blocks)


def test_spans_of_one_word_and_more(files):
    line = "one two three four five"
    cut = corpus.spans([line, line + ".", "Ça  va", "word", line], 3)
    assert [len(span.split()) for span in cut] == [1, 2, 2, 1, 2]
    assert all(span in text for span, text in zip(cut, [line, line + ".", "Ça va", "word", line], strict=True))
    assert corpus.spans([line, line], 9) == ["five", "one two"]  # a place that the text decides
    assert corpus.spans(["a  b"], 0) == ["a  b"]
    assert {len(text.split()) for block in read_blocks(files, span_words=2) for text in block.texts} == {1, 2}


def test_a_key_is_a_hash_of_the_texts_alone():
    # The sha256 of the texts joined by line feeds; what caches hold is lost when this changes.
    assert Block("x", ("a", "b")).key == Block("y", ("a", "b")).key == "7e18f737311b2dc3b2f269dd78396b03"


def test_a_longer_run_extends_a_shorter_one(files):
    everything = texts(read_blocks(files))
    for sentences in range(1, 16):
        some = texts(read_blocks(files, sentences))
        assert some == everything[: len(some)]
        counts = [len(block) for block in some]
        assert sum(counts) >= min(sentences, 14)
        assert sum(counts[:-1]) < sentences


def test_the_order_does_not_depend_on_the_order_of_the_files(files):
    assert texts(read_blocks(files)) == texts(read_blocks(files[::-1]))


def test_more_files_keep_the_order_of_the_blocks_there_were(files):
    few, all_of_them = texts(read_blocks(files[1:])), texts(read_blocks(files))
    assert [block for block in all_of_them if block in few] == few


def test_seeds_give_other_orders(files):
    orders = {tuple(texts(read_blocks(files, seed=seed))) for seed in range(8)}
    assert len(orders) > 1
    assert len({frozenset(order) for order in orders}) == 1


def test_lone_surrogates_of_jsonl_are_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "lone \\ud800 surrogate"}\n')
    (block,) = read_blocks([path])
    assert block.texts == ("lone \ufffd surrogate",)
    assert len(block.key) == 32


def test_no_sentence(tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n")
    for paths in ([], [tmp_path / "blank.txt"]):
        with pytest.raises(InputError) as caught:
            read_blocks(paths)
        assert (
            str(caught.value) == "the corpus must have at least one sentence; give text files with a sentence per line"
        )
