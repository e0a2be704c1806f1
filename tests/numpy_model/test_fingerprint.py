"""A fingerprint is stored with what its files hold, and computed again when one of them changes."""

from __future__ import annotations

import json
import shutil

import pytest

from ctx_embed.fingerprint import fingerprint
from ctx_embed.loading import load
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model import saved as stored
from ctx_embed.numpy_model.saved import DEFAULT_MODEL, SavedContextualizer
from ctx_embed.text import normalisation


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(stored, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def folder(tmp_path, tiny_model_path):
    shutil.copytree(tiny_model_path, tmp_path / "model")
    return tmp_path / "model"


def test_the_default_models_file_is_its_own():
    content = json.loads((DEFAULT_MODEL / stored.FILE).read_text(encoding="utf-8"))
    saved = SavedContextualizer.read(DEFAULT_MODEL)
    expected = {"key": stored.files_key(saved), "fingerprint": stored.computed_fingerprint(saved)}
    assert content == expected, f"write {json.dumps(expected)} into {DEFAULT_MODEL / stored.FILE}"


def test_it_is_computed_once(cache, folder, monkeypatch):
    found = Embedder.load(folder).fingerprint
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(stored, "computed_fingerprint", lambda saved: pytest.fail("computed again"))
    assert Embedder.load(folder).fingerprint == found


def test_no_folder_says_itself_what_its_model_is(cache, folder):
    key = stored.files_key(SavedContextualizer.read(folder))
    other = json.loads((DEFAULT_MODEL / stored.FILE).read_text(encoding="utf-8"))["fingerprint"]
    (folder / stored.FILE).write_text(json.dumps({"key": key, "fingerprint": other}))
    assert Embedder.load(folder).fingerprint == fingerprint(load(folder)) != other


def test_a_changed_file_gives_another(cache, folder):
    before = Embedder.load(folder).fingerprint
    config = folder / "contextualizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "scale": "sum"}))
    assert Embedder.load(folder).fingerprint == fingerprint(load(folder)) != before


def test_the_version_of_the_normalisation_counts(cache, folder, tiny_model, monkeypatch):
    before = fingerprint(tiny_model)
    assert Embedder.load(folder).fingerprint == before
    monkeypatch.setattr(normalisation, "VERSION", normalisation.VERSION + 1)
    assert Embedder.load(folder).fingerprint == fingerprint(tiny_model) != before


def test_a_broken_or_unwritable_cache_does_no_harm(cache, folder):
    found = Embedder.load(folder).fingerprint
    (file,) = cache.iterdir()
    file.write_text("{")
    assert Embedder.load(folder).fingerprint == found
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert Embedder.load(folder).fingerprint == found
