"""From files of texts to a teacher's embeddings of them, and from a recipe to a model."""

import gzip
import json
import os
from contextlib import nullcontext

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from ctx_embed import load
from ctx_embed.training.distillation import texts as reading
from ctx_embed.training.distillation.job import TeacherCache, seen_in_part
from ctx_embed.training.distillation.texts import Block
from ctx_embed.training.labelled_texts import words_of
from ctx_embed.training.options import Source
from tests.helpers.errors import error


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three files of 9, 4 and 1 sentences, one of them gzip: blocks of 4, 4, 1, 4 and 1."""
    monkeypatch.setattr(reading, "BLOCK_LINES", 4)
    paths = [tmp_path / name for name in ("a.txt", "b.txt.gz", "c.txt")]
    for path, count in zip(paths, (9, 4, 1), strict=True):
        text = "".join(f"sentence {number} of {path.name}\n\n" for number in range(count)).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return paths


def blocks_of(files, seed=0, **options) -> list[tuple[str, ...]]:
    return [block.texts for block in reading.read_blocks(Source(files, **options), seed)]


def mixture_of(*sources, excluded=frozenset()) -> reading.Mixture:
    return reading.read_mixture(list(sources), 0, excluded)


def test_blocks_are_consecutive_sentences_of_one_file(files):
    blocks = reading.read_blocks(Source(files))
    assert sorted(block.families for block in blocks) == [("a",), ("a",) * 4, ("a",) * 4, ("b",) * 4, ("c",)]
    assert tuple(f"sentence {number} of a.txt" for number in range(4, 8)) in blocks_of(files)
    assert (reading.genre("books.00.txt.gz"), reading.genre(".hidden")) == ("books", ".hidden")
    # A block's key is the sha256 of the texts joined by line feeds; what caches hold is lost when this changes.
    assert Block(("a", "b")).key == Block(("a", "b"), ("x", "y")).key == "7e18f737311b2dc3b2f269dd78396b03"


def test_the_order_depends_on_the_blocks_and_the_seed_alone(files):
    everything = blocks_of(files)
    assert blocks_of(files[::-1]) == everything
    few = blocks_of(files[1:])
    assert [block for block in everything if block in few] == few
    orders = {tuple(blocks_of(files, seed)) for seed in range(8)}
    assert len(orders) > len({frozenset(order) for order in orders}) == 1
    for sentences in range(1, 16):
        some = blocks_of(files, texts=sentences)
        assert some == everything[: len(some)]
        counts = [len(block) for block in some]
        assert sum(counts) >= min(sentences, 14)
        assert sum(counts[:-1]) < sentences


def test_passages_are_of_all_lengths_and_hold_every_line_once():
    lines = [str(number) for number in range(12)]
    assert reading.passages(lines, 4) == ["0 1", "2 3 4", "5 6 7 8", "9 10", "11"]
    assert reading.passages(lines, 1) == lines


def test_spans_of_one_word_and_more(files):
    line = "one two three four five"
    cut = reading.spans([line, line + ".", "Ça  va", "word", line], 3)
    assert [len(span.split()) for span in cut] == [1, 2, 2, 1, 2]
    assert all(span in text for span, text in zip(cut, [line, line + ".", "Ça va", "word", line], strict=True))
    assert reading.spans([line, line], 9) == ["five", "one two"]  # a place that the text decides
    assert reading.spans(["a  b"], 0) == ["a  b"]
    assert {len(text.split()) for block in blocks_of(files, span_words=2) for text in block} == {1, 2}


@pytest.mark.parametrize("fair", [False, True])
def test_lone_surrogates_are_replaced_and_a_corpus_has_a_sentence(tmp_path, fair):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "lone \\ud800 surrogate"}\n')
    assert fair or blocks_of([path]) == [("lone \ufffd surrogate",)]
    path.write_text("\n \n")
    message = "the corpus must have at least one text; give text files with a sentence per line"
    assert error(blocks_of, [path], fair=fair) == message


def test_any_beginning_is_a_fair_sample():
    families = {"many": [(f"m{n}",) for n in range(900)], "few": [(f"f{n}",) for n in range(100)]}
    order = reading.fair_order(families)
    assert sorted(order) == sorted((name, item) for name, items in families.items() for item in items)
    for length in (8, 40, 200):
        # The square roots of 900 and 100 are as 3 to 1.
        few = sum(name == "few" for name, _ in order[:length])
        assert abs(few - length / 4) <= 1
    # A text's place within its family is decided by the texts alone.
    again = reading.fair_order({"many": families["many"][::-1] + families["many"][:5]})
    assert again == [place for place in order if place[0] == "many"]


def rows_of(mixture, pairs) -> set[tuple[str, str]]:
    return {(mixture.texts[first], mixture.texts[second]) for first, second in pairs}


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
    mixture = mixture_of(Source(files, fair=True, most_words=3), Source(files[:1], fair=True, span_words=1))
    singles = ["one two three", "four five six", "seven", "good", "very very bad"]
    paired = ["what is it", "it is that", "he runs", "a man runs", "he runs", "he sits", "same", "alike"]
    assert sorted(mixture.texts[:-2]) == sorted(singles + paired)
    assert [len(text.split()) for text in mixture.texts[-2:]] == [1, 1]
    assert [mixture.genres[mixture.texts.index(text)] for text in ("seven", "good", "alike")] == [0, 1, 2]
    # What contradicts a text does not belong with it.
    alike = {("what is it", "it is that"), ("he runs", "a man runs"), ("same", "alike")}
    assert rows_of(mixture, mixture.pairs) == alike
    assert rows_of(mixture, mixture.opposed) == {("he runs", "he sits")}


def test_pairs_that_no_teacher_embeds(tmp_path):
    texts, pairs = tmp_path / "a.txt", tmp_path / "b.jsonl"
    texts.write_text("one two three\nfour\n")
    pairs.write_text(json.dumps({"query": "what", "passage": "this is a long one"}))
    untaught = Source([pairs], fair=True, taught=False, first_words=2)
    mixture = mixture_of(untaught, Source([texts], fair=True, second_texts=1))
    # Texts of pairs are cut, others are not.
    assert mixture.texts[:2] == ["what", "this is"]
    assert sorted(mixture.texts[2:]) == ["four", "one two three"]
    assert mixture.pairs.tolist() == [[0, 1]]
    assert mixture.taught_rows.tolist() == mixture.second_rows.tolist() == [2, 3]


def test_more_texts_begin_with_the_same_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FAIR_BLOCK_TEXTS", 4)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"text {n}\n" for n in range(11)))
    blocks = blocks_of([path], fair=True)
    assert [len(block) for block in blocks] == [4, 4, 3]
    assert blocks_of([path], fair=True, texts=6) == blocks[:2]
    # A text whose partner is cut off has none.
    monkeypatch.setattr(reading, "FAIR_BLOCK_TEXTS", 3)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"query": f"q{n}", "passage": f"p{n}"}) + "\n" for n in range(4)))
    also = Source([path], fair=True)
    whole, cut = (mixture_of(Source([path], fair=True, texts=texts), also) for texts in (None, 3))
    assert (len(whole.pairs), len(cut.pairs)) == (8, 5)
    assert rows_of(cut, cut.pairs) == rows_of(whole, whole.pairs) == {(f"q{n}", f"p{n}") for n in range(4)}


def test_what_is_no_pair(tmp_path):
    path = tmp_path / "c.jsonl"
    for line in ("[1]", '{"query": "a"}', '{"a": "b", "b": "c"}', '{"query": 1, "passage": "b"}', "{"):
        path.write_text(line + "\n")
        said = error(blocks_of, [path], fair=True)
        assert said.startswith(f"{path}, line 1: must be a JSON object with query and passage")


def test_pairs_are_made_of_texts_and_their_neighbours(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"this is line number {number}\n" for number in range(11)), encoding="utf-8")
    source = Source([path], fair=True, cloze=True, passage_lines=3, span_words=4, taught=False)
    mixture = mixture_of(source, Source([path]))
    pairs = rows_of(mixture, mixture.pairs)
    # Lines 9 and 10 fill no passage.
    assert {passage for _, passage in pairs} == {
        f"this is line number {start} this is line number {start + 2}" for start in (0, 3, 6)
    }
    for query, passage in pairs:
        assert query in f"this is line number {int(passage[-1]) - 1}"
    assert sorted(len(query.split()) for query, _ in pairs) == [1, 2, 3]


def test_excluded_texts_are_compared_by_their_words_and_never_shown(tmp_path):
    assert words_of("  It's  GOOD , isn't it?") == "it s good isn t it"
    file = tmp_path / "a.txt"
    file.write_text("one two\nThree, four!\nfour three\n...\n")
    mixture = mixture_of(Source([file]), Source([file]), excluded=frozenset({"three four"}))
    assert mixture.texts == ["one two", "Three, four!", "four three", "..."] * 2
    assert mixture.shown.tolist() == [True, False, True, True] * 2
    file.write_text("one two\nthree four\n")
    said = error(mixture_of, Source([file]), excluded=frozenset({"one two", "three four"}))
    assert said == "all 2 texts are excluded; give texts that are not in the excluded files"


def test_excluded_texts_are_lines_and_columns_of_files(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tA good film.\tA book\n\n0\t!\tA book\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one line\n"))
    (tmp_path / "c.jsonl").write_text('{"_id": "7", "text": "Of a collection."}\n')
    (tmp_path / "d.csv").write_text('text,second\n"Well, well","One more"\n')
    assert reading.read_excluded(sorted(tmp_path.iterdir())) == {
        *("1", "0", "a good film", "a book", "one line"),
        *("7", "of a collection", "well well", "one more"),
    }


def test_labelled_files_have_a_label_first_and_a_text_last(tmp_path):
    first, second, skip = tmp_path / "a.tsv", tmp_path / "b.tsv", tmp_path / "skip.json"
    first.write_text("1\tgood\n\n0\tbad\n1\tleft out\n")
    second.write_text("1\t9\tvery good\n")
    skip.write_text(json.dumps({"note": "x", "lines": {"a.tsv": [4, 9]}}))
    assert reading.read_labelled_files([first, second], skip) == (["1", "0", "1"], ["good", "bad", "very good"])
    less = reading.read_labelled_files([first, second], skip, excluded=frozenset({words_of("Very good!")}))
    assert less == (["1", "0"], ["good", "bad"])
    assert error(reading.read_labelled_files, [second]) == "the labelled files must have at least two labels, got 1"
    second.write_text("no tab\n")
    assert error(reading.read_labelled_files, [second]) == f"{second}, line 1: 'no tab' is not label<TAB>text"
    for content in ("{", '{"lines": [1]}', '{"lines": {"a": 1}}', "{}"):
        skip.write_text(content)
        assert "not JSON of the form" in error(reading.read_labelled_files, [first], skip)


def test_pairs_of_a_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("2.5\ta cat\tthe cat\n\n0\ta cat\ta dog\n")
    assert reading.read_pairs(path) == reading.Pairs([2.5, 0.0], ("a cat", "a cat"), ("the cat", "a dog"))
    path.write_text("good\ta\tb\n")
    assert error(reading.read_pairs, path) == f"{path}, line 1: must be score<TAB>text<TAB>text, got 'good\\ta\\tb'"
    path.write_text("1\ta\tb\n")
    assert error(reading.read_pairs, path) == f"{path}: must have at least two pairs, got 1"


# The teacher's embeddings


@pytest.fixture
def teacher(tiny_model_path):
    """A teacher whose own embeddings are not of unit length."""
    return SentenceTransformer(modules=[load(tiny_model_path, "cpu")[0]], device="cpu")


@pytest.fixture
def blocks(sentences):
    return [Block(tuple(part)) for part in (sentences[:3], sentences[3:7], sentences[7:])]


@pytest.fixture
def asked(monkeypatch) -> list[list[str]]:
    """The texts of each call of a teacher's encode."""
    calls: list[list[str]] = []
    encode = SentenceTransformer.encode

    def counted(self, texts, **options):
        calls.append(list(texts))
        return encode(self, texts, **options)

    monkeypatch.setattr(SentenceTransformer, "encode", counted)
    return calls


