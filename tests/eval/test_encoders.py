import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from ctx_embed import loading
from ctx_embed.encoders import as_encoder
from ctx_embed.eval import EvaluationOptions, evaluate
from ctx_embed.eval.encoders import BASELINES, WORD, Tfidf, load_encoder
from ctx_embed.eval.scoring.score import reading_words
from ctx_embed.fingerprint import fingerprint
from ctx_embed.systems import SYSTEMS
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error


def test_a_folder_and_the_default(tiny_model, tiny_model_path, sentences, monkeypatch):
    encoder = load_encoder(str(tiny_model_path))
    assert encoder.name == str(tiny_model_path)
    assert encoder.fingerprint == fingerprint(tiny_model)
    np.testing.assert_allclose(encoder.encode(sentences), tiny_model.encode(sentences), atol=1e-6)
    monkeypatch.setattr(loading, "load", lambda path=None: tiny_model if path is None else pytest.fail(path))
    assert load_encoder("default").fingerprint == fingerprint(tiny_model)


def test_a_slip_of_a_baseline_names_them_all():
    names = ", ".join(sorted(["default", "minilm", *BASELINES, *SYSTEMS]))
    known = f"known are {names}, or the folder of a SentenceTransformer"
    assert error(load_encoder, "tf-idf") == f"unknown encoder 'tf-idf': did you mean 'tfidf'? {known}"
    assert error(load_encoder, "./models/mine") == "./models/mine: no such model folder"
    assert error(load_encoder, "model2vec:./nowhere").startswith("model2vec:./nowhere: no model2vec model there (")
    message = "tfidf+words: tfidf reads words already; name an encoder of meaning, such as default"
    assert error(load_encoder, "tfidf+words") == message
    said = "an encoder must have a method encode(list of texts) -> array, got an int"
    assert error(as_encoder, 3) == said


def test_how_a_model_is_asked_is_part_of_the_key(tokenizer):
    model = make_model(tokenizer)
    plain = as_encoder(model, "m")
    model.prompts, model.default_prompt_name = {"query": "ask: "}, "query"
    asked = as_encoder(model, "m")
    assert plain.fingerprint == asked.fingerprint
    assert plain.key != asked.key


def test_anything_that_encodes():
    class Lengths:
        def encode(self, texts):
            return np.array([[len(text)] for text in texts])

    encoder = as_encoder(Lengths())
    assert (encoder.name, encoder.key) == ("Lengths", None)
    assert encoder.encode(["abc"]) == [[3]]
    assert as_encoder(encoder) is encoder
    # Random embeddings follow from the text.
    encode = load_encoder("random").encode
    first, second = encode(["a", "b"])
    np.testing.assert_array_equal(encode(["b"])[0], second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.3


def test_model2vec(tmp_path, tokenizer):
    model2vec = pytest.importorskip("model2vec")
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 4)).astype(np.float32)
    model = model2vec.StaticModel(vectors, tokenizer)
    model.save_pretrained(str(tmp_path / "static"))
    encoder = load_encoder(f"model2vec:{tmp_path / 'static'}")
    np.testing.assert_allclose(encoder.encode(["the cat"]), model.encode(["the cat"]), atol=1e-6)
    assert encoder.parameters == vectors.size


def test_words_beside_an_encoder(tmp_path):
    random = np.random.default_rng(0)
    file = tmp_path / "task.tsv"
    labels = random.choice(["bad", "good"], 200)
    file.write_text("".join(f"{label}\t{label} {random.integers(10_000)}\n" for label in labels))
    evaluation = evaluate(["random+words", "random"], str(file), options=EvaluationOptions(protocol="quick"))
    words, alone = (score.mean for score in evaluation.scores.values())
    assert alone < 70 < 95 < words
    said = error(reading_words, lambda train, other: (train, other), [("a", "b")])
    assert "NAME+words needs a task with one text a row" in said


TEXTS = [*SENTENCES, "the cat sat", "", "nowhere-else word"]


def test_tfidf_agrees_with_a_vectorizer_fitted_on_the_training_rows():
    train, other = np.array([0, 1, 2, 3, 4, 5]), np.array([6, 7, 8, 9, 10])
    ours = Tfidf(TEXTS)(train, other)
    reference = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    fitted = reference.fit_transform([TEXTS[row] for row in train])
    np.testing.assert_allclose(ours[0].toarray(), fitted.toarray())
    np.testing.assert_allclose(ours[1].toarray(), reference.transform([TEXTS[row] for row in other]).toarray())
    # No word of theirs is known.
    assert ours[1][[3, 4]].sum() == 0
    assert error(Tfidf, ["", "!?"]) == "tfidf: at least one text must hold a word, got none"
