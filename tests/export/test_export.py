"""The ONNX graph gives what the model gives, and a model of the system mean is what others load as a static one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from ctx_embed.export import export_onnx
from ctx_embed.numpy_model import Embedder
from ctx_embed.systems import system
from tests.conftest import SENTENCES, make_model
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.numpy_model.test_embedder import ODD, saved

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "onnx"
NEAR = 2e-5


def check(folder: Path, embedder: Embedder, texts: list[str]) -> None:
    """Check that the graph gives what the model gives."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    ids, lengths = embedder.text_tokenizer(texts)
    (found,) = session.run(None, {"input_ids": ids.astype(np.int64), "offsets": lengths.cumsum() - lengths})
    assert np.abs(found - embedder.encode(texts)).max() <= NEAR


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx") / "default"
    said = Command("export onnx").succeeds("default", "-o", folder)
    files = "model.onnx, tokenizer.json, phrases.json and characters.json"
    assert said.startswith(f"{folder}: {files}; differs from the model by ")
    return folder


def test_the_default_model(default):
    names = "characters.json model.onnx phrases.json tokenizer.json"
    assert sorted(path.name for path in default.iterdir()) == names.split()
    assert (default / "model.onnx").stat().st_size < 39e6
    for texts in ([*ODD, *SENTENCES, " ".join(SENTENCES * 100)], [""]):
        check(default, Embedder.load(), texts)


NODE = shutil.which("node") is None or not (EXAMPLES / "node_modules").is_dir()
no_node = pytest.mark.skipif(NODE, reason="needs node and npm install there")
PROGRAMS = [(sys.executable, "embed.py"), pytest.param(("node", "embed.mjs"), marks=no_node)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each[1])
def test_the_examples(default, program):
    # Arguments of programs hold no null bytes and no halves of emoji.
    odd = [text for text in ODD if "\0" not in text and "\ud800" not in text]
    odd += ["ﬁne ﬂour, \uff26\uff35\uff2c\uff2c width \u017f", "\xad" * 50, "re\xadread the co\xad"]
    odd += ["10⁶ ⅔ ① ㎏", "ภาษา\u200bไทย", "a\u200db ❤\u200d🔥"]
    texts = [*SENTENCES[:2], "i don't know, she said", *odd]
    command = [program[0], EXAMPLES / program[1], default, *texts]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = np.array([json.loads(line) for line in lines])
    assert np.abs(found - Embedder.load().encode(texts)).max() <= NEAR


@pytest.mark.parametrize("positions", ["none", "relative", "absolute"])
@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("initial_context", ["ones", "learned"])
def test_every_option(tokenizer, tmp_path, positions, scale, initial_context):
    saved(tokenizer, tmp_path / "model", positions=positions, scale=scale, initial_context=initial_context)
    embedder = Embedder.load(tmp_path / "model")
    assert export_onnx(embedder, tmp_path / "onnx") <= NEAR
    check(tmp_path / "onnx", embedder, ["", *SENTENCES, "", " ".join(SENTENCES * 20)])


STATIC = Command("export static")


@pytest.mark.parametrize("modules", [[], [Normalize()]])
def test_model2vec_and_sentence_transformers_load_a_static_model(tokenizer, tmp_path, modules):
    model2vec = pytest.importorskip("model2vec")
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[system("mean")(tokenizer, 8), *modules], device="cpu")
    model.save_pretrained(str(tmp_path / "mean"))
    STATIC.succeeds(tmp_path / "mean", "-o", tmp_path / "static")
    texts = [*SENTENCES, "gardens, houses!"]
    expected = model.encode(texts)
    static = model2vec.StaticModel.from_pretrained(tmp_path / "static")
    # It leaves unknown tokens out, of which the last text has some.
    np.testing.assert_allclose(static.encode(SENTENCES), expected[:-1], atol=1e-6)
    other = SentenceTransformer(str(tmp_path / "static"), device="cpu")
    np.testing.assert_allclose(other.encode(texts), expected, atol=1e-6)


def test_what_cannot_be_written_or_is_no_static_model_writes_nothing(tokenizer, tmp_path, monkeypatch):
    phrases, cut = (
        system("mean")(tokenizer, 8, phrases=np.array([[5, 6]])),
        system("mean")(tokenizer, 8, max_seq_length=9),
    )
    for model, message in (
        (make_model(tokenizer), "the model must be of the system mean"),
        (SentenceTransformer(modules=[phrases], device="cpu"), "the model has phrases"),
        (SentenceTransformer(modules=[cut], device="cpu"), "the model has a max_seq_length"),
    ):
        model.save_pretrained(str(tmp_path / "model"))
        assert STATIC.fails(tmp_path / "model", "-o", tmp_path / "out").startswith(message)
        assert not (tmp_path / "out").exists()
    saved(tokenizer, tmp_path / "model", initial_context="uniform")
    said = error(export_onnx, Embedder.load(tmp_path / "model"), tmp_path / "onnx")
    assert 'initial_context="uniform"' in said
    assert not (tmp_path / "onnx").exists()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    assert "the folder holds other things" in error(export_onnx, Embedder.load(), tmp_path / "precious")
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert error(export_onnx, Embedder.load(), tmp_path / "onnx").startswith("export onnx: onnx needs the extra onnx: ")
