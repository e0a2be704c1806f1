import copy
import json
import re
import shutil
import warnings
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from ctx_embed import InputError, SearchIndex
from ctx_embed.errors import OtherModelError
from ctx_embed.fingerprint import fingerprint
from ctx_embed.loading import DEFAULT_MODEL
from ctx_embed.numpy_model import saved
from tests.conftest import SENTENCES
from tests.helpers.cli import Command
from tests.helpers.errors import error
from tests.index.support.stored import changed_settings
from tests.serving.server import asking, serving


def test_a_model_that_does_not_normalise_yields_cosines_too(tmp_path, tiny_model, sentences):
    bare = SentenceTransformer(modules=[copy.deepcopy(tiny_model[0])], device="cpu")
    embeddings = bare.encode(sentences)
    assert np.abs(np.linalg.norm(embeddings, axis=1) - 1).max() > 0.1
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    with SearchIndex.create(tmp_path / "index", bare) as index:
        index.add(sentences)
        hits = index.search(sentences[0], mode="dense")
    assert hits[0].id == 0
    np.testing.assert_allclose([hit.score for hit in hits], (unit @ unit[0])[[hit.id for hit in hits]], atol=1e-6)


def test_prompts_for_queries_and_documents_are_used_and_another_width_is_refused(index, hash_model, monkeypatch):
    def asked(texts, **_):
        return hash_model.encode_document(["asked"] * len(texts))

    monkeypatch.setattr(hash_model, "encode_query", asked)
    index.add(["asked", "other"])
    assert index.search("anything", k=1, mode="dense")[0].text == "asked"
    hash_model.dimension = 5
    assert error(index.add, ["a"]).startswith("HashModel: must return 8 numbers for each text, got an array (1, 5)")
    assert index.count() == 2


def test_nan_is_refused_and_nothing_stored(tmp_path, tiny_model):
    broken = copy.deepcopy(tiny_model)
    with SearchIndex.create(tmp_path / "index", broken) as index:
        for parameter in broken.parameters():
            parameter.data.fill_(float("nan"))
        message = "SentenceTransformer: returned NaN or infinity for the text 'the cat'"
        assert error(index.add, ["the cat", "the dog"]) == message
        assert index.count() == 0
        assert index.verify(embed=False) == []


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF8,PQ8x4"])
def test_no_kind_of_index_finds_texts_that_the_shipped_model_cannot_read(tmp_path, factory):
    known = [f"{adjective} {noun}" for adjective in ["a", "red", "old", "new", "big", "wet"] for noun in SENTENCES]
    with SearchIndex.create(tmp_path / "index", factory=factory) as index:
        index.add(known * 14 + ["日本語", "العربية"] * 200)
        index.compact()
        assert bool(list((tmp_path / "index").rglob("*.faiss"))) == (factory != "Flat")
        for k in (10, 900):
            found = index.search("a cat and a dog", mode="dense", k=k)
            assert len(found) == min(k, 14 * len(known))
            assert all(hit.id < 14 * len(known) for hit in found)
        for query in ("日本語", ""):
            assert index.search(query, mode="dense") == []
        assert index.search(np.zeros(320, np.float32)) == []
        assert index.search(like=14 * len(known)) == []


def test_the_model_is_found_again_by_its_folder_or_as_the_default(tmp_path, tiny_model_path, sentences, monkeypatch):
    path = tmp_path / "index"
    monkeypatch.chdir(tiny_model_path.parent)
    with SearchIndex.create(path, tiny_model_path.name) as index:
        index.add(sentences)
        found = index.search("a cat", mode="dense")
    monkeypatch.chdir(tmp_path)
    with SearchIndex.open(path) as index:
        assert index.search("a cat", mode="dense") == found
    monkeypatch.setattr(saved, "DEFAULT_MODEL", tiny_model_path)
    SearchIndex.create(tmp_path / "default").close()
    for model in (None, "default"):
        with SearchIndex.open(tmp_path / "default", model) as index:
            index.add(["the cat"])
            assert index.search("the cat", mode="dense")[0].score == pytest.approx(1, abs=1e-6)


