import numpy as np
import pytest

from ctx_embed import TextClassifier
from ctx_embed.classify import predictor as prediction
from ctx_embed.classify.head import Head, Vocabulary, Words
from ctx_embed.classify.predictor import Predictor


class Lengths:
    """Embeds a text as its number of characters and of spaces."""

    def embed(self, texts):
        return np.array([[len(text), text.count(" ")] for text in texts], np.float32)


def predictor(multi_label: bool = False) -> Predictor:
    vocabulary = Vocabulary(["good", "film"], np.array([[0, 1]]))
    words = Words(vocabulary, np.float32([[2, 0, 0], [0.5, 0, 0], [1, -1, 0]]))
    weight = np.float32([[0.5, 0], [0, 0.25], [0, -9]])
    return Predictor(Lengths(), Head(weight, np.float32([1, 0, 0]), ["a", "b", "c"], multi_label, words=words))


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_parts_add_up_to_the_logit(multi_label):
    text = "a Good,good film"
    found, *_ = predictor(multi_label).explain(text)
    logits = predictor(multi_label).logits([text])[0]
    assert found.label == "a"
    assert found.logit == pytest.approx(logits[0] - (0 if multi_label else logits.mean()), rel=1e-5)
    assert found.logit == pytest.approx(found.bias + found.meaning + sum(part for _, part in found.words), rel=1e-5)
    # Five words: 2 good, 1 film, and one pair, each over sqrt(2 * 5).
    parts = dict(found.words)
    assert list(parts) == ["good", "good film", "film"]
    if multi_label:
        assert parts["good"] == pytest.approx(4 / 10**0.5)


def test_a_word_is_compared_with_all_words_spelled_alike():
    """Here the logit counts characters, but not those that the text has between its words, or none."""
    found, *_ = predictor(multi_label=True).explain("good,good     FILM")
    # "good , good film" has 16 characters; without a word, a space goes, too.
    assert dict(found.of_meaning) == {"good": 5.0, "film": 2.5, ",": 1.0}
    assert found.meaning == 0.5 * len("good,good     FILM")


def test_as_many_words_are_left_out_as_are_shown(monkeypatch):
    monkeypatch.setattr(prediction, "MOST_WORDS", 3)
    found, *_ = predictor(multi_label=True).explain("one two three four")
    assert [word for word, _ in found.of_meaning] == ["three", "one", "two"]


def test_without_words():
    texts = ["good food", "lovely staff", "cold soup", "rude waiter"]
    classifier = TextClassifier(words=False).fit(texts, ["good", "good", "bad", "bad"])
    ((found,),) = classifier.explain("rude staff, rude")
    assert found.words == []
    assert found.logit == pytest.approx(found.bias + found.meaning, abs=1e-6)
    assert {word for word, _ in found.of_meaning} <= {"rude", "staff", ","}
    ((nothing,),) = classifier.explain([""])
    assert (nothing.words, nothing.of_meaning) == ([], [])
    assert classifier.explain([]) == []
