"""Model folders from strangers: each is one line of InputError in both loaders, soon and in little memory."""

import json
import operator
import os
import shutil
import struct
import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import ctx_embed
from ctx_embed.runtime import Embedder
from ctx_embed.systems import system
from tests.conftest import make_model
from tests.helpers.errors import error

DEEP = "[" * 200_000 + "]" * 200_000
CONFIG, SETTINGS, WEIGHTS = "contextualizer_config.json", "config_sentence_transformers.json", "model.safetensors"
MODULES, TOKENIZER = "modules.json", "tokenizer.json"
UNREADABLE = "no readable safetensors"
Change = Callable[[Path], Any]


def change(function: Callable[..., Any]) -> Callable[..., Change]:
    """Let a function of a folder be called with its other arguments first."""
    return lambda *given, **options: lambda folder: function(folder, *given, **options)


@change
def edited(folder: Path, file: str, /, *places: str | int, **changes: Any) -> None:
    """Change an object at a place in a JSON file."""
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    reduce(operator.getitem, places, content).update(changes)
    (folder / file).write_text(json.dumps(content), encoding="utf-8")


def normalized(*parts: dict[str, Any]) -> Change:
    return edited(TOKENIZER, normalizer={"type": "Sequence", "normalizers": parts})


def replaced(pattern: dict[str, str], content: str, times: int = 1) -> Change:
    return normalized(*[{"type": "Replace", "pattern": pattern, "content": content}] * times)


@change
def tensor(folder: Path, name: str, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors | {name: changed(tensors[name]).contiguous()}, folder / WEIGHTS)