def embeddings(folder, teacher, blocks):
    return TeacherCache(folder, teacher).embeddings(blocks, progress=False)


def test_embeddings_are_in_the_order_of_the_blocks_and_computed_once(tmp_path, teacher, blocks, sentences, asked):
    expected = teacher.encode(sentences, normalize_embeddings=True).astype(np.float16)
    del asked[:]
    got = embeddings(tmp_path / "new" / "cache", teacher, blocks)
    assert got.dtype == np.float16
    assert np.array_equal(got, expected)
    assert asked == [list(block.texts) for block in blocks]
    more = Block(("one more sentence",))
    assert np.array_equal(embeddings(tmp_path / "new" / "cache", teacher, [blocks[2], more])[:1], got[-1:])
    assert asked[3:] == [["one more sentence"]]


@pytest.mark.parametrize("damage", ["garbage", "cut", "other"])
def test_a_damaged_shard_is_computed_again(tmp_path, teacher, blocks, asked, damage):
    whole = embeddings(tmp_path, teacher, blocks)
    cache = TeacherCache(tmp_path, teacher)
    other, path, _ = (cache.folder / f"{block.key}.safetensors" for block in blocks)
    path.write_bytes({"cut": path.read_bytes()[:-1], "other": other.read_bytes(), "garbage": b"garbage"}[damage])
    del asked[:]
    assert np.array_equal(embeddings(tmp_path, teacher, blocks), whole)
    assert asked == [list(blocks[1].texts)]
    assert len(list(cache.folder.iterdir())) == 3
    assert np.array_equal(embeddings(tmp_path, teacher, blocks), whole)
    assert len(asked) == 1


