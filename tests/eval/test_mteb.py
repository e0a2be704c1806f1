"""Models run in MTEB (extra ``mteb``), without its network, and share no score."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from ctx_embed.eval.evaluation import evaluate
from ctx_embed.eval.scoring.ranking import spearman
from ctx_embed.fingerprint import fingerprint
from ctx_embed.loading import load
from ctx_embed.systems import untrained

mteb = pytest.importorskip("mteb", reason="the extra mteb is not installed")

FIRST = ["a cat sat on the mat", "prices rise faster than wages", "the film was a joy", "rain fell all night"]
SECOND = ["a cat was sitting on a rug", "wages lag behind prices", "the train was late", "he reads a book"]
SCORES = [4.5, 4.0, 1.0, 0.5]

# The package itself warns, of its own changes.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def local(base, rows: dict[str, dict[str, list]], kind: str, category: str, score: str, **more):
    """Return a task of MTEB of this base class, with rows by split."""
    unknown = ("date", "domains", "task_subtypes", "license", "annotations_creators", "dialect", "sample_creation")

    class Local(base):
        metadata = mteb.TaskMetadata(
            name=f"Local{kind}",
            description="Texts.",
            reference=None,
            dataset={"path": "local/texts", "revision": "1"},
            type=kind,
            category=category,
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score=score,
            bibtex_citation=None,
            **dict.fromkeys(unknown),
        )

        def load_data(self, **_):
            self.dataset = DatasetDict({name: Dataset.from_dict(columns) for name, columns in rows.items()})
            self.data_loaded = True

    for name, value in more.items():
        setattr(Local, name, value)
    return Local()


def local_sts():
    from mteb.abstasks.sts import AbsTaskSTS

    rows = {"test": {"sentence1": FIRST, "sentence2": SECOND, "score": SCORES}}
    return local(AbsTaskSTS, rows, "STS", "t2t", "cosine_spearman", min_score=0, max_score=5)


def test_the_suite_scores_labels_as_mteb_does(tmp_path):
    reviews = [line.split("\t") for line in Path("docs/samples/reviews.tsv").read_text(encoding="utf-8").splitlines()]
    rows = [(str(int(label == "good")), text) for label, text in reviews]
    train, test = rows[:40], rows[40:]
    for part, of_part in (("train", train), ("test", test)):
        path = tmp_path / "longdocs" / f"IMDB_{part}.tsv.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{label}\t0\t{text}\n" for label, text in of_part), encoding="utf-8")
    ours = evaluate([load()], "MTEB-IMDB", tmp_path).scores
    from mteb.abstasks.classification import AbsTaskClassification

    parts = {"train": train, "test": test}
    columns = {
        name: {"label": [int(row[0]) for row in part], "text": [row[1] for row in part]} for name, part in parts.items()
    }
    task = local(AbsTaskClassification, columns, "Classification", "t2c", "accuracy")
    theirs = mteb.evaluate(load(), task, cache=None, show_progress_bar=False).task_results[0]
    experiments = theirs.scores["test"][0]["scores_per_experiment"]
    (score,) = ours.values()
    assert score.folds == pytest.approx([100 * experiment["accuracy"] for experiment in experiments])


def score(model, cache=None) -> float:
    (result,) = mteb.evaluate(model, local_sts(), cache=cache, show_progress_bar=False).task_results
    return 100 * result.get_score()


def expected(model) -> float:
    return spearman(model.similarity_pairwise(model.encode(FIRST), model.encode(SECOND)).tolist(), SCORES)


def test_the_default_model_on_a_local_task():
    model = load()
    assert score(model) == pytest.approx(expected(model))


def test_no_two_models_share_a_score_through_one_cache(tmp_path, tokenizer, tiny_model_path):
    from mteb.cache import ResultCache

    cache = ResultCache(tmp_path)
    models = [load(), untrained("san", tokenizer, 8), load(tiny_model_path), load(tiny_model_path, truncate_dim=2)]
    scores = [score(model, cache) for model in models]
    assert scores == pytest.approx([expected(model) for model in models])
    assert len(set(scores)) > 1
    # A model that is there is found again, by the same name and revision.
    folders = {path.relative_to(tmp_path / "results").parts[:2] for path in tmp_path.rglob("LocalSTS.json")}
    assert ("ctx-embed__default", fingerprint(models[0])) in folders
    assert len(folders) == len(models)
    assert score(load(tiny_model_path), cache) == scores[2]
    assert len(list(tmp_path.rglob("LocalSTS.json"))) == len(models)


def test_what_mteb_reads_from_a_model(caplog):
    from mteb.models import ModelMeta

    model = load()
    meta = ModelMeta.from_sentence_transformer_model(model, fill_missing=None)
    assert (meta.name, meta.revision) == ("ctx-embed/default", fingerprint(model))
    assert (meta.max_tokens, meta.embed_dim, meta.similarity_fn_name) == (2**31 - 1, 320, "cosine")
    assert meta.n_embedding_parameters == 60_000 * 320
    assert "vocab" not in caplog.text


def test_a_complete_description():
    from ctx_embed.integrations.mteb import model_meta

    model = load()
    meta = model_meta()
    known = {name: value for name, value in meta.model_dump().items() if value is not None}
    assert (known["name"], known["revision"]) == ("ctx-embed/default", fingerprint(model))
    assert known["languages"] == ["eng-Latn"]
    assert known["license"] == "multiple"
    assert known["n_parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert known["n_embedding_parameters"] == 105_051 * 320
    assert known["embed_dim"] == 320
    assert known["max_tokens"] == 2**31 - 1
    assert score(meta) == pytest.approx(expected(model))


def test_a_description_of_another_model(tiny_model_path):
    from ctx_embed.integrations.mteb import model_meta

    meta = model_meta(str(tiny_model_path))
    assert (meta.name, meta.embed_dim, meta.languages) == ("tiny", 16, None)
    assert score(meta) == pytest.approx(expected(load(tiny_model_path)))
