"""NumPy gives what torch gives: the same vectors and the same fingerprint, from the same files."""

import json
import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

import ctx_embed
from ctx_embed.fingerprint import fingerprint
from ctx_embed.kernel import kernel
from ctx_embed.loading import load_embedder
from ctx_embed.numpy_model import Embedder, UnsupportedModelError
from ctx_embed.numpy_model import embedder as embedding
from ctx_embed.numpy_model.embedder import batches, embed_in_batches
from ctx_embed.systems import system
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error

NEAR = 2e-5
ODD = [
    "",
    " \n\t ",
    "a",
    "[UNK] [PAD]",
    "\ud800 lone",
    "e\u0301te\u0301",
    "\x0b\x1c\x85 disputed spaces",
    "null\x00byte",
]
ODD += ["日本語のテキスト", "кошка сидит на окне", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก"]
ODD += ["안녕하세요 세계", "😀😡👩‍👩‍👧", "x" * 5000, "of the of the of the in the of the"]


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.float32
    return float(np.abs(found - expected).max())


def saved(tokenizer, folder, **options) -> SentenceTransformer:
    """A saved model whose every parameter counts."""
    model = make_model(tokenizer, **options)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model[0].attention.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.02 if name == "s" else 0.3))
    model.save_pretrained(str(folder))
    return model


def test_many_texts_agree(shipped_model, embedder, paragraphs):
    words = " ".join(paragraphs).split()
    chosen = random.Random(0)
    mixed = [" ".join(chosen.choices(words, k=chosen.randrange(1, 80))) for _ in range(500)]
    texts = [*ODD, *paragraphs, *mixed, " ".join(words[:20_000]), " ".join(words[:3_000])]
    found = embedder.encode(texts)
    assert difference(found, shipped_model.encode(texts, batch_size=512)) <= NEAR
    read = embedder.tokens(texts)[1] > 0
    assert np.abs(np.linalg.norm(found, axis=1) - read).max() < 1e-5


def test_any_batch_gives_the_same(embedder, paragraphs):
    texts = [*ODD, *paragraphs[:200]]
    texts.append(" ".join(texts))
    expected = embedder.encode(texts)
    for size in (1, 7, 5000):
        assert difference(embedder.encode(texts, size), expected) <= 1e-6
    order = np.random.default_rng(0).permutation(len(texts))
    assert difference(embedder.encode([texts[place] for place in order]), expected[order]) <= 1e-6
    assert difference(np.stack([embedder.encode(text) for text in texts]), expected) <= 1e-6


@pytest.mark.parametrize("positions", ["none", "relative", "absolute"])
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("initial_context", ["ones", "learned", "uniform"])
def test_every_option_agrees(tokenizer, tmp_path, positions, scale, initial_context):
    model = saved(tokenizer, tmp_path, positions=positions, scale=scale, initial_context=initial_context, rank=5)
    embedder = Embedder.load(tmp_path)
    texts = [*ODD, *SENTENCES, " ".join(SENTENCES * 60), " ".join(SENTENCES * 200)]
    assert difference(embedder.encode(texts), model.encode(texts)) <= NEAR
    assert embedder.fingerprint == fingerprint(model)


