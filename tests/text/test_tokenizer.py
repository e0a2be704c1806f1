"""Token ids are the tokenizer's own; phrases; texts of which the model knows fewer than half of the words."""

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from sentence_transformers import SentenceTransformer
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import Unigram, WordLevel, WordPiece

import ctx_embed
from ctx_embed.kernel import kernel, library
from ctx_embed.systems import untrained
from ctx_embed.text import tokenizer as tokenizers_of_texts
from ctx_embed.text.normalisation import normalised
from ctx_embed.text.tokenizer import Phrases, TextTokenizer
from tests.helpers.errors import error

ODD = [*"\x00\x0b\x1c\x85\xa0\u2028\u3000\u200bé日ßİ.", "e\u0301", "[UNK]", "[PAD]"]
WORDS = st.lists(st.sampled_from(["the", "cat", "gardens", " ", "  ", "\n", "\t", *ODD])).map("".join)


def plain(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    read = [normalised(text) for text in texts]
    return [encoding.ids for encoding in tokenizer.encode_batch(read, add_special_tokens=False)]


def split(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, lengths.cumsum()[:-1])]


def small(**parts) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2, ".": 3}, unk_token="[UNK]"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


PIECES = st.one_of(st.sampled_from(["a.b", "don't", "[x]", "=\u0338", ".\u0301"]), st.text(max_size=3))
CUT = st.lists(PIECES, max_size=9).map("".join)


@pytest.mark.parametrize("shipped", [False, True])
@settings(max_examples=250)
@given(texts=st.lists(st.one_of(WORDS, CUT, st.text(st.characters(exclude_categories=["Cs"]))), min_size=1))
def test_ids_are_the_tokenizers_own(tokenizer, embedder, shipped, texts):
    ours = TextTokenizer(embedder.text_tokenizer.tokenizer if shipped else tokenizer)
    assert ours.wordwise
    for _ in range(2):  # new words, then remembered ones
        assert split(*ours(texts)) == plain(ours.tokenizer, texts)


letters = st.text("abB1é#", max_size=7)


@pytest.mark.skipif(kernel() is None, reason="only the kernel does WordPiece")
@settings(max_examples=300)
@given(
    entries=st.sets(st.builds(str.__add__, st.sampled_from(["", "##"]), letters.filter(bool))),
    texts=st.lists(st.lists(letters, max_size=4).map(" ".join), min_size=1, max_size=4),
    longest=st.integers(1, 9),
    lowercase=st.booleans(),
    before=st.sampled_from([0, 2000]),
)
def test_words_have_the_ids_of_the_tokenizers_wordpiece(entries, texts, longest, lowercase, before):
    vocabulary = {entry: place for place, entry in enumerate(["[UNK]", '"', "\\", *sorted(entries)])}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=longest))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokenizers_of_texts, "WORDS_BEFORE_WORDPIECE", before)
        ours = TextTokenizer(tokenizer)
        for _ in range(2):
            assert split(*ours(texts)) == plain(tokenizer, texts)
    in_c = lowercase and not before and any(map(str.split, texts))
    assert (ours._words is not None and ours._words.reads_wordpiece) == in_c


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
    lowers = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    cuts = pre_tokenizers.Sequence([spaces, pre_tokenizers.Punctuation()])
    for parts in ({}, {"normalizer": lowers}, {"pre_tokenizer": cuts}):
        assert TextTokenizer(small(**{"pre_tokenizer": spaces, **parts})).wordwise
    joining = small(pre_tokenizer=spaces, normalizer=normalizers.Replace("a b", "b"))
    others = [small(pre_tokenizer=part) for part in (pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace())]
    for tokenizer in (small(), joining, *others):
        assert not TextTokenizer(tokenizer).wordwise
    # A tokenizer that joins words is asked for whole texts.
    with_phrase = small(pre_tokenizer=spaces)
    with_phrase.add_tokens([AddedToken("a b")])
    assert not TextTokenizer(with_phrase).wordwise
    assert split(*TextTokenizer(with_phrase)(["a b", "b a"])) == plain(with_phrase, ["a b", "b a"]) == [[4], [2, 1]]


