import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_embed.modules import Contextualizer
from ctx_embed.text.tokenizer import Phrases
from tests.helpers.errors import error

# Of four entries: 4 = (0, 1), 5 = (1, 1), 6 = (4, 2), 7 = (6, 6).
PAIRS = [[0, 1], [1, 1], [4, 2], [6, 6]]


def plain(ids: list[int]) -> list[int]:
    """One text, pass by pass, from left to right."""
    for numbers in ({(0, 1): 4, (1, 1): 5}, {(4, 2): 6}, {(6, 6): 7}):
        result, place = [], 0
        while place < len(ids):
            pair = tuple(ids[place : place + 2])
            result.append(numbers.get(pair, ids[place]))
            place += 2 if pair in numbers else 1
        ids = result
    return ids


def merge(ids: list[int]) -> list[int]:
    merged = Phrases(PAIRS, 4).merged(np.array(ids, np.int32))
    assert merged.dtype == np.int32
    return merged.tolist()


def test_by_hand():
    assert merge([0, 1, 2, 0, 1, 2]) == [7]
    assert merge([1, 1, 1]) == [5, 1]  # the left pair of two that overlap
    assert merge([0, 1, 1]) == [4, 1]
    assert merge([]) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12))
def test_any_text(ids):
    assert merge(ids) == plain(ids)


def test_texts_of_phrases():
    assert Phrases(PAIRS, 4).texts(["a", "b", "c", "d"]) == ["a b", "b b", "a b c", "a b c a b c"]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 1, 2]], "phrases must have shape (phrases, 2) with at least one phrase, got (1, 3)"),
        (np.zeros((0, 2)), "phrases must have shape (phrases, 2) with at least one phrase, got (0, 2)"),
        ([[0, 4]], "phrase 0 is [0, 4]: its parts must be entries below 4 or phrases before it"),
        ([[0, 1], [-1, 2]], "phrase 1 is [-1, 2]: its parts must be entries below 4 or phrases before it"),
        ([[0, 1], [0, 1]], "a pair occurs twice among the phrases"),
    ],
)
def test_pairs_that_cannot_be(pairs, message):
    assert error(Phrases, pairs, 4) == message


def test_a_module_reads_saves_and_loads_phrases(tokenizer, sentences, tmp_path):
    words = tokenizer.encode(sentences[0], add_special_tokens=False).ids
    pairs = np.array([words[:2]])
    module = Contextualizer(tokenizer, 4, steps=1, rank=2, phrases=pairs)
    assert module.entries == module.embedding.num_embeddings == tokenizer.get_vocab_size() + 1
    features = module.preprocess([sentences[0]])
    assert features["input_ids"].tolist() == [[tokenizer.get_vocab_size(), *words[2:]]]
    module.save(str(tmp_path))
    loaded = Contextualizer.load(str(tmp_path))
    assert loaded.phrases.tolist() == pairs.tolist()
    assert loaded.preprocess([sentences[0]])["input_ids"].tolist() == features["input_ids"].tolist()
    assert module.half().phrases.tolist() == pairs.tolist()
    weights = Contextualizer(tokenizer, 4, steps=1, rank=2).embedding.weight
    assert "weights must have shape" in error(Contextualizer, tokenizer, 4, phrases=pairs, weights=weights)
