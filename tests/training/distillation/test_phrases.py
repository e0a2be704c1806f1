import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace

from ctx_embed.modules import Contextualizer
from ctx_embed.text.tokenizer import Phrases, TextTokenizer
from ctx_embed.training.distillation.phrases import Composition, learn_phrases, more_phrases
from ctx_embed.training.distillation.student import leave_own_rows
from ctx_embed.training.vocabulary import learn_vocabulary

TEXTS = ["i don't like new york at all", "they don't like the new york times", "new ideas and york hams"] * 10


@pytest.fixture(scope="module")
def tokenizer():
    return learn_vocabulary(TEXTS, 120, progress=False)


def phrase_texts(tokenizer, pairs) -> list[str]:
    entries = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    return Phrases(pairs, len(entries)).texts(entries)


def test_neighbours_beyond_chance_become_phrases_and_phrases_of_phrases(tokenizer):
    pairs = learn_phrases(TEXTS, tokenizer, 10)
    found = phrase_texts(tokenizer, pairs)
    assert len(found) == 5
    assert "new york" in found
    assert "don ' t like" in found
    assert "ideas new" not in found  # never across two texts
    assert np.array_equal(pairs, learn_phrases(TEXTS[::-1], tokenizer, 10))
    tokens, _ = TextTokenizer(tokenizer, Phrases(pairs, tokenizer.get_vocab_size()))(TEXTS[:1])
    assert len(tokens) < len(tokenizer.encode(TEXTS[0]).ids)


def test_rare_neighbours_are_no_phrases(tokenizer):
    assert learn_phrases(TEXTS[:3], tokenizer, 10) is None
    assert learn_phrases(TEXTS, tokenizer, 0) is None
    assert learn_phrases([], tokenizer, 10) is None


@pytest.mark.parametrize("initial_context", ["ones", "uniform"])
def test_a_phrase_is_trained_as_the_sum_of_its_parts_and_itself(tokenizer, initial_context):
    torch.manual_seed(0)
    pairs = learn_phrases(TEXTS, tokenizer, 10)
    encoder = Contextualizer(tokenizer, 6, steps=2, rank=3, phrases=pairs, initial_context=initial_context)
    own = encoder.embedding.weight.detach().clone()
    expected = own.clone()
    for number, (first, second) in enumerate(pairs.tolist(), tokenizer.get_vocab_size()):
        expected[number] = own[number] + expected[first] + expected[second]
    composition = Composition(encoder)
    ids, lengths = encoder.text_tokenizer(TEXTS[:3])
    ids = torch.from_numpy(ids.astype(np.int64))
    assert bool((ids >= tokenizer.get_vocab_size()).any())
    used = composition.used(ids)
    rows = own[used].requires_grad_()
    trained = composition.embed(ids, lengths.tolist(), used, rows)
    trained.square().sum().backward()
    # A word is trained by the phrases it is in.
    assert rows.grad[used == tokenizer.get_vocab()["york"]].abs().sum() > 0
    with composition.folded():
        torch.testing.assert_close(encoder.embedding.weight.detach(), expected)
        torch.testing.assert_close(encoder.eval().embed(ids, lengths.tolist()), trained, rtol=1e-4, atol=1e-5)
    assert torch.equal(encoder.embedding.weight, own)
    composition.fold()
    torch.testing.assert_close(encoder.embedding.weight.detach(), expected)
    leave_own_rows(encoder)
    torch.testing.assert_close(encoder.embedding.weight.detach(), own)


def test_more_phrases_join_pieces_and_negated_words_after_those_known():
    texts = [
        "the metastasis was not found",
        "a metastasis is not seen in the lung",
        "lungs and metals do not move",
    ] * 30
    words = "the was not found a is seen in lung lungs and metals do move"
    entries = ["[PAD]", "[UNK]", "meta", "##sta", "##sis", *words.split()]
    tokenizer = Tokenizer(WordPiece({entry: number for number, entry in enumerate(entries)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    known = learn_phrases(texts, tokenizer, 2)
    pairs = more_phrases(texts, tokenizer, known, 60)
    assert np.array_equal(pairs[: len(known)], known)
    found = phrase_texts(tokenizer, pairs)
    # Pieces give the whole word, without a space, and no phrase ends in the midst of a word.
    assert "metastasis" in found
    assert not any(text.split()[-1] in ("meta", "metasta") for text in found if " " in text)
    assert "not found" in found
    assert more_phrases(texts, tokenizer, known, 0) is known
    assert more_phrases([], tokenizer, None, 5) is None
