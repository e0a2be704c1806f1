"""Models run in MTEB (extra ``mteb``), without its network, and share no score."""

from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from ctx_embed.eval.evaluation import evaluate
from ctx_embed.eval.scoring.ranking import spearman
from ctx_embed.fingerprint import fingerprint
from ctx_embed.loading import load
from ctx_embed.systems import untrained

mteb = pytest.importorskip("mteb", reason="the extra mteb is not installed")
from mteb.abstasks.classification import AbsTaskClassification  # noqa: E402
from mteb.abstasks.sts import AbsTaskSTS  # noqa: E402
from mteb.cache import ResultCache  # noqa: E402
from mteb.models import ModelMeta  # noqa: E402

from ctx_embed.integrations.mteb import model_meta  # noqa: E402

FIRST = ["a cat sat on the mat", "prices rise faster than wages", "the film was a joy", "rain fell all night"]
SECOND = ["a cat was sitting on a rug", "wages lag behind prices", "the train was late", "he reads a book"]
SCORES = [4.5, 4.0, 1.0, 0.5]

# The package itself warns, of its own changes.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def local(base, rows: dict[str, dict[str, list]], kind: str, category: str, score: str, **more):
    """Return a task of MTEB of this base class, with rows by split."""
    fields = {"name": f"Local{kind}", "description": "Texts.", "type": kind, "category": category, "main_score": score}
    fields |= {"dataset": {"path": "local/texts", "revision": "1"}, "eval_langs": ["eng-Latn"]}

    def load_data(self, **_):
        self.dataset = DatasetDict({name: Dataset.from_dict(columns) for name, columns in rows.items()})
        self.data_loaded = True

    return type("Local", (base,), {"metadata": mteb.TaskMetadata(**fields), "load_data": load_data, **more})()


def score(model, cache=None) -> float:
    rows = {"test": {"sentence1": FIRST, "sentence2": SECOND, "score": SCORES}}
    task = local(AbsTaskSTS, rows, "STS", "t2t", "cosine_spearman", min_score=0, max_score=5)
    (result,) = mteb.evaluate(model, task, cache=cache, show_progress_bar=False).task_results
    return 100 * result.get_score()


def test_the_suite_scores_labels_as_mteb_does(tmp_path):
    reviews = [line.split("\t") for line in Path("docs/samples/reviews.tsv").read_text(encoding="utf-8").splitlines()]
    rows = [(int(label == "good"), text) for label, text in reviews]
    columns = {}
    (tmp_path / "longdocs").mkdir()
    for part, of_part in (("train", rows[:40]), ("test", rows[40:])):
        path = tmp_path / "longdocs" / f"IMDB_{part}.tsv.gz"
        path.write_text("".join(f"{label}\t0\t{text}\n" for label, text in of_part), encoding="utf-8")
        columns[part] = dict(zip(("label", "text"), map(list, zip(*of_part, strict=True)), strict=True))
    (ours,) = evaluate([load()], "MTEB-IMDB", tmp_path).scores.values()
    task = local(AbsTaskClassification, columns, "Classification", "t2c", "accuracy")
    theirs = mteb.evaluate(load(), task, cache=None, show_progress_bar=False).task_results[0]
    experiments = theirs.scores["test"][0]["scores_per_experiment"]
    assert ours.folds == pytest.approx([100 * experiment["accuracy"] for experiment in experiments])


def test_a_collection_of_nanobeir_scores_as_ours_in_beirs_layout(tmp_path, monkeypatch, paragraphs):
    texts = [text for text in dict.fromkeys(paragraphs) if len(text.split()) > 20][:80]
    # A document of relevance 2 for each query, and others of 1, some of which share no word with it.
    scores = {(f"q{place}", f"d{place}"): 1 for place in range(1, 20)}
    scores |= {(f"q{place}", f"d{4 * place}"): 2 for place in range(20)}
    files = {
        "corpus": pd.DataFrame({"_id": [f"d{place}" for place in range(80)], "title": "", "text": texts}),
        "queries": pd.DataFrame(
            {"_id": f"q{place}", "text": " ".join(texts[4 * place].split()[3:9])} for place in range(20)
        ),
        "default": pd.DataFrame(
            {"query-id": query, "corpus-id": of, "score": score} for (query, of), score in scores.items()
        ),
    }
    # A folder as the hub has it, which is also one as BEIR's own zip files have it.
    (tmp_path / "qrels").mkdir()
    for name, table in files.items():
        table.to_json(tmp_path / f"{name}.jsonl", orient="records", lines=True)
    configs = [f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in files]
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{''.join(configs)}---\n")
    files["default"].to_csv(tmp_path / "qrels" / "test.tsv", sep="\t", index=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    task = mteb.get_task("NanoNQRetrieval")
    monkeypatch.setitem(task.metadata.dataset, "path", str(tmp_path))
    (theirs,) = mteb.evaluate(model_meta(), task, cache=None, show_progress_bar=False).task_results
    (ours,) = evaluate([load()], str(tmp_path)).scores.values()
    assert 50 < ours.mean < 100
    assert ours.mean == pytest.approx(100 * theirs.get_score(), abs=1e-3)
    ((of_split,),) = theirs.scores.values()
    assert ours.measures["recall@100"] == pytest.approx(100 * of_split["recall_at_100"], abs=1e-3)
    assert ours.measures["MRR@10"] == pytest.approx(100 * of_split["mrr_at_10"], abs=1e-3)


def expected(model) -> float:
    return spearman(model.similarity_pairwise(model.encode(FIRST), model.encode(SECOND)).tolist(), SCORES)


def test_no_two_models_share_a_score_through_one_cache(tmp_path, tokenizer, tiny_model_path):
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


def test_descriptions(tiny_model_path, caplog):
    model = load()
    read = ModelMeta.from_sentence_transformer_model(model, fill_missing=None)
    assert "vocab" not in caplog.text
    meta = model_meta()
    known = {"name": "ctx-embed/default", "revision": fingerprint(model), "embed_dim": 320, "max_tokens": 2**31 - 1}
    assert known.items() <= read.model_dump().items()
    known |= {"languages": ["eng-Latn"], "license": "apache-2.0", "n_embedding_parameters": 116_618 * 320}
    assert known.items() <= meta.model_dump().items()
    assert score(meta) == pytest.approx(expected(model))
    meta = model_meta(str(tiny_model_path))
    assert (meta.name, meta.embed_dim, meta.languages) == ("tiny", 16, None)
