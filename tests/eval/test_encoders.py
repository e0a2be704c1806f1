"""Encoders by their names, their embeddings and the cache of these, and what they cost."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from ctx_embed import model as home
from ctx_embed.eval import EvaluationOptions, evaluate
from ctx_embed.eval.cost import cost_of, measure, sample_of
from ctx_embed.eval.encoders import BASELINES, WORD, EmbeddingCache, Tfidf, as_encoder, load_encoder
from ctx_embed.eval.scoring.score import reading_words
from ctx_embed.eval.tasks import TaskData
from ctx_embed.fingerprint import fingerprint
from ctx_embed.systems import SYSTEMS
from tests.conftest import SENTENCES, make_model
from tests.eval.conftest import encode as rows_of, encoder_of
from tests.helpers.errors import error


def test_a_folder_and_the_default(tiny_model, tiny_model_path, tokenizer, sentences, monkeypatch):
    encoder = load_encoder(str(tiny_model_path))
    assert (encoder.name, encoder.fingerprint) == (str(tiny_model_path), fingerprint(tiny_model))
    np.testing.assert_allclose(encoder.encode(sentences), tiny_model.encode(sentences), atol=1e-6)
    monkeypatch.setattr(home, "load", lambda path, *_, **__: tiny_model if path == "default" else pytest.fail(path))
    assert load_encoder("default").fingerprint == fingerprint(tiny_model)
    # How a model is asked is part of its key.
    model = make_model(tokenizer)
    model.prompts, model.default_prompt_name = {"query": "ask: "}, "query"
    plain, asked = as_encoder(tiny_model, "m"), as_encoder(model, "m")
    assert plain.fingerprint == asked.fingerprint
    short = make_model(tokenizer)
    short.truncate_dim = 4
    assert len({plain.key, asked.key, as_encoder(short, "m").key}) == 3


def test_a_slip_of_a_baseline_names_them_all():
    names = ", ".join(sorted(["default", "minilm", "permissive", "use-multilingual", *BASELINES, *SYSTEMS]))
    known = f"known are {names}, or the folder of a SentenceTransformer"
    assert error(load_encoder, "tf-idf") == f"unknown encoder 'tf-idf': did you mean 'tfidf'? {known}"
    assert error(load_encoder, "./models/mine") == "./models/mine: no such model folder"
    assert error(load_encoder, "model2vec:./nowhere").startswith("model2vec:./nowhere: no model2vec model there (")
    message = "tfidf+words: tfidf reads words already; name an encoder of meaning, such as default"
    assert error(load_encoder, "tfidf+words") == message
    said = "a model must have a method encode(list of texts) -> array, got an int"
    assert error(as_encoder, 3) == said


def test_anything_that_encodes():
    encoder = as_encoder(SimpleNamespace(encode=lambda texts: np.array([[len(text)] for text in texts])))
    assert (encoder.name, encoder.key) == ("SimpleNamespace", None)
    assert encoder.encode(["abc"]) == [[3]]
    assert as_encoder(encoder) is encoder
    # What another process cannot make from its name is measured in this one.
    assert (encoder.by_name, load_encoder("default").by_name) == (False, True)
    # Random embeddings follow from the text.
    encode = load_encoder("random").encode
    first, second = encode(["a", "b"])
    np.testing.assert_array_equal(encode(["b"])[0], second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.3


def test_model2vec(tmp_path, tokenizer):
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 4)).astype(np.float32)
    model = pytest.importorskip("model2vec").StaticModel(vectors, tokenizer)
    model.save_pretrained(str(tmp_path))
    encoder = load_encoder(f"model2vec:{tmp_path}")
    np.testing.assert_allclose(encoder.encode(["the cat"]), model.encode(["the cat"]), atol=1e-6)
    assert encoder.model.parameters == vectors.size


def test_words_beside_an_encoder(tmp_path):
    random, file = np.random.default_rng(0), tmp_path / "task.tsv"
    labels = random.choice(["bad", "good"], 200)
    file.write_text("".join(f"{label}\t{label} {random.integers(10_000)}\n" for label in labels))
    evaluation = evaluate(["random+words", "random"], str(file), options=EvaluationOptions(protocol="quick"))
    words, alone = (score.mean for score in evaluation.scores.values())
    assert alone < 70 < 95 < words
    said = error(reading_words, lambda train, other: (train, other), [("a", "b")])
    assert "NAME+words needs a task with one text a row" in said


TEXTS = [*SENTENCES, "the cat sat", "", "nowhere-else word"]


def test_tfidf_agrees_with_a_vectorizer_fitted_on_the_training_rows():
    train, other = Tfidf(TEXTS)(np.arange(6), np.arange(6, 11))
    reference = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    np.testing.assert_allclose(train.toarray(), reference.fit_transform(TEXTS[:6]).toarray())
    np.testing.assert_allclose(other.toarray(), reference.transform(TEXTS[6:11]).toarray())
    # No word of theirs is known.
    assert other[[3, 4]].sum() == 0
    assert error(Tfidf, ["", "!?"]) == "tfidf: at least one text must hold a word, got none"


# Embeddings and their cache
NEEDED = "must return a row of numbers for each text"
ODD = ["a longer text", "", "short", "the longest text of them all", "short", "\ud800 alone"]


def test_rows_in_the_order_of_the_texts_whatever_the_batches(drawn):
    expected = rows_of([text.replace("\ud800", "�") for text in ODD]).astype(np.float32)
    for batch_size in (1, 2, 256):
        embeddings = drawn.model.encode(ODD, batch_size)
        assert embeddings.dtype == np.float32
        np.testing.assert_array_equal(embeddings, expected)
    # A tensor serves as well.
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.ones(1, 2, dtype=dtype, requires_grad=True)
        assert (encoder_of("torch", lambda _, rows=rows: rows).encode(["a"]) == np.ones((1, 2), "f4")).all()


def test_unusable_embeddings_name_the_encoder():
    for rows, message in (
        (np.zeros((1, 4)), f"{NEEDED}, got an array (1, 4) of float64 for 2 texts"),
        *((np.array([[1.0], [bad]]), "returned NaN or infinity for the text 'b'") for bad in (1e300, np.nan)),
        (np.array([["1"], ["2"]]), f"{NEEDED}, got an array (2, 1) of <U1 for 2 texts"),
        (np.zeros((2, 0)), f"{NEEDED}, got an array (2, 0) of float64 for 2 texts"),
        ([[1.0], [1.0, 2.0]], f"{NEEDED}, got rows of different lengths for 2 texts"),
    ):
        odd = encoder_of("odd", lambda texts, rows=rows: rows)
        assert error(odd.encode, ["a", "b"]) == f"odd: {message}"
    odd = encoder_of("odd", lambda texts: np.ones((len(texts), len(texts[0]))))
    message = "odd: must return 1 numbers for each text, got an array (1, 2) of float64 for 1 texts"
    assert error(odd.model.encode, ["a", "bb"], 1) == message


def test_embeddings_are_kept_by_encoder_and_texts(drawn, tmp_path):
    seen: list[str] = []
    cache = EmbeddingCache(encoder_of("counted", lambda texts: seen.extend(texts) or drawn.encode(texts)))
    first, second = cache(["a", "b", "a"]), cache(["b", "c"])
    assert sorted(seen) == ["a", "b", "c"]
    np.testing.assert_array_equal([*first, *second], drawn.encode([*"ababc"]).astype(np.float32))
    assert drawn.encode([]).shape == (0, 8)
    first = EmbeddingCache(drawn, tmp_path)(ODD[:5])
    kept = encoder_of("drawn", lambda texts: 1 / 0, drawn.fingerprint, drawn.key)
    np.testing.assert_array_equal(EmbeddingCache(kept, tmp_path)(ODD[:5]), first)
    for other, texts in ((kept, ODD[1:5]), (replace(kept, key="another"), ODD[:5])):
        with pytest.raises(ZeroDivisionError):
            EmbeddingCache(other, tmp_path)(texts)
    # Texts are told apart by their borders, and without a key nothing is kept.
    for encoder, texts in ((replace(drawn, key=None), ["a"]), (drawn, ["a", "b c"]), (drawn, ["a b", "c"])):
        EmbeddingCache(encoder, tmp_path)(texts)
    assert len(list(tmp_path.rglob("*.npz"))) == 3
    # A damaged file is made anew.
    first = EmbeddingCache(drawn, tmp_path / "damaged")(["a", "b"])
    (path,) = (tmp_path / "damaged").rglob("*.npz")
    whole = path.read_bytes()
    # A byte of the name, one of the head of the array, one of the numbers.
    changed = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (32, 100, 300)]
    for damage in (b"", b"not numpy", whole[:-4], *changed):
        path.write_bytes(damage)
        np.testing.assert_array_equal(EmbeddingCache(drawn, tmp_path / "damaged")(["a", "b"]), first)
        assert path.read_bytes() == whole
    np.testing.assert_array_equal(np.load(path)["embeddings"], first)


# Costs
def test_the_sample_is_drawn_evenly_without_judgements():
    data = {
        "MR": TaskData("", {"MR": [("1", f"text {i}") for i in range(6)]}),
        "adi": TaskData("", {"corpus": [("1", "paper"), ("2", "\ud800")], "qrels": [("1", "2", "3")]}),
    }
    assert sample_of(data) == [*(f"text {i}" for i in range(6)), "paper", "\ufffd"]
    assert sample_of(data, 3) == ["text 0", "text 3", "paper"]


def test_one_batch_is_not_counted_and_the_time_ends_it():
    seen: list[list[str]] = []
    encoder, texts = encoder_of("e", lambda texts: seen.append(texts) or np.ones((len(texts), 2))), ["a"] * 600
    assert measure(encoder, texts).texts == 600
    assert [*map(len, seen)] == [256, 256, 256, 88]
    assert measure(encoder, texts, 0.0).texts == 256
    # A run that is cut short has met short and long texts.
    seen.clear()
    measure(encoder, ["a" * size for size in range(1, 10) for _ in range(256)])
    lengths = [len(batch[0]) for batch in seen[1:]]
    assert abs(lengths[0] - lengths[1]) == 7
    assert sorted(lengths) == [*range(1, 10)]


def test_a_named_encoder_is_measured_in_a_process_of_its_own():
    cost = cost_of(load_encoder("random"), ["a text", "another"])
    assert (cost.texts, cost.parameters) == (2, 0)
    assert cost.texts_per_second > 0
    assert cost.peak_megabytes is None or 5 < cost.peak_megabytes < 2000
    lost = encoder_of("model2vec:./lost", lambda texts: np.ones((len(texts), 1)), by_name=True)
    assert error(cost_of, lost, ["a"]).startswith("encoder 'model2vec:./lost': the cost could not be measured (")


def test_data_are_read_from_the_folder_of_the_environment(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CTX_EMBED_DATA", str(tmp_path / "none"))
    assert error(evaluate, ["tfidf"], "MR").startswith(
        f"{tmp_path / 'none'}: no such data folder; name one that exists"
    )
    monkeypatch.setenv("CTX_EMBED_DATA", str(folder))
    assert not evaluate(["tfidf"], "MR", options=EvaluationOptions(protocol="quick")).failures
