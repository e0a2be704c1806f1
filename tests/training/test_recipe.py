from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ctx_embed import load
from ctx_embed.errors import InputError
from ctx_embed.fingerprint import fingerprint
from ctx_embed.training import recipe
from ctx_embed.training.distillation import Distillation
from ctx_embed.training.recipe import distill_from_files, read_recipe
from ctx_embed.training.teacher import TeacherCache

NAMES = {"corpus", "epochs", "teacher", "learning_rate", "held_out"}
SMALL = {"dimension": 8, "steps": 1, "rank": 2, "epochs": 2, "batch_size": 16, "held_out": 16, "vocabulary_size": 120}


def error(function, *arguments, **options) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments, **options)
    return str(caught.value)


# Recipes


@pytest.fixture
def toml(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "recipe.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_a_recipe(toml):
    path = toml('# how\ncorpus = ["a.txt", "b/*.gz"]\nteacher = "minilm"\nepochs = 3\nlearning_rate = 5e-3\n')
    assert read_recipe(path, NAMES) == {
        "corpus": ["a.txt", "b/*.gz"],
        "teacher": "minilm",
        "epochs": 3,
        "learning_rate": 0.005,
    }
    assert read_recipe(toml(""), NAMES) == {}


def test_an_unknown_option(toml):
    path = toml("heldout = 16")
    known = "known are corpus, epochs, held_out, learning_rate, teacher"
    assert error(read_recipe, path, NAMES) == (f"unknown option of {path} 'heldout': did you mean 'held_out'? {known}")
    path = toml("[training]\nepochs = 3")
    assert error(read_recipe, path, NAMES) == f"unknown option of {path} 'training': {known}"


def test_no_toml(toml, tmp_path):
    path = toml("epochs: 3")
    assert error(read_recipe, path, NAMES).startswith(f"{path}: not TOML (Expected '=' after a key")
    path = toml(b"\xff")
    assert error(read_recipe, path, NAMES).startswith(f"{path}: not TOML ('utf-8' codec can't decode byte 0xff")
    missing = tmp_path / "missing.toml"
    assert error(read_recipe, missing, NAMES) == f"{missing}: cannot be read (No such file or directory)"
    assert error(read_recipe, tmp_path, NAMES) == f"{tmp_path}: cannot be read (Is a directory)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('corpus = "a.txt"', "corpus is 'a.txt', a list of strings is needed"),
        ("corpus = [1]", "corpus is [1], a list of strings is needed"),
        ("epochs = [1]", "epochs is [1], a string or a number is needed"),
        ("epochs = true", "epochs is True, a string or a number is needed"),
        ("teacher = {name = 'x'}", "teacher is {'name': 'x'}, a string or a number is needed"),
        ("epochs = 1979-05-27", "epochs is datetime.date(1979, 5, 27), a string or a number is needed"),
    ],
)
def test_a_value_of_another_kind(toml, line, message):
    path = toml(line)
    assert error(read_recipe, path, NAMES) == f"{path}: {message}"


# Teachers


# From files to a model


def written(path, sentences, numbers):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{sentence} {number}\n" for number in numbers for sentence in sentences))
    return path


@pytest.fixture
def corpus(tmp_path, sentences):
    return [written(tmp_path / "corpus.txt", sentences, range(10))]


@pytest.fixture
def distill(corpus, tmp_path, tiny_model_path):
    def run(output="model", **options):
        options = {"teacher": str(tiny_model_path), **SMALL, **options}
        return distill_from_files(options.pop("corpus", corpus), tmp_path / output, progress=False, **options)

    return run


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_and_its_record(distill, corpus, tmp_path, tiny_model, sentences):
    summary = distill(steps=2, seed=7)
    assert names(tmp_path) == ["corpus.txt", "model", "model.teacher"]
    model = load(tmp_path / "model")
    assert model.encode(sentences).shape == (8, 8)
    assert np.linalg.norm(model.encode(sentences), axis=1) == pytest.approx(np.ones(8), abs=1e-6)
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert record["encoder"] == "contextualizer"
    assert record["architecture"] == {"dimension": 8, "steps": 2, "rank": 2}
    assert record["options"]["seed"] == 7
    assert record["teacher"]["fingerprint"] == fingerprint(tiny_model)
    assert record["corpus"] == {"corpus.txt": hashlib.sha256(corpus[0].read_bytes()).hexdigest()}
    assert summary == {"sentences": 80, "held_out_distance": record["history"][-1]["held_out_distance"]}
    assert summary["held_out_distance"] < record["history"][0]["held_out_distance"]
    assert record["versions"].keys() == {"python", "ctx-embed", "sentence-transformers", "tokenizers", "torch"}


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(first, second) -> bool:
    return all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(first).items())


def test_seeds(distill, tmp_path):
    distill("first")
    distill("second")
    distill("other", seed=1)
    assert same(tmp_path / "first", tmp_path / "second")
    assert not same(tmp_path / "first", tmp_path / "other")


