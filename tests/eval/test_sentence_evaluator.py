import numpy as np
import pandas as pd
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses

from ctx_embed.encoders import as_encoder
from ctx_embed.eval.scoring.probes import PROTOCOLS, frozen
from ctx_embed.eval.sentence_evaluator import ProbeEvaluator
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error

LABELS = ["0", "1"] * 10
TEXTS = [f"{('a dull film', 'the good cat')[i % 2]} {'and rain ' * (i % 5)}" for i in range(20)]


def test_it_gives_the_score_of_the_probe(tiny_model):
    evaluator = ProbeEvaluator(LABELS, TEXTS, name="mine", seed=2)
    metrics = evaluator(tiny_model)
    expected = PROTOCOLS["quick"].score(frozen(as_encoder(tiny_model).encode(TEXTS)), LABELS, 2)
    assert metrics == {"mine_accuracy": expected.mean / 100, "mine_std": expected.std / 100}
    assert evaluator.primary_metric == "mine_accuracy"


def test_files_series_arrays_and_generators(tiny_model, tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("".join(f"{label}\t{text}\n" for label, text in zip(LABELS, TEXTS, strict=True)))
    table = pd.DataFrame({"label": LABELS, "text": TEXTS})
    expected = ProbeEvaluator(LABELS, TEXTS)(tiny_model)
    for evaluator in (
        ProbeEvaluator.from_file(path),
        ProbeEvaluator(table["label"], table["text"]),
        ProbeEvaluator(np.array(LABELS), np.array(TEXTS)),
        ProbeEvaluator(iter(LABELS), (text for text in TEXTS)),
    ):
        assert evaluator(tiny_model) == expected
    said = "texts must be a list of strings, got a DataFrame; give one of its columns"
    assert error(ProbeEvaluator, LABELS, table).startswith(said)
    said = "there must be as many labels as texts, got 20 labels and 1 texts"
    assert error(ProbeEvaluator, LABELS, TEXTS[:1]) == said
    assert error(ProbeEvaluator, LABELS, TEXTS, protocol="x").startswith("unknown protocol 'x'")


def test_the_trainer_calls_it_and_keeps_the_best(tokenizer, tmp_path):
    model = make_model(tokenizer)
    pairs = Dataset.from_dict({"anchor": SENTENCES, "positive": SENTENCES[::-1]})
    epochs = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), **epochs, metric_for_best_model="eval_mine_accuracy", report_to="none", use_cpu=True
    )
    loss = losses.MultipleNegativesRankingLoss(model)
    evaluator = ProbeEvaluator(LABELS, TEXTS, name="mine")
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=loss, evaluator=evaluator)
    trainer.train()
    scores = [entry["eval_mine_accuracy"] for entry in trainer.state.log_history if "eval_mine_accuracy" in entry]
    assert len(scores) >= 2
    assert trainer.state.best_metric == max(scores)