@pytest.mark.parametrize("steps", [1, 3])
def test_phrases_and_steps_agree(tokenizer, tmp_path, steps):
    first = {word: tokenizer.token_to_id(word) for word in ("the", "cat", "s")}
    entries = tokenizer.get_vocab_size()
    pairs = [[first["the"], first["cat"]], [entries, first["s"]]]
    model = saved(tokenizer, tmp_path, steps=steps, phrases=np.array(pairs))
    embedder = Embedder.load(tmp_path)
    assert difference(embedder.encode(SENTENCES), model.encode(SENTENCES)) <= NEAR
    assert embedder.fingerprint == fingerprint(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_files_of_smaller_numbers_are_read(tokenizer, tmp_path, dtype):
    saved(tokenizer, tmp_path).to(dtype).save_pretrained(str(tmp_path))
    model, embedder = ctx_embed.load(tmp_path), Embedder.load(tmp_path)
    assert difference(embedder.encode(SENTENCES), model.encode(SENTENCES)) <= NEAR
    assert embedder.fingerprint == fingerprint(model)


def test_settings_of_the_files_are_used(tokenizer, tmp_path):
    model = make_model(tokenizer, max_seq_length=4)
    model.prompts = {"query": "the cat ", "document": "a dog "}
    model.default_prompt_name = "query"
    model.truncate_dim = 5
    model.save_pretrained(str(tmp_path))
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": 5}))
    model, embedder = ctx_embed.load(tmp_path), Embedder.load(tmp_path)
    assert embedder.dimension == 5
    texts = ["garden", "house"]
    for ours, theirs in (
        (embedder.encode, model.encode),
        (embedder.encode_query, model.encode_query),
        (embedder.encode_document, model.encode_document),
    ):
        assert difference(ours(texts), theirs(texts)) <= NEAR
        assert difference(ours("garden", prompt="rain "), theirs("garden", prompt="rain ")) <= NEAR
    with pytest.warns(UserWarning, match="cut to max_seq_length=4"):
        found = embedder.encode(SENTENCES)
    with pytest.warns(UserWarning, match="cut to max_seq_length=4"):
        assert difference(found, model.encode(SENTENCES)) <= NEAR


def test_normalize_truncate_and_precision(shipped_model, embedder):
    whole = embedder.encode(SENTENCES)
    assert (
        difference(embedder.encode(SENTENCES, truncate_dim=100), shipped_model.encode(SENTENCES, truncate_dim=100))
        <= NEAR
    )
    cut = shipped_model.encode(SENTENCES, truncate_dim=100, normalize_embeddings=True)
    assert difference(embedder.encode(SENTENCES, truncate_dim=100, normalize=True), cut) <= NEAR
    raw = embedder.encode(SENTENCES, normalize=False)
    features = shipped_model[0].forward(shipped_model[0].preprocess(SENTENCES))["sentence_embedding"].detach().numpy()
    assert np.abs(raw - features).max() <= 1e-5 * np.abs(features).max()
    # Without normalisation, a text without tokens keeps its first context, also beside others.
    first = embedder.contextualizer.first_contexts(np.empty(0, np.int32), np.array([0]))[0]
    assert np.array_equal(embedder.encode(["", SENTENCES[0]], normalize=False)[0], first)
    assert not embedder.encode(["", SENTENCES[0]])[0].any()
    small = embedder.encode(SENTENCES, precision="int8")
    assert small.dtype == np.int8
    assert np.abs(small).max(1).tolist() == [127] * len(SENTENCES)
    assert difference(embedder.similarity(small, small), embedder.similarity(whole, whole)) < 0.01
    bits = embedder.encode(SENTENCES, precision="ubinary")
    assert (bits == shipped_model.encode(SENTENCES, precision="ubinary")).all()
    assert (embedder.encode([*SENTENCES[:1], ""], precision="int8")[0] == small[0]).all()


def test_similarity_is_the_models(shipped_model, embedder):
    vectors = embedder.encode(SENTENCES)
    assert (
        difference(embedder.similarity(vectors, vectors[:2]), shipped_model.similarity(vectors, vectors[:2]).numpy())
        < 1e-6
    )
    for precision in ("int8", "ubinary"):
        small = embedder.encode(SENTENCES, precision=precision)
        assert (
            difference(embedder.similarity(small, small[0]), shipped_model.similarity(small, small[:1]).numpy()) < 1e-6
        )
    assert "floats, int8 or packed bits" in error(embedder.similarity, np.zeros((1, 3), int), vectors)
    assert "at most" in error(embedder.similarity, np.zeros((1, 999), np.uint8), vectors)


def test_no_texts_give_no_rows(embedder):
    assert embedder.encode([]).shape == (0, embedder.dimension)
    assert embedder.encode([], precision="ubinary").shape == (0, embedder.dimension / 8)
    assert embedder.encode("").shape == (embedder.dimension,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["a", 3]}, "text 1 must be a string, got an int"),
        ({"texts": ["a"], "batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"texts": ["a"], "truncate_dim": -1}, "truncate_dim must be a positive integer, got -1"),
        ({"texts": ["a"], "precision": "int9"}, "unknown precision 'int9': did you mean 'int8'"),
    ],
)
def test_wrong_arguments_are_refused(embedder, arguments, message):
    assert message in error(embedder.encode, **arguments)