def test_teachers_do_not_share(tmp_path, tiny_model_path, teacher, blocks, asked):
    others = [load(tiny_model_path, dtype="bfloat16"), load(tiny_model_path, truncate_dim=4), load(tiny_model_path)]
    others.append(load(tiny_model_path, prompts={"query": "the "}, default_prompt_name="query"))
    others[2].max_seq_length = 5
    for model in (teacher, *others):
        with pytest.warns(UserWarning, match="were cut") if model.max_seq_length == 5 else nullcontext():
            embeddings(tmp_path, model, blocks)
    assert len(asked) == 5 * 3
    assert len(os.listdir(tmp_path)) == 5
    (tmp_path / "file").write_text("x")
    message = error(TeacherCache, tmp_path / "file", teacher)
    assert message.startswith(f"cannot make the cache folder {tmp_path / 'file'}/")


def test_embeddings_that_teach_nothing_are_refused_and_not_stored(tmp_path, teacher, blocks, monkeypatch):
    for value, message in (
        (np.nan, "must be finite numbers, got NaN or infinity for 3 of 3 texts, such as '"),
        (0.0, "must not all be zeros, got zeros for all 8 texts; choose a teacher that knows their language"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(TeacherCache, "encode", lambda _, texts, value=value: np.full((len(texts), 8), value, "f4"))
            assert message in error(embeddings, tmp_path / str(value), teacher, blocks)
    assert embeddings(tmp_path / "nan", teacher, blocks).any()


def test_texts_that_a_teacher_reads_in_part_are_counted(teacher, monkeypatch):
    texts = ["the cat", "the cat sat on the mat", "x" * 30, *["the cat sat on the mat " * 9] * 3]
    assert seen_in_part(teacher, texts) == 0
    teacher[0].max_seq_length = 20
    assert seen_in_part(teacher, texts[:2]) == 0
    assert seen_in_part(teacher, texts[3:]) == 3
    monkeypatch.setattr("ctx_embed.training.distillation.job.SAMPLED_TEXTS", 1)
    assert seen_in_part(teacher, texts[3:]) == 3