def test_the_mean_encoder_and_stored_dtypes(distill, tmp_path):
    distill("mean", encoder="mean", store="float16")
    (tensor,) = weights(tmp_path / "mean").values()
    assert tensor.dtype == torch.float16
    assert load(tmp_path / "mean").dtype == torch.float32
    assert json.loads((tmp_path / "mean" / "training.json").read_text())["architecture"] == {"dimension": 8}


def test_a_tokenizer_of_ones_own(distill, tmp_path, tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    distill(tokenizer=str(tmp_path / "tokenizer.json"))
    assert load(tmp_path / "model")[0].tokenizer.get_vocab() == tokenizer.get_vocab()


def test_an_interrupted_run_goes_on_to_the_same_weights(distill, tmp_path, monkeypatch):
    distill("whole")
    train = Distillation._train_batch

    def interrupted(self, rows, total):
        if self.step == 6:
            raise KeyboardInterrupt
        return train(self, rows, total)

    monkeypatch.setattr(Distillation, "_train_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        distill()
    assert names(tmp_path) == ["corpus.txt", "model.partial", "model.teacher", "whole", "whole.teacher"]
    steps = []

    def counted(self, rows, total):
        steps.append(self.step)
        return train(self, rows, total)

    monkeypatch.setattr(Distillation, "_train_batch", counted)
    monkeypatch.setattr(TeacherCache, "encode", lambda self, texts: pytest.fail("the teacher was asked again"))
    distill()
    assert steps == [4, 5, 6, 7]
    assert same(tmp_path / "whole", tmp_path / "model")
    assert names(tmp_path) == ["corpus.txt", "model", "model.teacher", "whole", "whole.teacher"]


def test_an_interrupted_run_on_other_texts_begins_anew(distill, sentences, tmp_path, monkeypatch):
    # Two files of one name, the first of which is changed.
    corpus = [
        written(tmp_path / "a" / "corpus.txt", sentences, range(5)),
        written(tmp_path / "b" / "corpus.txt", sentences, range(5, 10)),
    ]
    train = Distillation._train_batch
    steps = []

    def interrupted(self, rows, total):
        steps.append(self.step)
        if self.step == 6 and len(steps) == 7:
            raise KeyboardInterrupt
        return train(self, rows, total)

    monkeypatch.setattr(Distillation, "_train_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        distill(corpus=corpus)
    lines = corpus[0].read_text().splitlines(keepends=True)
    corpus[0].write_text("".join(lines[::-1]))  # the same vocabulary, and as many sentences
    distill(corpus=corpus)
    assert steps[7:] == list(range(8))


def test_a_cache_serves_another_model(distill, tmp_path, monkeypatch):
    distill(cache=tmp_path / "cache")
    monkeypatch.setattr(TeacherCache, "encode", lambda self, texts: pytest.fail("the teacher was asked again"))
    distill("other", cache=tmp_path / "cache", dimension=4, seed=1)
    assert names(tmp_path) == ["cache", "corpus.txt", "model", "other"]


FAILURES = [
    ({"encoder": "contextualiser"}, "unknown encoder 'contextualiser': did you mean 'contextualizer'? known are "),
    ({"teacher": "./nowhere"}, "./nowhere: no such model folder"),
    ({"tokenizer": "nowhere.json"}, "nowhere.json: no such file, a tokenizer.json is needed: "),
    ({"dimension": 17}, "dimension 17 is more than the teacher's 16"),
    ({"held_out": 81}, "80 sentences are too few: 81 are held out and two batches of 16 are needed; "),
    ({"vocabulary_size": 9}, "size 9 is too small: the letters of the texts alone need "),
    ({"corpus": []}, "the corpus has no sentence: give text files with a sentence a line"),
]


@pytest.mark.parametrize(("options", "message"), FAILURES)
def test_what_is_wrong_is_found_before_the_teacher_is_asked(distill, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(TeacherCache, "embeddings", lambda *_, **__: pytest.fail("too late"))
    assert error(distill, **options).startswith(message)
    assert names(tmp_path) == ["corpus.txt"]


def test_places_that_are_taken(distill, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert error(distill, "file") == f"cannot write {tmp_path / 'file'}: it is a file, a folder is needed"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    message = f"cannot write {tmp_path / 'folder'}: a folder with other things in it (no modules.json), "
    assert error(distill, "folder").startswith(message)
    (tmp_path / "model.partial").write_text("mine")
    message = f"{tmp_path / 'model.partial'} keeps the state of the run, but it is a file: remove it first"
    assert error(distill) == message
    (tmp_path / "other.teacher").write_text("mine")
    assert error(distill, "other").startswith(f"cannot make the cache folder {tmp_path / 'other.teacher'}/")
    assert names(tmp_path) == ["corpus.txt", "file", "folder", "model.partial", "other.teacher"]


def test_an_older_model_is_replaced_at_the_end(distill, tmp_path, monkeypatch):
    distill()
    before = weights(tmp_path / "model")
    monkeypatch.setattr(recipe, "_versions", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        distill(seed=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(tmp_path / "model").items())
    monkeypatch.undo()
    distill(seed=1)
    assert not torch.equal(weights(tmp_path / "model")["embedding.weight"], before["embedding.weight"])
    assert names(tmp_path) == ["corpus.txt", "model", "model.teacher"]
