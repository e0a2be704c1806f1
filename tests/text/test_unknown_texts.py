"""A text of which the model knows fewer than half of the words is like no other, whatever embeds it."""

import warnings

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import Unigram

import ctx_embed
from ctx_embed.systems import untrained
from ctx_embed.text.tokenizer import unknown_id

UNKNOWN = ["", " \n", "кошка сидит.", "Cat № 7: 日本語 (2024)!", "مرحبا بالعالم"]
TEXTS = ["A cat sleeps.", *UNKNOWN, "кошка cat", "!"]
WARNING = "5 of 8 texts have too few words that the model knows: they are embedded as zeros"


@pytest.mark.parametrize("by", ["numpy", "torch", "third party", "bfloat16"])
def test_it_is_embedded_as_zeros_with_one_warning(by, embedder, shipped_model):
    model = {"numpy": embedder, "torch": shipped_model}.get(by)
    if by == "third party":
        model = SentenceTransformer(str(ctx_embed.path()), trust_remote_code=True, device="cpu")
    elif by == "bfloat16":
        model = ctx_embed.load(device="cpu", dtype="bfloat16")
    for _ in range(2):
        with pytest.warns(UserWarning, match=WARNING) as caught:
            # Others warn for a batch.
            found = model.encode(TEXTS, batch_size=2 if by in ("numpy", "torch") else 8)
        assert len(caught) == 1
    lengths = np.linalg.norm(np.asarray(found, np.float32), axis=1)
    np.testing.assert_allclose(lengths, [1, 0, 0, 0, 0, 0, 1, 1], atol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode(["A cat sleeps.", "кошка cat"])


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Кошка спит на диване.", False),
        ("北京今天下雨.", False),
        ("الطقس جميل اليوم, 25 (2024).", False),
        ("Поезд № 5, 12:30", False),
        ("The dog and кошка, собака, птица, лошадь", False),
        ("the cat кошка собака", True),
        ("Иван said hi to Пётр", True),
        ("Straße in München", True),
        ("I ♥ NY", True),
        ("3 + 4 = 7", True),
        ("?!", True),
        ("👍👍 !!", False),
        ("C++", True),
    ],
)
def test_a_text_is_read_if_half_of_its_words_are_known(embedder, text, read):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not read else "error")
        assert embedder.encode(text).any() == read
        assert embedder.encode([text, "A cat sleeps."], prompt="query: ")[0].any() == read
    # A text that grows is judged as a whole.
    state = embedder.state()
    for character in f"{text} " * 20:
        state.add(character)
    assert state.embedding().any() == read


@pytest.mark.parametrize("unit", [1, 100, 10_000])
def test_all_parts_of_a_growing_text_count(embedder, unit):
    # Signs that the model does not know are no words, also in a part that it can read.
    known, unknown = "The cat sleeps, and the dog, and the bird ♥ ♥ ♥ ♥ ", "кошка собака птица лошадь корова овца мышь "
    for text, read in ((known * 300 + unknown * 300, True), (known * 200 + unknown * 300, False)):
        state = embedder.state()
        for start in range(0, len(text), unit):
            state.add(text[start : start + unit])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert embedder.encode(text).any() == state.embedding().any() == read


def test_a_growing_text_is_like_no_other_until_a_token_is_known(embedder):
    state = embedder.state()
    for piece in ("日本語 " * 40, "кошка сидит"):
        state.add(piece)
        assert not state.embedding().any()
    restored = embedder.state(state.to_bytes())
    other = embedder.state()
    other.add("日本語 " * 40)
    restored.merge(other)
    assert not restored.embedding().any()
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


@pytest.mark.parametrize("system", ["bigru", "transformer"])
def test_systems_embed_it_as_zeros(system):
    with pytest.warns(UserWarning, match=WARNING):
        found = untrained(system).encode(TEXTS)
    assert [row.any() for row in found] == [True, *[False] * 5, True, True]


def test_explaining_it_adds_nothing(embedder):
    parts = embedder.explain("日本語", embedder.encode("a cat"))
    assert (parts.tokens, parts.cosine) == ([], 0)


def test_a_unigram_names_its_unknown_entry():
    pieces = [("<s>", 0.0), ("<unk>", 0.0), ("a", -1.0)]
    assert unknown_id(Tokenizer(Unigram(pieces, unk_id=1))) == 1
    assert unknown_id(Tokenizer(Unigram(pieces))) is None