def test_another_model_is_refused_and_one_of_unknown_origin_may_be_the_default(
    tmp_path, tiny_model, tiny_model_path, monkeypatch
):
    other = copy.deepcopy(tiny_model)
    next(other.parameters()).data.add_(1)
    SearchIndex.create(tmp_path / "unknown", tiny_model).close()
    monkeypatch.setattr(saved, "DEFAULT_MODEL", tiny_model_path)
    with SearchIndex.open(tmp_path / "unknown") as index:
        index.add(["a cat"])
    other.save_pretrained(str(tmp_path / "other"))
    monkeypatch.setattr(saved, "DEFAULT_MODEL", tmp_path / "other")
    with SearchIndex.open(tmp_path / "unknown") as index:
        lengths = set()
        for _ in range(5):
            with pytest.raises(InputError, match="built with a model of unknown origin, fingerprint") as caught:
                index.search("a cat", mode="dense")
            lengths.add(len(caught.traceback))
        # An error that is raised again does not grow.
        assert len(lengths) <= 2
    path = tmp_path / "index"
    SearchIndex.create(path, tiny_model_path).close()
    assert error(SearchIndex.open, path, other) == (
        f"{path}: built with the model {str(tiny_model_path)!r}, fingerprint {fingerprint(tiny_model)[:12]}, dimension "
        f"16; this one has the fingerprint {fingerprint(other)[:12]}, dimension 16: open it with the model it was "
        f"built with, or embed its documents again: ctx-embed index reembed {path}"
    )


def test_a_model_that_is_gone_is_named(tmp_path, tiny_model, tiny_model_path):
    gone = Path(shutil.copytree(tiny_model_path, tmp_path / "gone"))
    SearchIndex.create(tmp_path / "index", gone).close()
    shutil.rmtree(gone)
    with SearchIndex.open(tmp_path / "index") as index:
        message = error(index.add, ["a cat"])
    assert message.startswith(f"{tmp_path / 'index'}: built with the model {str(gone)!r}, fingerprint ")
    assert f"which cannot be loaded ({gone}: no such model folder): " in message
    assert ": put it back, say where it is now (`index query --model PATH`, in Python model=PATH), or embed" in message
    SearchIndex.open(tmp_path / "index", tiny_model).close()
    assert "nowhere: no such model folder" in error(SearchIndex.open, tmp_path / "index", tmp_path / "nowhere")


def test_only_a_model_that_the_user_names_is_downloaded(index, monkeypatch):
    download = Mock(side_effect=OSError("not here"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    index.add(["a"])
    changed_settings(index.path, model="someone/model")
    for model, message in ((None, "say where it is now"), ("someone/model", "could be downloaded")):
        download.reset_mock()
        with pytest.raises(InputError, match=message), SearchIndex.open(index.path, model) as opened:
            opened.search("a", mode="dense")
        assert {call.kwargs["local_files_only"] for call in download.call_args_list} == {model is None}


def test_an_index_of_another_default_model_finds_words_and_the_command_that_it_names_brings_the_rest(tmp_path):
    path = tmp_path / "default.index"
    with SearchIndex.create(path) as index:
        index.add(SENTENCES, [f"s{n}" for n in range(8)], [{"number": n} for n in range(8)])
    # As after a change of the default model.
    changed_settings(path, model_fingerprint="0" * 64)
    with SearchIndex.open(path) as index:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert index.search("dull film", mode="words")[0].id == "s3"
            assert index.search("film", mode="words", where="number < 3")[0].id == "s2"
        with pytest.warns(UserWarning, match=r"by words alone.*with the model 'default'.*index reembed") as warned:
            (hit, *_) = index.search("dull film")
        assert (hit.id, hit.relevance) == ("s3", None)
        assert "\n" not in str(warned[0].message)
        assert "index reembed" in error(index.add, ["another"])
        assert index.count() == 8
        assert index.verify() == []
        assert "index reembed" in index.verify().unchecked[-1]
        with pytest.raises(OtherModelError, match=r"^[^\n]*ctx-embed index reembed [^\n]*$") as caught:
            index.search("dull film", mode="dense")
        anyio = pytest.importorskip("anyio")
        mcp = pytest.importorskip("ctx_embed.serving.mcp")
        with pytest.warns(UserWarning, match="by words alone"):
            found = anyio.run(mcp.create_server(index).call_tool, "search", {"query": "dull film"})
    answer = json.loads(found.content[0].text)
    assert answer["hits"][0]["id"] == "s3"
    assert "index reembed" in answer["warning"]
    with serving(path) as server:
        ask = asking(server, path.name)
        for options in ({"mode": "words"}, {}):
            assert ask("search", query="dull film", **options)["hits"][0]["id"] == "s3"
        assert "index reembed" in ask("search", query="dull film", mode="dense")["error"]["message"]
        command = re.search(r"ctx-embed (index reembed) (\S+)", str(caught.value))
        Command(command[1]).succeeds(command[2])
        # The server goes on, and finds the new vectors.
        assert ask("search", query="a boring movie", mode="dense")["hits"][0]["id"] in ("s2", "s3")
    changed_settings(path, model_fingerprint="0" * 64)
    with SearchIndex.open(path) as index:
        assert "index reembed" in error(index.add, ["another"])
        index.reembed(DEFAULT_MODEL)
        assert index.search("a boring movie", mode="dense")[0].id in ("s2", "s3")
