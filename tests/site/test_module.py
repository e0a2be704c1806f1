"""The module of js/ and the kernel in WebAssembly read and embed texts as Python does."""

import importlib.util
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import build_kernel
from ctx_embed.numpy_model import Embedder
from ctx_embed.site.model import add_model, require_readable
from ctx_embed.site.pieces import Pieces, varint
from ctx_embed.text.normalisation import normalised
from tests.conftest import make_model
from tests.helpers.errors import error
from tests.site.texts import HOSTILE, texts

SENTENCES = ["the cat sat on the mat", "a dog's garden", "UNKNOWN zzz cat", "cats and dogs in the house", "", "!!"]


def with_texts(folder: Path, embedder: Embedder, some: list[str]) -> Path:
    """Write what Python makes of some texts."""
    packed, lengths = embedder.tokens(some)
    ids = [part.tolist() for part in np.split(packed, lengths.cumsum()[:-1])]
    vectors = embedder.encode(some, normalize=True).round(7).tolist()
    found = {"texts": some, "ids": ids, "vectors": vectors, "normalised": list(map(normalised, some))}
    (folder / "texts.json").write_text(json.dumps(found))
    return folder


def test_the_kernel_for_browsers_is_that_of_its_source():
    digest = f"{zlib.crc32(build_kernel.SOURCE.read_bytes()):08x}".encode()
    assert digest in build_kernel.WASM.read_bytes(), "contextualizer.c has changed: make wasm"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_the_pinned_compiler_makes_the_same_bytes(tmp_path):
    build_kernel.build_wasm(tmp_path / "kernel.wasm")
    assert (tmp_path / "kernel.wasm").read_bytes() == build_kernel.WASM.read_bytes()


def test_the_module_alone(node):
    node("pieces.test.js")


def test_ids_vectors_and_words_are_those_of_python(exported, embedder, node, request):
    node("same.test.js", with_texts(exported, embedder, texts(6000 if request.config.getoption("--slow") else 1500)))


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "relative", "scale": "sum", "steps": 3},
        pytest.param({"positions": "absolute", "initial_context": "learned"}, marks=pytest.mark.slow),
        pytest.param({"dimension": 20, "rank": 5, "steps": 1}, marks=pytest.mark.slow),
    ],
)
def test_so_are_those_of_other_models(options, tokenizer, tmp_path, node):
    the, cat, s = map(tokenizer.token_to_id, ("the", "cat", "s"))
    entries = tokenizer.get_vocab_size()
    phrases = np.array([[the, cat], [entries, s], [s, entries + 1], [entries, the]])
    make_model(tokenizer, phrases=phrases, **options).save_pretrained(str(tmp_path))
    some = [*SENTENCES, "the cat s the cat s s the cat the the cat " * 3, *HOSTILE[:-1], *texts(1400)[-1200:]]
    embedder, pieces = Embedder.load(tmp_path), tmp_path / "site"
    manifest = {"format": 1, "model": add_model(Pieces(pieces), embedder)}
    (pieces / "manifest.json").write_text(json.dumps(manifest))
    node("same.test.js", with_texts(pieces, embedder, some))


def test_models_that_browsers_cannot_run_are_refused_in_one_line(tokenizer, tmp_path):
    for said, options in (("than 'uniform'", {"initial_context": "uniform"}), ("max_seq", {"max_seq_length": 4})):
        make_model(tokenizer, **options).save_pretrained(str(tmp_path / said))
        assert said in error(require_readable, Embedder.load(tmp_path / said))
    assert "that NumPy runs, got int" in error(require_readable, 3)


def test_pieces_are_named_by_their_bytes(tmp_path):
    pieces = Pieces(tmp_path)
    name = pieces.add(b"abc")
    assert (pieces.add(b"abc"), pieces.add(b"abd") != name) == (name, True)
    path = tmp_path / "pieces" / name[:2] / f"{name[2:]}.bin"
    assert zlib.decompress(path.read_bytes()) == b"abc"
    # A later folder has the same file, unless it was damaged.
    for again, number in (("again", 2), ("once more", 1)):
        later = tmp_path / again
        assert Pieces(later, tmp_path).add(b"abc") == name
        found = later / path.relative_to(tmp_path)
        assert (zlib.decompress(found.read_bytes()), found.stat().st_nlink) == (b"abc", number)
        path.unlink()
        path.write_bytes(b"damaged")
    assert [varint(number).hex() for number in (0, 127, 128, 300)] == ["00", "7f", "8001", "ac02"]
