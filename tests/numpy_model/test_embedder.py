"""NumPy gives what torch gives from the same files: vectors, fingerprints, parts of cosines, states of long texts."""

import copy
import json
import logging
import os
import pickle
import random
import shutil
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from tokenizers import Tokenizer, pre_tokenizers

import ctx_embed
from ctx_embed.explanations import contributions
from ctx_embed.fingerprint import fingerprint
from ctx_embed.kernel import kernel
from ctx_embed.model import Model
from ctx_embed.numpy_model import Embedder, UnsupportedModelError, document_state
from ctx_embed.numpy_model.document_state import DocumentState
from ctx_embed.numpy_model.embedder import batches, embed_in_batches
from ctx_embed.systems import system
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error

NEAR = 2e-5
ODD = ["", " \n\t ", "a", "[UNK] [PAD]", "\ud800 lone", "e\u0301te\u0301", "\x0b\x1c\x85 disputed spaces"]
ODD += ["日本語のテキスト", "кошка сидит на окне", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก"]
ODD += ["null\x00byte", "안녕하세요 세계", "😀😡👩‍👩‍👧", "x" * 5000, "of the of the of the in the of the"]


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


@pytest.mark.parametrize("positions", ["none", "relative", "absolute"])
@pytest.mark.parametrize(("scale", "steps"), [("mean", 1), ("sum", 3)])
@pytest.mark.parametrize("initial_context", ["ones", "learned", "uniform"])
def test_every_option_agrees(tokenizer, tmp_path, positions, scale, steps, initial_context):
    the, cat, s = map(tokenizer.token_to_id, ("the", "cat", "s"))
    options = {"rank": 5, "steps": steps, "phrases": np.array([[the, cat], [tokenizer.get_vocab_size(), s]])}
    options |= {"positions": positions, "scale": scale, "initial_context": initial_context}
    model = saved(tokenizer, tmp_path, **options)
    embedder = Embedder.load(tmp_path)
    texts = [*ODD, *SENTENCES, " ".join(SENTENCES * 60), " ".join(SENTENCES * 200)]
    found = embedder.encode(texts)
    assert difference(found, model.encode(texts)) <= NEAR
    assert embedder.fingerprint == fingerprint(model) == fingerprint(ctx_embed.load(tmp_path))
    for place in (-2, -3):
        cosine = pytest.approx(float(found[place] @ found[-4]), abs=2e-5)
        assert embedder.explain(texts[place], found[-4]).cosine == cosine


def test_normalize_truncate_and_precision(shipped_model, embedder):
    for ours, theirs in (({}, {}), ({"normalize": True}, {"normalize_embeddings": True})):
        cut = shipped_model.encode(SENTENCES, truncate_dim=100, **theirs)
        assert difference(embedder.encode(SENTENCES, truncate_dim=100, **ours), cut) <= NEAR
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
    assert (embedder.encode([*SENTENCES[:1], ""], precision="int8")[0] == small[0]).all()
    bits = embedder.encode(SENTENCES, precision="ubinary")
    assert (bits == shipped_model.encode(SENTENCES, precision="ubinary")).all()


def test_similarity_is_the_models(shipped_model, embedder):
    # Sums of 320 equal products, as those of bits, round by up to 3e-6 on some processors.
    eighth = embedder.encode(SENTENCES, truncate_dim=40)
    small = embedder.encode(SENTENCES, truncate_dim=40, precision="int8")
    assert difference(embedder.similarity(small, small), embedder.similarity(eighth, eighth)) < 0.01
    for precision in ("float32", "int8", "ubinary"):
        vectors = embedder.encode(SENTENCES, precision=precision)
        for other in (vectors[:2], vectors[:1]):
            expected = shipped_model.similarity(vectors, other).numpy()
            assert difference(embedder.similarity(vectors, other), expected) < 1e-5
        assert difference(embedder.similarity(vectors, vectors[0]), expected) < 1e-5
    vectors = embedder.encode(SENTENCES)
    assert "floats, int8 or packed bits" in error(embedder.similarity, np.zeros((1, 3), int), vectors)
    assert "at most" in error(embedder.similarity, np.zeros((1, 999), np.uint8), vectors)


def test_no_texts_give_no_rows_and_wrong_arguments_are_refused(embedder, monkeypatch):
    assert embedder.encode([]).shape == (0, embedder.dimension)
    assert embedder.encode([], precision="ubinary").shape == (0, embedder.dimension / 8)
    assert embedder.encode("").shape == (embedder.dimension,)
    assert repr(embedder.state()) == "DocumentState(Embedder('default', 320 dimensions))"
    assert error(embedder.encode, ["a", 3]).startswith("text 1 must be a string, got an int")
    assert "batch_size must be a positive integer, got 0" in error(embedder.encode, ["a"], 0)
    assert "truncate_dim must be a positive integer, got -1" in error(embedder.encode, ["a"], truncate_dim=-1)
    assert "unknown precision 'int9': did you mean 'int8'" in error(embedder.encode, ["a"], precision="int9")
    assert "prompt must be a string, got an int" in error(embedder.encode, ["a"], prompt=3)
    monkeypatch.setattr(embedder, "truncate_dim", 321)
    assert "truncate_dim must be at most 320, the model's features, got 321" in error(embedder.encode, ["a"])


def test_other_models_are_refused_or_run_on_torch_without_a_word_to_users(tokenizer, tmp_path, caplog):
    model = SentenceTransformer(modules=[system("mean")(tokenizer, 8), Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "mean"))
    with pytest.raises(UnsupportedModelError, match="runs on torch"):
        Embedder.load(tmp_path / "mean")
    with caplog.at_level(logging.INFO, "ctx_embed"):
        assert isinstance(Model.of(tmp_path / "mean").backend, SentenceTransformer)
    assert [record.levelname for record in caplog.records if "runs on torch" in record.message] == ["INFO"]
    assert error(Embedder.load, 3) == "3: no such model folder"


def test_batches_are_full_hold_every_text_and_are_shared_by_threads(monkeypatch):
    assert batches(["text"] * 10, 4) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    parts = batches(["a" * 600_000, "b" * 600_000, "c"], 9)
    assert (parts[0].stop, parts[-1].stop) == (1, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    parts = batches(["a" * (500 + 37 * number % 300) for number in range(403)], 4096)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert (len(parts), parts[-1].stop) == (4, 403)


def test_threads_share_batches_and_answer_in_order_and_begin_none_after_a_failure(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    three = threading.Barrier(3, timeout=60)
    texts = [chr(97 + number) * 4000 for number in range(12)]

    def embed(part: list[str]) -> tuple[np.ndarray, np.ndarray]:
        three.wait()
        return np.array([[ord(text[0])] for text in part]), np.array([text[0] in "dk" for text in part])

    vectors, unread = embed_in_batches(texts, embed, 3, False)
    assert (vectors[:, 0].tolist(), unread) == (list(range(97, 109)), [texts[3], texts[10]])
    begun = []

    def failing(part: list[str]) -> tuple[np.ndarray, int]:
        begun.append(part)
        time.sleep(0.05)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        embed_in_batches(["a" * 2000] * 40, failing, 2, False)
    assert len(begun) <= 10


def test_threads_share_a_batch_of_any_size_and_an_embedder(embedder, paragraphs, monkeypatch):
    texts = [*ODD, *paragraphs[:150], "a cat " * 3000]
    alone = np.stack([embedder.encode(text) for text in texts])
    for threads, size in ((1, 1), (2, 7), (3, 256), (40, 5000)):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        assert difference(embedder.encode(texts, size), alone) <= (0 if kernel() else 1e-6)
    with ThreadPoolExecutor(4) as pool:
        assert difference(np.stack(list(pool.map(embedder.encode, texts))), alone) <= 1e-6


def test_ids_beyond_the_table_are_refused(embedder):
    rows = len(embedder.contextualizer.table.values)
    for wrong, dtype in ((-1, "int32"), (rows, "int32"), (-1, "int64"), (rows, "int64"), (rows + (1 << 31), "int64")):
        with pytest.raises(IndexError, match=f"ids must be rows of the table, got .*{wrong}"):
            embedder.contextualizer.embed(np.array([5, wrong, 7], dtype), np.array([2, 1]))


# What each token adds to a cosine
TEXT = "The  film was not   bad, a joy—from the first scene to the last. ünïcode 猫"


@pytest.mark.parametrize("text", [TEXT, "", "cat", "good film " * 3000])
def test_the_parts_add_up_to_the_cosine(embedder, text):
    query = embedder.encode("a dull film")
    found = embedder.explain(text, query)
    assert found.cosine == pytest.approx(float(embedder.encode(text) @ query), abs=2e-5)
    assert len(found.tokens) == len(embedder.tokens([text])[0])
    # The length of the other vector does not count.
    assert embedder.explain(text, 3 * query).cosine == pytest.approx(found.cosine, abs=1e-6)


def test_the_parts_are_those_of_torch_and_their_spans_the_characters_of_the_tokens(embedder, shipped_model):
    query = embedder.encode("a dull film").astype(np.float64)
    reference = contributions(shipped_model, TEXT)
    last = reference.first + reference.corrections.sum(0)
    parts = reference.vectors.sum(1) @ query / np.linalg.norm(last)
    tokens = embedder.explain(TEXT, query).tokens
    assert np.allclose([token.weight for token in tokens], parts, atol=2e-6)
    assert [token.text for token in tokens] == [TEXT[token.start : token.stop] for token in tokens]
    assert "".join(token.text for token in tokens).replace(" ", "") == TEXT.replace(" ", "")
    assert [token.start for token in tokens] == sorted(token.start for token in tokens)
    assert error(embedder.explain, "text", [1, 2, 3]).startswith("the vector must have shape (320,), got (3,)")


def test_a_prompt_counts_as_the_rest_also_by_default(embedder):
    other = Embedder.load()
    other.prompts = {"query": "search: "}
    vector = embedder.encode("a dull film")
    named = other.explain("the film", vector, "query")
    other.default_prompt_name = "query"
    alone = embedder.explain("the film", vector).tokens
    for found in (named, other.explain("the film", vector)):
        assert [replace(token, weight=0) for token in found.tokens] == [replace(token, weight=0) for token in alone]
        assert found.cosine == pytest.approx(float(embedder.encode("search: the film") @ vector), abs=2e-5)


# Growing texts: however a text is cut, its embedding is that of the whole
NO_STATE = "stored must be the bytes of a DocumentState"
PARTS = ["i", " don't", " know", " of the", " the", " ", "\n", "\x85", "é", "\u0301", "日本", ".", "'s", "b2b", "℃"]


def near(state: DocumentState, embedder: Embedder, text: str) -> bool:
    return bool(np.abs(state.embedding() - embedder.encode(text)).max() <= NEAR)


@settings(max_examples=100)
@given(pieces=st.lists(st.lists(st.sampled_from(PARTS)).map("".join), min_size=1, max_size=6), data=st.data())
def test_any_cut_and_any_order_of_joining(embedder, pieces, data):
    text = "".join(pieces)
    whole, expected = state_of(embedder, *pieces), state_of(embedder, text)
    states = [state_of(embedder, piece) for piece in pieces]
    while len(states) > 1:
        place = data.draw(st.integers(0, len(states) - 2))
        states[place].merge(states.pop(place + 1))
    for state in (whole, states[0], expected):
        assert near(state, embedder, text)
        # To the bit: what a text becomes depends on nothing but the text.
        assert (state.embedding() == expected.embedding()).all()


def state_of(embedder: Embedder, *pieces: str) -> DocumentState:
    state = embedder.state()
    for piece in pieces:
        state.add(piece)
    return state


def test_a_text_letter_by_letter_and_its_two_halves(embedder):
    text = " ".join([*SENTENCES, *ODD, "i don't know one of the men of the house"])
    expected = state_of(embedder, *text)
    assert near(expected, embedder, text)
    for cut in range(0, len(text), 23):
        left = state_of(embedder, text[:cut])
        left.merge(state_of(embedder, text[cut:]))
        assert (left.embedding() == expected.embedding()).all()


def test_a_long_text_in_constant_memory_and_linear_time(embedder, paragraphs):
    state, sizes = embedder.state(), []
    for _ in range(3):
        for paragraph in paragraphs:
            state.add(paragraph)
        sizes.append(len(state.to_bytes()))
    assert near(state, embedder, "".join(paragraphs * 3))
    assert sizes[2] < 1.1 * sizes[1] < 100_000
    # Text without cuts is added in linear time.
    start = time.process_time()
    state_of(embedder, *"x" * 40_000)
    assert time.process_time() - start < 5


def test_a_state_joined_to_itself_its_bytes_and_options(embedder):
    for text in ("of the", "the cat sat on the mat, and then some more ", "a cat sat " * 1500):
        state = state_of(embedder, text)
        state.merge(state)
        assert near(state, embedder, text * 2)
    # How much of each the model reads counts, too.
    parts = "日本語 " * 40, "the cat sat on the mat, and then some more. " * 200
    for left, right in (parts, parts[::-1]):
        state = state_of(embedder, left)
        state.merge(state_of(embedder, right))
        assert near(state, embedder, left + right)
    state = state_of(embedder, "the first half of a lone \ud800 te")
    copies = embedder.state(state.to_bytes()), pickle.loads(pickle.dumps(state))
    for each in (state, *copies):
        each.add("xt, and more of it")
        assert (each.embedding() == state.embedding()).all()
    assert embedder.state(embedder.state().to_bytes()).embedding().shape == (embedder.dimension,)
    # Its embedding takes the options of encode.
    for options in ({"normalize": False}, {"truncate_dim": 7}, {"precision": "ubinary"}):
        expected = embedder.encode("the first half of a lone \ud800 text, and more of it", **options)
        np.testing.assert_allclose(state.embedding(**options), expected, rtol=1e-4, atol=NEAR)


@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("positions", ["none", "absolute"])
@pytest.mark.parametrize("initial_context", ["ones", "learned"])
def test_other_options(tokenizer, tmp_path, positions, scale, initial_context):
    saved(tokenizer, tmp_path, positions=positions, scale=scale, initial_context=initial_context)
    embedder = Embedder.load(tmp_path)
    for text in ("", "a cat", " ".join(SENTENCES), " ".join(SENTENCES * 90)):
        third = len(text) // 3
        left = state_of(embedder, text[:third])
        left.merge(state_of(embedder, *(text[start : start + 501] for start in range(third, len(text), 501))))
        assert near(left, embedder, text)
        assert near(embedder.state(left.to_bytes()), embedder, text)


def test_models_whose_embeddings_cannot_grow(tokenizer, tmp_path):
    joins_words = Tokenizer.from_str(tokenizer.to_str())
    joins_words.pre_tokenizer = pre_tokenizers.Metaspace()
    for reason, each, options in (
        ('positions="relative"', tokenizer, {"positions": "relative"}),
        ('initial_context="uniform"', tokenizer, {"initial_context": "uniform"}),
        ("max_seq_length=9", tokenizer, {"max_seq_length": 9}),
        ("a tokenizer that joins words", joins_words, {}),
    ):
        saved(each, tmp_path, **options)
        said = error(Embedder.load(tmp_path).state)
        assert said.endswith(f"cannot extend a text: it has {reason}; embed the whole text at once")
    prompted = Embedder.load()
    prompted.prompts, prompted.default_prompt_name = {"query": "about "}, "query"
    assert "it has the default prompt 'query'; " in error(prompted.state)


def test_what_is_no_state_is_refused(embedder, tiny_model_path, monkeypatch):
    state = state_of(embedder, "a text")
    stored = state.to_bytes()
    for wrong in (b"", b"state", stored[:-9], stored[:30] + b"x" + stored[31:], stored * 2):
        assert error(embedder.state, wrong).startswith(NO_STATE)
    assert (embedder.state(memoryview(stored)).embedding() == state.embedding()).all()
    monkeypatch.setattr(document_state, "LARGEST_ENDS", 20)
    assert "both ends must have at most 20 bytes as JSON" in error(state.to_bytes)
    other = Embedder.load(tiny_model_path)
    assert "made by the model" in error(other.state, stored)
    assert "of the same model" in error(other.state().merge, state)
    assert "text must be a string, got an int" in error(state.add, 3)


FEW = [(0, 1), (7, 2)]


def packed(ends: object, sums: bytes | list[tuple[int, int]] = FEW) -> bytes:
    line = ends if isinstance(ends, str) else json.dumps(ends)
    if isinstance(sums, list):
        sums = np.array(sums, [("entry", "<i4"), ("count", "<i8")]).tobytes()
    return document_state.MAGIC + zlib.compress(line.encode() + b"\n" + sums)


# An entry and its count, of which some are impossible, or both ends of the text.
HOSTILE = {
    "negative counts": ([(5, -1), (7, 2)], "counts must lie between 1 and"),
    "counts beyond doubles": ([(5, 1 << 60)], "counts must lie between 1 and"),
    "an entry twice": ([(5, 1), (5, 2)], "an entry occurs twice"),
    "an entry beyond": ([(5, 1), (10**6, 2)], "an entry is not in the vocabulary"),
    "an entry below": ([(-1, 1)], "an entry is not in the vocabulary"),
    "half a row": (bytes(23), "must be a multiple"),
    "deep": ("[" * 100_000, ""),
    "short": ('["a"]', ""),
    "fingerprint": ('[1, "", "", [0, 0, 0, 0, 0]]', ""),
    "large": (f'["f", "", "", [0, 0, 0, 0, {1 << 60}]]', ""),
    "no numbers": ('["f", "", "", [true, true, true, true, true]]', ""),
    "of a development version": ('["f", "a", "b", [0, 0, 0, 0]]', "if a development version made it, read the text ag"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_states_are_one_line(embedder, name):
    wrong, message = HOSTILE[name]
    ends = [embedder.fingerprint, "a", "b", [1, 0, 1, 1, 1]]
    assert embedder.state(packed(ends)).embedding().any()
    said = error(embedder.state, packed(wrong) if isinstance(wrong, str) else packed(ends, wrong))
    assert said.startswith(NO_STATE)
    assert message in said


def test_a_bomb_takes_no_memory(embedder):
    bomb = document_state.MAGIC + zlib.compress(bytes(200_000_000), 1)
    tracemalloc.start()
    assert error(embedder.state, bomb).startswith(NO_STATE)
    assert tracemalloc.get_traced_memory()[1] < 60_000_000
    tracemalloc.stop()


def test_moments_that_are_no_numbers_are_one_line(tokenizer, tmp_path):
    make_model(tokenizer, positions="absolute").save_pretrained(str(tmp_path))
    embedder = Embedder.load(tmp_path)
    kind, m = embedder.state()._kind, embedder.dimension
    for n, value, times in ((1, np.nan, 1), (1, np.inf, 1), (-1, 1.0, 1), (1 << 60, 1.0, 1), (1, 1.0, 2)):
        sums = document_state.rows(kind.row, 1, n, np.ones(m), np.ones(m), np.full(m, value), np.ones((m, m)))
        stored = packed([embedder.fingerprint, "a", "b", [1, 0, 1, 1, 1]], sums.tobytes() * times)
        assert error(embedder.state, stored).startswith(NO_STATE)


# A loaded model is what was loaded, whatever becomes of its folder.


def saved_over(folder) -> None:
    model = ctx_embed.load(folder)
    with torch.no_grad():
        model[0].attention.W.add_(1)
        model[0].embedding.weight.mul_(-1.3)
    model.save_pretrained(str(folder))


@pytest.mark.parametrize("change", [shutil.rmtree, saved_over])
def test_what_was_loaded_stays_when_its_folder_changes(tokenizer, tmp_path, change):
    folder = tmp_path / "model"
    saved(tokenizer, folder)
    kept = Embedder.load(shutil.copytree(folder, tmp_path / "copy"))
    read, unread = Embedder.load(folder), Embedder.load(folder)
    expected = kept.encode(SENTENCES)
    assert (read.encode(SENTENCES) == expected).all()
    assert read.fingerprint == kept.fingerprint
    before = pickle.dumps(unread)
    change(folder)
    for one in (read, *map(pickle.loads, (before, pickle.dumps(unread))), unread, copy.deepcopy(unread)):
        assert (one.encode(SENTENCES) == expected).all()
        assert one.fingerprint == kept.fingerprint


@pytest.mark.parametrize(
    "change", [lambda file: os.truncate(file, 100), lambda file: file.write_bytes(file.read_bytes())]
)
def test_weights_written_to_in_place_are_refused(tokenizer, tmp_path, change):
    saved(tokenizer, tmp_path)
    file = tmp_path / "model.safetensors"
    os.utime(file, (1, 1))
    model, unread = Embedder.load(tmp_path), Embedder.load(tmp_path)
    vector, state = model.encode("a cat"), state_of(model, "a cat sat " * 200)
    change(file)
    calls = [lambda: model.encode("a cat"), lambda: model.encode("a dog"), lambda: model.explain("a cat", vector)]
    calls += [state.embedding, lambda: unread.encode("a cat"), lambda: unread.fingerprint, lambda: pickle.dumps(unread)]
    for call in calls:
        assert error(call) == f"{file}: the file was overwritten while its model was in use; load the model again"


def test_a_fingerprint_is_that_of_the_maximum_length_in_use(tokenizer, tmp_path):
    model = saved(tokenizer, tmp_path)
    short = Embedder.load(tmp_path)
    short.max_seq_length = model.max_seq_length = 3
    assert short.fingerprint == fingerprint(model) != Embedder.load(tmp_path).fingerprint
    assert pickle.loads(pickle.dumps(short)).max_seq_length == 3
