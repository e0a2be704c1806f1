"""Every version opens what an earlier release wrote, and answers as it did.

``python -m tests.formats.test_formats tests/formats/VERSION`` writes a version's folder. Once the version is released,
its fixtures are never made anew. If a test fails here, the reader of the format is wrong, not the fixture.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctx_embed import SearchIndex, TextClassifier, load
from ctx_embed.runtime import Embedder
from ctx_embed.training.vocabulary import learn_vocabulary
from tests.conftest import make_model

VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/expected.json"))
TEXTS = [
    "The baker opens at six and sells out of rye bread by noon.",
    "A late train made the whole class miss the museum.",
    "Rain kept the market empty, and the cheese went home unsold.",
    "The new bridge carries trams, bicycles and people on foot.",
    "Our cat hides under the stove when the plumber comes.",
    "The choir sings old songs in the station hall on Fridays.",
    "Two goals in the last minute won the match for the village.",
    "The library lends tools, seeds and a telescope.",
]
QUESTIONS = ["When does the bakery open?", "the train was late", "Where can I borrow a telescope?"]
KINDS = ["shop", "travel", "shop", "travel", "home", "travel", "home", "home"]
NOUNS = ["bread", "train", "cheese", "bridge", "cat", "choir", "match", "library"]
WORDS = {"lovely": "yes", "fine": "yes", "great": "yes", "dreary": "no", "poor": "no", "awful": "no"}
LABELLED = [(label, f"the {noun} was {word} today") for noun in NOUNS for word, label in WORDS.items()]
REVIEWS = ["a great telescope", "the station hall was poor", "lovely, not dreary"]


def make(folder: Path) -> None:
    """Write ``model``, ``index``, ``classifier``, and ``expected.json`` with what they answer."""
    folder.mkdir()
    model = make_model(learn_vocabulary([*TEXTS, *QUESTIONS, *REVIEWS], 150, progress=False), dimension=12, rank=3)
    model[0].round_table()
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    with SearchIndex.create(folder / "index", folder / "model", dtype="int8", chunk="sentences") as index:
        metadata = [{"year": 2018 + number, "kind": kind} for number, kind in enumerate(KINDS)]
        index.add(TEXTS, [f"t{number}" for number in range(len(TEXTS))], metadata)
        index.delete(["t5"])
        found = {
            mode: [[[hit.id, hit.score] for hit in index.search(question, 3, mode=mode)] for question in QUESTIONS]
            for mode in ("dense", "words", "hybrid")
        }
        filtered = [hit.id for hit in index.search(QUESTIONS[0], 8, where="year >= 2020 and kind = 'home'")]
    labels, texts = zip(*LABELLED, strict=True)
    classifier = TextClassifier(str(folder / "model")).fit(texts, labels)
    classifier.save(folder / "classifier")
    expected = {
        "embeddings": model.encode(TEXTS).tolist(),
        "found": found,
        "filtered": filtered,
        "classes": classifier.classes_.tolist(),
        "probabilities": classifier.predict_proba(REVIEWS).tolist(),
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


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


if __name__ == "__main__":
    make(Path(sys.argv[1]))