@pytest.mark.skipif(kernel() is None, reason="only the kernel remembers words")
def test_words_are_tokenized_once_and_begun_anew_at_the_limit(tokenizer, monkeypatch):
    monkeypatch.setattr(library, "FEW_WORDS", 4)
    ours = TextTokenizer(tokenizer)
    ours._lowers_words = False  # else entries are read without the tokenizer
    asked: list[str] = []
    original = ours._tokenized
    monkeypatch.setattr(ours, "_tokenized", lambda words: asked.extend(words) or original(words))
    ours(["the cat", "the dog"])
    ours(["dog cat"])
    assert asked == ["the", "cat", "dog"]
    for word in ("garden", "sat", "mat", "on", "garden"):
        assert split(*ours([word])) == plain(tokenizer, [word])
    assert asked[3:] == ["garden", "sat", "mat", "on", "garden"]


def test_text_without_spaces_is_cut_where_the_tokenizer_cuts(embedder):
    ours = TextTokenizer(embedder.text_tokenizer.tokenizer)
    for text in (
        *("x" * 100_000, "ab.cd," * 20_000, "中文" * 20_000, "中。文" * 20_000 + "end", "é" * 6000),
        *("a" * 5000 + "\u0301" + "b" * 5000, "\u3000".join(["cat"] * 5000), "9" * 4096 + "z." * 5000),
    ):
        assert split(*ours([text])) == plain(ours.tokenizer, [text]), text[:9]


def test_no_texts_give_no_ids_and_a_copy_for_another_process_forgets(tokenizer):
    ours = TextTokenizer(tokenizer)
    assert [part.tolist() for part in ours([])] == [[], []]
    ours(["the cat"])
    copy = pickle.loads(pickle.dumps(ours))
    assert copy._words is None
    assert split(*copy(["the cat"])) == split(*ours(["the cat"]))


# Phrases of four entries: 4 = (0, 1), 5 = (1, 1), 6 = (4, 2), 7 = (6, 6).
PAIRS = [[0, 1], [1, 1], [4, 2], [6, 6]]


def merged_in_passes(ids: list[int]) -> list[int]:
    """One text, pass by pass, from left to right."""
    for numbers in ({(0, 1): 4, (1, 1): 5}, {(4, 2): 6}, {(6, 6): 7}):
        result, place = [], 0
        while place < len(ids):
            pair = tuple(ids[place : place + 2])
            result.append(numbers.get(pair, ids[place]))
            place += 2 if pair in numbers else 1
        ids = result
    return ids


@given(st.lists(st.integers(0, 3), max_size=12))
@example([0, 1, 2, 0, 1, 2])
@example([1, 1, 1])  # the left pair of two that overlap
def test_phrases_of_any_text(ids):
    merged = Phrases(PAIRS, 4).merged(np.array(ids, np.int32))
    assert merged.dtype == np.int32
    assert merged.tolist() == merged_in_passes(ids)


def test_texts_of_phrases_and_pairs_that_cannot_be():
    assert Phrases(PAIRS, 4).texts(["a", "b", "c", "d"]) == ["a b", "b b", "a b c", "a b c a b c"]
    for pairs, message in (
        ([[0, 1, 2]], "phrases must have shape (phrases, 2) with at least one phrase, got (1, 3)"),
        (np.zeros((0, 2)), "phrases must have shape (phrases, 2) with at least one phrase, got (0, 2)"),
        ([[0, 4]], "phrase 0 is [0, 4]: its parts must be entries below 4 or phrases before it"),
        ([[0, 1], [-1, 2]], "phrase 1 is [-1, 2]: its parts must be entries below 4 or phrases before it"),
        ([[0, 1], [0, 1]], "a pair occurs twice among the phrases"),
    ):
        assert error(Phrases, pairs, 4) == message


UNKNOWN = ["", " \n", "кошка сидит.", "Cat № 7: 日本語 (2024)!", "مرحبا بالعالم"]
TEXTS = ["A cat sleeps.", *UNKNOWN, "кошка cat", "!"]
WARNING = "5 of 8 texts have too few words that the model knows"


