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


def answers(folder: Path) -> dict[str, Any]:
    """Return what the model, the index and the classifier in a folder answer."""
    with SearchIndex.open(folder / "index", folder / "model") as index:
        assert index.verify() == []
        found = {
            mode: [[[hit.id, hit.score] for hit in index.search(each, 3, mode=mode, late=False)] for each in QUESTIONS]
            for mode in ("dense", "words", "hybrid")
        }
        filtered = [hit.id for hit in index.search(QUESTIONS[0], 8, where="year >= 2020 and kind = 'home'")]
    classifier = TextClassifier.load(folder / "classifier")
    return {
        "embeddings": Embedder.load(folder / "model").encode(TEXTS).tolist(),
        "found": found,
        "filtered": filtered,
        "classes": classifier.classes_.tolist(),
        "probabilities": classifier.predict_proba(REVIEWS).tolist(),
    }


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)
def test_what_a_version_wrote_opens_answers_as_it_did_and_takes_documents(version, tmp_path):
    written = Path(shutil.copytree(version, tmp_path / "written"))
    known, found = json.loads((written / "expected.json").read_text(encoding="utf-8")), answers(written)
    for embeddings in (found["embeddings"], load(str(written / "model")).encode(TEXTS)):
        np.testing.assert_allclose(embeddings, known["embeddings"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], known["probabilities"], rtol=0, atol=1e-4)
    assert (found["classes"], found["filtered"]) == (known["classes"], known["filtered"])
    for mode, lists in known["found"].items():
        for hits, others in zip(lists, found["found"][mode], strict=True):
            assert [[identifier, pytest.approx(score, abs=1e-4)] for identifier, score in hits] == others
    with SearchIndex.open(written / "index", written / "model") as index:
        index.add(["The ferry sails at noon."], ["new"])
        assert index.search("ferry", 1, mode="words")[0].id == "new"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir()
    model = make_model(learn_vocabulary([*TEXTS, *QUESTIONS, *REVIEWS], 150, progress=False), dimension=12, rank=3)
    model[0].round_table()
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    with SearchIndex.create(folder / "index", folder / "model", dtype="int8", chunk="sentences") as index:
        metadata = [{"year": 2018 + number, "kind": kind} for number, kind in enumerate(KINDS)]
        index.add(TEXTS, [f"t{number}" for number in range(len(TEXTS))], metadata)
        index.delete(["t5"])
    labels, texts = zip(*LABELLED, strict=True)
    TextClassifier(str(folder / "model")).fit(texts, labels).save(folder / "classifier")
    (folder / "expected.json").write_text(json.dumps(answers(folder), indent=1) + "\n", encoding="utf-8")
