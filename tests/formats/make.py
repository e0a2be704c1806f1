"""Write a model, an index and a classifier of this version, for a new folder of tests/formats/.

    python -m tests.formats.make tests/formats/VERSION

A folder that is there already stays as it is: see test_formats.py.
"""

import json
import sys
from pathlib import Path

from ctx_embed import SearchIndex, TextClassifier
from tests.conftest import make_model

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
    from ctx_embed.training.vocabulary import learn_vocabulary

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


if __name__ == "__main__":
    make(Path(sys.argv[1]))