@pytest.mark.parametrize("by", ["numpy", "torch", "third party", "bfloat16", "bigru", "transformer"])
def test_a_text_of_unknown_words_is_embedded_as_zeros_with_one_warning(by, embedder, shipped_model):
    """Such a text is like no other, whatever embeds it."""
    model = {"numpy": embedder, "torch": shipped_model}.get(by)
    if by == "third party":
        model = SentenceTransformer(str(ctx_embed.path()), trust_remote_code=True, device="cpu")
    elif by == "bfloat16":
        model = ctx_embed.load(device="cpu", dtype="bfloat16")
    model = model or untrained(by)
    for _ in range(2):
        with pytest.warns(UserWarning, match=WARNING) as caught:
            # Others warn for a batch.
            found = model.encode(TEXTS, batch_size=2 if by in ("numpy", "torch") else 8)
        assert len(caught) == 1
        assert by != "numpy" or caught[0].filename == __file__
    lengths = np.linalg.norm(np.asarray(found, np.float32), axis=1)
    np.testing.assert_allclose(lengths, [1, 0, 0, 0, 0, 0, 1, 1], atol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode(["A cat sleeps.", "кошка cat"])
    if by == "numpy":
        parts = model.explain("日本語", model.encode("a cat"))
        assert (parts.tokens, parts.cosine) == ([], 0)


KNOWN = ["the cat кошка собака", "Иван said hi to Пётр", "Straße in München", "I ♥ NY", "3 + 4 = 7", "?!", "C++"]
TOO_FEW = ["Кошка спит на диване.", "北京今天下雨.", "الطقس جميل اليوم, 25 (2024).", "Поезд № 5, 12:30", "👍👍 !!"]
TOO_FEW += ["The dog and кошка, собака, птица, лошадь"]


# Signs that the model does not know are no words, also in a part that it can read.
SIGNS, FOREIGN = "The cat sleeps, and the dog, and the bird ♥ ♥ ♥ ♥ ", "кошка собака птица лошадь корова овца мышь "
KNOWN.append(SIGNS * 300 + FOREIGN * 300)
TOO_FEW.append(SIGNS * 200 + FOREIGN * 300)


@pytest.mark.parametrize("text", [*KNOWN, *TOO_FEW], ids=range(len(KNOWN + TOO_FEW)))
def test_a_text_is_read_if_half_of_its_words_are_known(embedder, text):
    read = text in KNOWN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not read else "error")
        assert embedder.encode(text).any() == read
        assert embedder.encode([text, "A cat sleeps."], prompt="query: ")[0].any() == read
    # A text that grows is judged as a whole.
    grown = f"{text} " * 20 if len(text) < 100 else text
    for unit in (1, 100, 10_000):
        state = embedder.state()
        for start in range(0, len(grown), unit):
            state.add(grown[start : start + unit])
        assert state.embedding().any() == read


def test_a_growing_text_is_like_no_other_until_a_token_is_known(embedder):
    state = embedder.state()
    for piece in ("日本語 " * 40, "кошка сидит"):
        state.add(piece)
        assert not state.embedding().any()
    restored = embedder.state(state.to_bytes())
    other = embedder.state()
    other.add("日本語 " * 40)
    restored.merge(other)
    restored.add(" cat")
    assert not restored.embedding().any()
    restored.add(" cat" * 300)
    text = "日本語 " * 40 + "кошка сидит" + "日本語 " * 40 + " cat" * 301
    np.testing.assert_allclose(restored.embedding(), embedder.encode(text), atol=2e-5)
    assert restored.embedding().any()


def test_without_normalisation_the_first_context_stays(embedder, shipped_model):
    with pytest.warns(UserWarning, match="5 of 5 texts .*: they are all embedded alike"):
        assert (embedder.encode(UNKNOWN, normalize=False) == 1).all()
    plain = SentenceTransformer(modules=[shipped_model[0].__class__.load(str(ctx_embed.path()))], device="cpu")
    with pytest.warns(UserWarning, match="all embedded alike"):
        assert (plain.encode(UNKNOWN) == 1).all()
    # A unigram names its unknown entry.
    pieces = [("<s>", 0.0), ("<unk>", 0.0), ("a", -1.0)]
    assert TextTokenizer(Tokenizer(Unigram(pieces, unk_id=1))).unknown.tolist() == [1]
    assert not len(TextTokenizer(Tokenizer(Unigram(pieces))).unknown)
