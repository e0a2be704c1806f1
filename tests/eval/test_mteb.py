"""The default model runs in MTEB (extra ``mteb``), without its network."""

from __future__ import annotations

import pytest
from datasets import Dataset, DatasetDict

from ctx_embed.eval.scoring.similarity import spearman
from ctx_embed.loading import load

FIRST = ["a cat sat on the mat", "prices rise faster than wages", "the film was a joy", "rain fell all night"]
SECOND = ["a cat was sitting on a rug", "wages lag behind prices", "the train was late", "he reads a book"]
SCORES = [4.5, 4.0, 1.0, 0.5]

# The package itself warns, of its own changes.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def test_the_default_model_on_a_local_task():
    mteb = pytest.importorskip("mteb", reason="the extra mteb is not installed")
    from mteb.abstasks.sts import AbsTaskSTS

    unknown = ("date", "domains", "task_subtypes", "license", "annotations_creators", "dialect", "sample_creation")

    class LocalSTS(AbsTaskSTS):
        metadata = mteb.TaskMetadata(
            name="LocalSTS",
            description="Four pairs.",
            reference=None,
            dataset={"path": "local/pairs", "revision": "1"},
            type="STS",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
            bibtex_citation=None,
            **dict.fromkeys(unknown),
        )
        min_score, max_score = 0, 5

        def load_data(self, **_):
            rows = {"sentence1": FIRST, "sentence2": SECOND, "score": SCORES}
            self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
            self.data_loaded = True

    model = load()
    result = mteb.evaluate(model, LocalSTS(), cache=None, show_progress_bar=False)
    cosines = model.similarity_pairwise(model.encode(FIRST), model.encode(SECOND)).tolist()
    assert 100 * result.task_results[0].get_score() == pytest.approx(spearman(cosines, SCORES))
