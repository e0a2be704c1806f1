"""Remembered words must give exactly what the tokenizer gives."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel, WordPiece

from ctx_embed.kernel import kernel, library
from ctx_embed.text import tokenizer as tokenizers_of_texts
from ctx_embed.text.normalisation import normalised
from ctx_embed.text.tokenizer import TextTokenizer, is_wordwise

ODD = [*"\x00\x0b\x1c\x85\xa0\u2028\u3000\u200bé日ßİ.", "e\u0301", "[UNK]", "[PAD]"]
WORDS = st.lists(st.sampled_from(["the", "cat", "gardens", " ", "  ", "\n", "\t", *ODD])).map("".join)


def plain(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    read = [normalised(text) for text in texts]
    return [encoding.ids for encoding in tokenizer.encode_batch(read, add_special_tokens=False)]


def split(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, lengths.cumsum()[:-1])]


def small(normalizer=None, pre_tokenizer=None) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2, ".": 3}, unk_token="[UNK]"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(WORDS, min_size=1))
def test_ids_are_the_tokenizers_own(tokenizer, texts):
    ours = TextTokenizer(tokenizer)
    assert ours.wordwise
    for _ in range(2):  # new words, then remembered ones
        assert split(*ours(texts)) == plain(tokenizer, texts)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_gives_the_tokenizers_own_ids(tokenizer, text):
    assert split(*TextTokenizer(tokenizer)([text, "the cat"])) == plain(tokenizer, [text, "the cat"])


letters = st.text("abB1é#", max_size=7)


@pytest.mark.skipif(kernel() is None, reason="only the kernel does WordPiece")
@settings(max_examples=300, deadline=None)
@given(
    entries=st.sets(st.builds(str.__add__, st.sampled_from(["", "##"]), letters.filter(bool))),
    texts=st.lists(st.lists(letters, max_size=4).map(" ".join), min_size=1, max_size=4),
    longest=st.integers(1, 9),
    lowercase=st.booleans(),
)
def test_the_kernel_does_wordpiece_as_the_tokenizer_does(entries, texts, longest, lowercase):
    vocabulary = {entry: place for place, entry in enumerate(["[UNK]", '"', "\\", *sorted(entries)])}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=longest))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokenizers_of_texts, "WORDS_BEFORE_WORDPIECE", 0)
        ours = TextTokenizer(tokenizer)
        for _ in range(2):
            assert split(*ours(texts)) == plain(tokenizer, texts)
    assert (ours._words is not None and ours._words.reads_wordpiece) == (lowercase and any(map(str.split, texts)))


@pytest.mark.skipif(kernel() is None, reason="only the kernel does WordPiece")
def test_the_tokenizer_reads_words_if_wordpiece_does_not_fit_in_the_kernel(embedder, monkeypatch):
    monkeypatch.setattr(tokenizers_of_texts, "WORDS_BEFORE_WORDPIECE", 0)
    texts = ["The unhappiest cats sat", "unhappily", "x" * 300 + " Catss"]
    for most in (4, 64, 1 << 18):
        monkeypatch.setattr(library, "MOST_WORDS", most)
        ours = TextTokenizer(embedder.text_tokenizer.tokenizer)
        for _ in range(3):
            assert split(*ours(texts)) == plain(ours.tokenizer, texts)


def test_wordwise_is_seen_from_the_parts():
    spaces = pre_tokenizers.WhitespaceSplit()
    assert is_wordwise(small(pre_tokenizer=spaces))
    assert is_wordwise(small(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), spaces))
    assert is_wordwise(small(pre_tokenizer=pre_tokenizers.Sequence([spaces, pre_tokenizers.Punctuation()])))
    assert not is_wordwise(small())
    assert not is_wordwise(small(pre_tokenizer=pre_tokenizers.Punctuation()))
    assert not is_wordwise(small(pre_tokenizer=pre_tokenizers.Metaspace()))
    assert not is_wordwise(small(normalizers.Replace("a b", "b"), spaces))
    with_phrase = small(pre_tokenizer=spaces)
    with_phrase.add_tokens([AddedToken("a b")])
    assert not is_wordwise(with_phrase)


def test_a_tokenizer_that_joins_words_is_asked_for_whole_texts():
    tokenizer = small(pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    tokenizer.add_tokens([AddedToken("a b")])
    assert split(*TextTokenizer(tokenizer)(["a b", "b a"])) == plain(tokenizer, ["a b", "b a"]) == [[4], [2, 1]]


@pytest.mark.skipif(kernel() is None, reason="only the kernel remembers words")
def test_words_are_tokenized_once_and_begun_anew_at_the_limit(tokenizer, monkeypatch):
    monkeypatch.setattr(library, "MOST_WORDS", 4)
    ours = TextTokenizer(tokenizer)
    asked: list[str] = []
    original = ours._of_words
    monkeypatch.setattr(ours, "_of_words", lambda words: asked.extend(words) or original(words))
    ours(["the cat", "the dog"])
    ours(["dog cat"])
    assert asked == ["the", "cat", "dog"]
    for word in ("garden", "sat", "mat", "on", "garden"):
        assert split(*ours([word])) == plain(tokenizer, [word])
    assert asked[3:] == ["garden", "sat", "mat", "on", "garden"]


PIECES = st.one_of(st.sampled_from(["a.b", "don't", "[x]", "=\u0338", ".\u0301"]), st.text(max_size=3))


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(st.lists(PIECES, max_size=9).map("".join), max_size=5))
def test_the_shipped_tokenizer_cuts_where_words_may_be_cut(embedder, texts):
    ours = TextTokenizer(embedder.text_tokenizer.tokenizer)
    for _ in range(2):
        assert split(*ours(texts)) == (plain(ours.tokenizer, texts) if texts else [[]])


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "ab.cd," * 20_000,
        "中文" * 20_000,
        "中。文" * 20_000 + "end",
        "a" * 5000 + "\u0301" + "b" * 5000,
        "\u3000".join(["cat"] * 5000),
        "é" * 6000,
        "9" * 4096 + "z." * 5000,
    ],
    ids=lambda text: f"{text[:4]}-{len(text)}",
)
def test_text_without_spaces_is_cut_where_the_tokenizer_cuts(embedder, text):
    ours = TextTokenizer(embedder.text_tokenizer.tokenizer)
    assert split(*ours([text])) == plain(ours.tokenizer, [text])


def test_nothing_gives_no_ids_and_a_copy_for_another_process_forgets(tokenizer):
    ours = TextTokenizer(tokenizer)
    for texts in ([], [""], ["", " ", ""]):
        ids, lengths = ours(texts)
        assert (len(ids), lengths.tolist()) == (0, [0] * len(texts))
    ours(["the cat"])
    copy = pickle.loads(pickle.dumps(ours))
    assert copy._words is None
    assert split(*copy(["the cat"])) == split(*ours(["the cat"]))