@change
def header(folder: Path, changed: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of the weights, or put another text in its place."""
    content = (folder / WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    fields = json.loads(content[8 : 8 + size])
    text = (changed(fields) or json.dumps(fields)).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def of_U(**changes: Any) -> Change:
    return header(lambda fields: fields["attention.U"].update(changes))


@change
def written(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@change
def pipe(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


@change
def cut(folder: Path, size: int) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size + size if size < 0 else size)


@change
def chain(folder: Path, count: int) -> None:
    """Phrases of which each is the one before it and an entry."""
    tensors = load_file(folder / WEIGHTS)
    entries, dimension = tensors["embedding.weight"].shape
    phrases = torch.full((count, 2), 6, dtype=torch.int32)
    phrases[1:, 0] = torch.arange(entries, entries + count - 1)
    table = torch.zeros(entries + count, dimension, dtype=torch.int8)
    scales = torch.ones(entries + count, 1, dtype=torch.float16)
    changed = {"phrases": phrases, "embedding.weight": table, "embedding.scales": scales}
    save_file(tensors | changed, folder / WEIGHTS)


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
PREPEND = {"type": "Prepend", "prepend": "abc " * 1000}
SPLIT = {"type": "Split", "pattern": {"Regex": "(a|b)" * 1000}, "behavior": "Isolated", "invert": False}
HOSTILE: dict[str, tuple[Change, str]] = {
    "a chain of phrases": (chain(45_000), "phrase 63 must stand for at most 64 entries, got 65"),
    "words without a limit": (edited(TOKENIZER, "model", max_input_chars_per_word=2**31), "at most 1000, got 21474"),
    "an id beyond": (edited(TOKENIZER, "model", "vocab", the=2**31), "the tokenizer's ids must have no gaps"),
    "a long replacement": (replaced({"String": "a"}, "a" * 10_000), "into at most 100, got 10000"),
    "replacements of replacements": (replaced({"String": "a"}, "aa", 30), "into at most 100, got 1073741824"),
    "many normalizers": (normalized(*[{"type": "Lowercase"}] * 100_000), "must have at most 100 normalizers and"),
    "a long beginning": (normalized(*[PREPEND] * 50), "at most 100 characters may be put before a text, got 200,000"),
    "a long pattern": (edited(TOKENIZER, pre_tokenizer=SPLIT), "must have at most 1000 characters, got 5000"),
    "no tokenizer": (written(TOKENIZER, "{}"), "no tokenizer"),
    "NaN": (tensor("attention.b", lambda b: b * np.nan), "numbers of attention.b are NaN or infinite"),
    "infinite scales": (tensor("embedding.scales", lambda s: s / 0), "numbers of embedding.scales are NaN or infinite"),
    "fewer scales": (tensor("embedding.scales", lambda s: s[:3]), "embedding.scales must have shape"),
    "integers": (tensor("attention.U", lambda U: U.to(torch.int64)), "attention.U must not hold I64 numbers"),
    "wide levels": (tensor("embedding.weight", lambda w: w.to(torch.int32)), "weight must not hold I32 numbers"),
    "another tensor": (header(lambda fields: fields.update(more=EMPTY)), "has the tensor 'more'"),
    "overlapping tensors": (header(lambda fields: fields.update(more=fields["attention.b"])), "overlap or leave gaps"),
    "a huge shape": (of_U(shape=[2**40, 4, 16]), UNREADABLE),
    "a shape of text": (of_U(shape="2, 4"), UNREADABLE),
    "a negative place": (of_U(data_offsets=[-512, 0]), UNREADABLE),
    "metadata of text": (header(lambda fields: fields.update(__metadata__="pt")), UNREADABLE),
    "a deep header": (header(lambda fields: DEEP), UNREADABLE),
    "a long header": (header(lambda fields: "{}" + " " * (1 << 21)), UNREADABLE),
    "weights of text": (written(WEIGHTS, "garbage"), f"{UNREADABLE} file (it is cut short)"),
    "weights cut at the end": (cut(-5), "ends beyond the file"),
    "cut weights": (cut(100), UNREADABLE),
    "max_seq_length 0": (edited(CONFIG, max_seq_length=0), "max_seq_length must be a positive integer, got 0"),
    "a huge dimension": (edited(CONFIG, dimension=10**6), ", 1000000), got ("),
    "huge steps": (edited(CONFIG, steps=2**30), "attention.U must have shape (1073741824, 4, 16)"),
    "unknown options": (edited(CONFIG, taste=1), "initial_context, max_seq_length, got "),
    "a size beyond": (edited(CONFIG, rank=10**30), "rank must be a positive integer, got 1000000000000000"),
    "a dimension of a list": (edited(CONFIG, dimension=[16]), "dimension must be a positive integer, got [16]"),
    "unknown positions": (edited(CONFIG, positions={"a": 1}), "positions must be one of absolute, none, relative"),
    "truncate_dim 0": (edited(SETTINGS, truncate_dim=0), "truncate_dim must be a positive integer, got 0"),
    "a wide truncate_dim": (edited(SETTINGS, truncate_dim=17), "must be at most 16, the model's features, got 17"),
    "prompts of a list": (edited(SETTINGS, prompts=["a"]), "prompts must be texts by name, got ['a']"),
    "an unknown prompt": (edited(SETTINGS, default_prompt_name="x"), "must name one of the prompts, got 'x'"),
    "another similarity": (edited(SETTINGS, similarity_fn_name="x"), "must be one of cosine, dot, euclidean"),
    "deep settings": (written(SETTINGS, DEEP), "cannot be read as JSON"),
    "no modules": (written(MODULES, "[]"), "must be a list of 1 to 100 modules"),
    "modules of numbers": (written(MODULES, "[1, 2]"), "must have a name, a path and a type, got 1"),
    "a config of a list": (written(CONFIG, "[]"), "must be a JSON object, got a list"),
    "many modules": (written(MODULES, "[" + "1," * 400_000 + "1]"), "must be a list of 1 to 100 modules"),
    "a large file": (written(MODULES, " " * (1 << 21)), "must have at most 1,048,576 bytes, got 2,097,152"),
    "enormous weights": (cut((1 << 40) + 1), "must have at most 1,099,511,6"),
    "a path outside": (edited(MODULES, 0, path="../other"), "must lie inside the folder, got the path '../other'"),
    "an absolute path": (edited(MODULES, 1, path="/etc"), "must lie inside the folder, got the path '/etc'"),
    "half a character": (edited(MODULES, 1, path="\ud800"), "must lie inside the folder, got the path '\\ud800'"),
    "two of one name": (edited(MODULES, 1, name="0"), "two modules have the same name"),
    "a pipe for the tokenizer": (pipe(TOKENIZER), "tokenizer.json: must be a regular file"),
    "a pipe for the weights": (pipe(WEIGHTS), "model.safetensors: must be a regular file"),
}


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    model = make_model(tokenizer)
    model[0].round_table()
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture
def hostile(saved, tmp_path):
    """Make a copy of the saved model with a change."""

    def make(change: Change) -> Path:
        folder = shutil.copytree(saved, tmp_path / "model")
        change(folder)
        return folder

    return make


either = pytest.mark.parametrize("load", [Embedder.load, ctx_embed.load], ids=["numpy", "torch"])


def refused(message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    start = time.process_time()
    said = error(call, *arguments, **options)
    assert message in said
    assert "\n" not in said
    assert time.process_time() - start < 5


@either
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_one_line(hostile, name, load):
    change, message = HOSTILE[name]
    refused(message, load, hostile(change))


@either
def test_words_may_be_as_long_as_the_limit(hostile, load):
    assert np.isfinite(load(hostile(edited(TOKENIZER, "model", max_input_chars_per_word=1000))).encode(["a cat"])).all()


LONG = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<u8', 'fortran_order': False, 'shape': (1000000000000000,), }"
# What torch alone reads.
OF_TORCH: dict[str, tuple[Change, str]] = {
    "no texts read": (
        edited(MODULES, 0, type="sentence_transformers.models.Normalize"),
        "module that reads texts, got N",
    ),
    "another feature": (
        written("1_Normalize/config.json", '{"module_output_name": "x"}'),
        "must read and write sentence_embedding",
    ),
    "no array": (written("labelled_texts.npy", b""), "cannot be read as an array"),
    "a long array": (written("labelled_texts.npy", LONG.ljust(127) + b"\n"), "cannot be read as an array"),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_what_torch_alone_reads_is_one_line(hostile, name):
    change, message = OF_TORCH[name]
    refused(message, ctx_embed.load, hostile(change))


@pytest.mark.parametrize("name", ["transformer", "dan", "use-transformer"])
def test_layers_without_tensors_are_one_line(tokenizer, tmp_path, name):
    module = system(name)(tokenizer, 16)
    SentenceTransformer(modules=[module]).save_pretrained(str(tmp_path))
    edited(module.config_file_name, layers=10**6)(tmp_path)
    refused("must have a tensor for each of 1,000,000 layers, got ", ctx_embed.load, tmp_path)


@pytest.mark.parametrize("name", ["a chain of phrases", "NaN", "huge steps", "a pipe for the weights"])
def test_sentence_transformers_itself_refuses_it(hostile, name):
    change, message = HOSTILE[name]
    refused(message, SentenceTransformer, str(hostile(change)), trust_remote_code=True)


def test_an_id_beyond_the_table_is_one_line(hostile):
    folder = hostile(edited(TOKENIZER, "model", "vocab", the=5000))
    refused("has ids beyond its 90 entries", Embedder.load(folder).encode, "the cat")
    refused("ids must have no gaps", ctx_embed.load, folder)


@either
def test_a_regular_expression_that_gives_up_is_one_line(hostile, load):
    model = load(hostile(replaced({"Regex": "(a+)+$"}, "")))
    assert "the model's tokenizer fails on a text" in error(model.encode, "a" * 40 + "b")