def test_other_models_are_refused_or_run_on_torch_without_a_word_to_users(tokenizer, tmp_path, caplog):
    SentenceTransformer(modules=[system("mean")(tokenizer, 8), Normalize()], device="cpu").save_pretrained(
        str(tmp_path / "mean")
    )
    with pytest.raises(UnsupportedModelError, match="runs on torch"):
        Embedder.load(tmp_path / "mean")
    with caplog.at_level(logging.INFO, "ctx_embed"):
        assert isinstance(load_embedder(tmp_path / "mean"), SentenceTransformer)
    assert [record.levelname for record in caplog.records if "runs on torch" in record.message] == ["INFO"]
    assert error(Embedder.load, tmp_path / "nothing").endswith("nothing: no such model folder")


def test_names_for_people(embedder):
    assert repr(embedder) == "Embedder('default', 320 dimensions)"
    assert repr(embedder.state()) == "DocumentState(Embedder('default', 320 dimensions))"


def test_batches_are_full_hold_every_text_and_are_shared_by_threads(monkeypatch):
    texts = [f"text {number}" for number in range(10)]
    assert [(part.start, part.stop) for part in batches(texts, 4)] == [(0, 4), (4, 8), (8, 10)]
    parts = batches(["a" * 600_000, "b" * 600_000, "c"], 9)
    assert (parts[0].stop, parts[-1].stop) == (1, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    parts = batches(["a" * (500 + 37 * number % 300) for number in range(403)], 4096)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert (len(parts), parts[-1].stop) == (4, 403)


def test_threads_share_batches_and_answer_in_order(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    three = threading.Barrier(3, timeout=60)
    texts = [chr(97 + number) * 4000 for number in range(12)]

    def embed(part: list[str]) -> tuple[np.ndarray, int]:
        three.wait()
        return np.array([[ord(text[0])] for text in part]), 1

    vectors, unread = embed_in_batches(texts, embed, 3, False)
    assert (vectors[:, 0].tolist(), unread) == (list(range(97, 109)), 12)


def test_after_a_failure_no_further_batch_is_embedded(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    begun = []

    def embed(part: list[str]) -> tuple[np.ndarray, int]:
        begun.append(part)
        time.sleep(0.05)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        embed_in_batches(["a" * 2000] * 40, embed, 2, False)
    assert len(begun) <= 10


# Threads, blocks and counts change how vectors are computed, not what they are.


def test_threads_share_a_batch_and_an_embedder(embedder, paragraphs, monkeypatch):
    texts = ["", *paragraphs[:150], "a cat " * 3000]
    alone = np.stack([embedder.encode(text) for text in texts])
    for threads in (1, 2, 3, 40):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        assert (embedder.encode(texts) == alone).all() or kernel() is None
    with ThreadPoolExecutor(4) as pool:
        assert difference(np.stack(list(pool.map(embedder.encode, texts))), alone) <= 1e-6


def test_many_tokens_of_few_entries(embedder):
    state = embedder.state()
    state.add("a cat sat " * 3000)
    assert difference(embedder.encode("a cat sat " * 3000), state.embedding()) <= 1e-6


def test_sums_over_blocks_are_those_over_all_entries(embedder, monkeypatch):
    entries = np.arange(2000, 5000)
    given = entries, np.array([3000]), 1 + entries % 3
    blocks = embedder.contextualizer.embed(*given)
    monkeypatch.setattr(embedding, "BLOCK_TOKENS", 1 << 20)
    assert np.abs(embedder.contextualizer.embed(*given) - blocks).max() <= 1e-5 * np.abs(blocks).max()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("beyond", [-1, 0, 1 << 31])
def test_ids_beyond_the_table_are_refused(embedder, dtype, beyond):
    wrong = len(embedder.contextualizer.table.values) + beyond if beyond >= 0 else beyond
    if wrong > np.iinfo(dtype).max:
        pytest.skip("no such id")
    with pytest.raises(IndexError, match=f"ids must be rows of the table, got .*{wrong}"):
        embedder.contextualizer.embed(np.array([5, wrong, 7], dtype), np.array([2, 1]))
