"""Passages are embedded with the title of their document, and stay so through edits, compaction and new models."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ctx_embed
from ctx_embed import SearchIndex
from tests.index.support.hash_model import HashModel, hash_vectors

TITLE = "Care of bicycles"
FIRST = f"{TITLE}\n\nA clean bicycle lasts for many years and is a pleasure to ride."
SECOND = "Put a drop of oil on each link and wipe off what is left over with a dry cloth."


@pytest.fixture
def index(tmp_path):
    with SearchIndex.create(tmp_path / "notes.index", chunk="passages:24") as index:
        index.add([f"{FIRST}\n\n{SECOND}"], ["a"], [{"title": TITLE, "year": 2020}])
        yield index


def vectors(index: SearchIndex) -> dict[tuple[str, str], np.ndarray]:
    """The stored vector of each passage, by id and text."""
    output = index.path.parent / "exported"
    index.export(output)
    rows = [json.loads(line) for line in output.with_suffix(".jsonl").read_text().splitlines()]
    return {(row["id"], row["text"]): vector for row, vector in zip(rows, np.load(f"{output}.npy"), strict=True)}


def same(vector: np.ndarray, text: str) -> bool:
    embedding = ctx_embed.load().encode(text)
    return bool(np.allclose(vector, embedding / np.linalg.norm(embedding), atol=1e-5))


def test_a_passage_that_lacks_the_title_is_embedded_with_it(index):
    found = vectors(index)
    assert set(found) == {("a", FIRST), ("a", SECOND)}
    assert same(found["a", FIRST], FIRST)
    assert same(found["a", SECOND], f"{TITLE}\n{SECOND}")
    assert not index.verify()
    # A document that is not cut is embedded as it is, however often its text has come.
    index.add([SECOND, SECOND], ["b", "c"], [{"title": TITLE}, {}])
    found = vectors(index)
    assert same(found["b", SECOND], SECOND)
    assert same(found["c", SECOND], SECOND)
    assert same(found["a", SECOND], f"{TITLE}\n{SECOND}")


def test_another_title_embeds_the_passages_again(index):
    before = vectors(index)
    index.update_metadata(["a"], {"year": 2021})
    assert all(np.array_equal(vector, before[key]) for key, vector in vectors(index).items())
    index.update_metadata(["a"], {"title": "Chains"})
    after = vectors(index)
    assert same(after["a", FIRST], f"Chains\n{FIRST}")
    assert same(after["a", SECOND], f"Chains\n{SECOND}")
    assert index.get("a").metadata == {"title": "Chains", "year": 2021}
    index.update_metadata(["a"], {"title": None})
    assert same(vectors(index)["a", SECOND], SECOND)
    assert len(index) == 1
    assert not index.verify()


def test_compaction_and_another_model_keep_it(index):
    index.add(["a document to be deleted"], ["gone"])
    index.delete(["gone"])
    index.compact()
    assert same(vectors(index)["a", SECOND], f"{TITLE}\n{SECOND}")
    index.add([SECOND], ["b"])
    assert same(vectors(index)["b", SECOND], SECOND)
    assert index.reembed(HashModel(16))
    assert not index.verify()
    found = vectors(index)
    for key, text in ((("a", SECOND), f"{TITLE}\n{SECOND}"), (("b", SECOND), SECOND), (("a", FIRST), FIRST)):
        np.testing.assert_allclose(found[key], hash_vectors([text], 16)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("title", "chunk"), [*((title, "passages:24") for title in ("", " ", None, 7, ["a"])), (TITLE, "sentences")]
)
def test_other_passages_are_embedded_as_they_are(tmp_path, title, chunk):
    with SearchIndex.create(tmp_path / "i", chunk=chunk) as index:
        index.add([f"{FIRST}\n\n{SECOND}"], ["a"], [{"title": title}])
        assert same(vectors(index)["a", SECOND], SECOND)
