from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_embed import InputError, SearchIndex
from ctx_embed.index.writing.chunking import checked_chunk, sentences, tokenizer_of, tokens, whole, words


def parts(chunk, text):
    return [text[start:stop] for start, stop in chunk(text)]


def test_sentences():
    text = 'He left. "Why?" she asked. Dr. no. 5 apples cost 3.5 euros!  Next\n\n line one\nline two'
    assert parts(sentences, text) == [
        "He left.",
        '"Why?" she asked.',
        "Dr. no.",
        "5 apples cost 3.5 euros!",
        "Next",
        "line one\nline two",
    ]
    assert parts(sentences, "") == [""]
    assert parts(sentences, "  \n\n ") == ["  \n\n "]


def test_tokens_are_cut_between_words():
    assert parts(tokens(2, words), "one two three four five") == ["one two", "three four", "five"]

    def halves(text):
        return [
            span for start, stop in words(text) for span in ((start, (start + stop) // 2), ((start + stop) // 2, stop))
        ]

    assert parts(tokens(3, halves), "abcd efgh ijkl") == ["abcd", "efgh", "ijkl"]
    assert parts(tokens(4, halves), "abcd efgh ijkl") == ["abcd efgh", "ijkl"]
    assert parts(tokens(1, halves), "abcd") == ["ab", "cd"]
    assert parts(tokens(3, words), "") == [""]


@given(text=st.text("ab .!?\n", max_size=60), size=st.integers(1, 5))
def test_passages_lose_no_word_and_do_not_overlap(text, size):
    for chunk in (whole, sentences, tokens(size, words)):
        spans = chunk(text)
        assert all(start <= stop for start, stop in spans)
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
        assert "".join("".join(parts(chunk, text)).split()) == "".join(text.split())
    assert all(len(words(part)) <= size for part in parts(tokens(size, words), text))


def test_the_models_own_tokens_count(tiny_model):
    offsets = tokenizer_of(tiny_model)
    text = "the cat sat on the mat"
    found = [text[start:stop] for start, stop in offsets(text)]
    assert found == [token.removeprefix("##") for token in tiny_model[0].backend_tokenizer.encode(text).tokens]
    assert parts(tokens(4, offsets), text)[0].split()[:2] == ["the", "cat"]


@pytest.mark.parametrize("chunk", ["", "words", "tokens", "tokens:", "tokens:0", "tokens:-1", "tokens:x", 5, None])
def test_a_chunk_that_cannot_be_used(chunk, tmp_path, hash_model):
    with pytest.raises(InputError) as caught:
        SearchIndex.create(tmp_path / "index", hash_model, chunk=chunk)
    message = f"chunk must be none, sentences or tokens:N with a number of tokens N, e.g. tokens:256, got {chunk!r}"
    assert str(caught.value) == message
    assert checked_chunk("tokens:7") == "tokens:7"


def test_passages_are_found_with_their_document(tmp_path, hash_model):
    text = "The cat sat. A dog barked. Rain fell."
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:
        index.add([text, "One sentence only."], ["long", "short"], [{"n": 1}, {"n": 2}])
        assert index.count() == 2
        hit = index.search("A dog barked.", k=1)[0]
        assert (hit.id, hit.text, hit.document, hit.start, hit.metadata) == (
            "long",
            "A dog barked.",
            text,
            13,
            {"n": 1},
        )
        assert index.search("barking", mode="words")[0].start == 13
        assert len(index.search("x", k=10)) == 4
        assert len(index.search("x", k=10, where="n = 1")) == 3
        assert index.get("long").text == text
        assert sorted(hash_model.seen) == ["A dog barked.", "One sentence only.", "Rain fell.", "The cat sat."]
        index.upsert(["The cat sat. New."], ["long"])
        assert [hit.text for hit in index.search("x", k=10) if hit.id == "long"] != []
        assert hash_model.seen[4:] == ["New."]
        index.compact()
        assert sorted(hit.text for hit in index.search("x", k=10)) == ["New.", "One sentence only.", "The cat sat."]
        assert index.delete("long") == 1
        assert [hit.text for hit in index.search("x", k=10)] == ["One sentence only."]
        assert index.verify() == []
