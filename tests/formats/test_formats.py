"""Every version opens what an earlier release wrote, and answers as it did.

``make.py`` writes a version's folder; once the version is released, its fixtures are never made anew. If a test fails
here, the reader of the format is wrong, not the fixture.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctx_embed import SearchIndex, TextClassifier, load
from ctx_embed.runtime import Embedder
from tests.formats.make import QUESTIONS, REVIEWS, TEXTS

VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/expected.json"))


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def written(request, tmp_path) -> Path:
    """A copy of what a version wrote: a model, an index and a classifier."""
    return Path(shutil.copytree(request.param, tmp_path / "written"))


def expected(written: Path) -> dict[str, Any]:
    return json.loads((written / "expected.json").read_text(encoding="utf-8"))


def test_a_model_opens_with_the_same_embeddings(written):
    embeddings = np.array(expected(written)["embeddings"], np.float32)
    assert Embedder.load(written / "model").encode(TEXTS) == pytest.approx(embeddings, abs=1e-5)
    assert load(str(written / "model")).encode(TEXTS) == pytest.approx(embeddings, abs=1e-5)


def test_an_index_opens_answers_and_takes_documents(written):
    answers = expected(written)
    with SearchIndex.open(written / "index", written / "model") as index:
        assert index.verify() == []
        for mode, found in answers["found"].items():
            for question, hits in zip(QUESTIONS, found, strict=True):
                assert [
                    (hit.id, pytest.approx(hit.score, abs=1e-4)) for hit in index.search(question, 3, mode=mode)
                ] == [tuple(hit) for hit in hits]
        filtered = index.search(QUESTIONS[0], 8, where="year >= 2020 and kind = 'home'")
        assert [hit.id for hit in filtered] == answers["filtered"]
        index.add(["The ferry sails at noon."], ["new"])
        assert index.search("ferry", 1, mode="words")[0].id == "new"


def test_a_classifier_opens_with_the_same_probabilities(written):
    classifier = TextClassifier.load(written / "classifier")
    assert classifier.classes_.tolist() == expected(written)["classes"]
    assert classifier.predict_proba(REVIEWS) == pytest.approx(np.array(expected(written)["probabilities"]), abs=1e-4)
