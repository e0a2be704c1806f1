"""What sentence-transformers' users do with a model: pools of processes, training, checkpoints."""

import copy

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from ctx_embed import load
from tests.conftest import SENTENCES, make_model


def test_two_processes_embed_as_one_does():
    model = load(device="cpu")
    texts = [f"{sentence}, number {number}" for number in range(3) for sentence in SENTENCES]
    pooled = model.encode(texts, device=["cpu", "cpu"], chunk_size=10)
    np.testing.assert_allclose(pooled, model.encode(texts), atol=1e-6)
    # Shared memory leaves the phrases.
    expected = model[0].text_tokenizer.phrases.pairs.copy()
    model.share_memory()
    for shared in (model, copy.deepcopy(model)):
        phrases = shared[0].text_tokenizer.phrases
        assert not np.shares_memory(phrases.pairs, shared[0].phrases.numpy())
        assert (phrases.pairs == expected).all()


def pairs() -> Dataset:
    anchors = [*SENTENCES, *(sentence.split(" ", 1)[1] for sentence in SENTENCES)]
    positives = [" ".join(reversed(sentence.split())) for sentence in anchors]
    return Dataset.from_dict({"anchor": anchors, "positive": positives})


def arguments(folder, **options):
    known = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_steps": 3, "seed": 7}
    known |= {"logging_steps": 3, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    return SentenceTransformerTrainingArguments(str(folder), dataloader_pin_memory=False, **{**known, **options})


@pytest.mark.filterwarnings("default")  # other people's deprecations inside the trainer
@pytest.mark.parametrize("loss", [losses.MultipleNegativesRankingLoss, losses.CachedMultipleNegativesRankingLoss])
def test_the_trainer_trains(tokenizer, tmp_path, loss):
    model = make_model(tokenizer)
    before = model.state_dict()["0.embedding.weight"].clone()
    settings = arguments(tmp_path, max_steps=12, save_strategy="no")
    trainer = SentenceTransformerTrainer(model=model, args=settings, train_dataset=pairs(), loss=loss(model))
    trainer.train()
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert history[-1] < history[0]
    assert not torch.equal(before, model.state_dict()["0.embedding.weight"])


@pytest.mark.filterwarnings("default")
def test_a_checkpoint_resumes_to_the_same_weights(tokenizer, tmp_path):
    def trainer(folder):
        model = make_model(tokenizer)
        return SentenceTransformerTrainer(
            model=model,
            args=arguments(folder),
            train_dataset=pairs(),
            loss=losses.MultipleNegativesRankingLoss(model),
            evaluator=EmbeddingSimilarityEvaluator(SENTENCES[:4], SENTENCES[4:], [0.1, 0.2, 0.3, 0.4]),
        )

    whole = trainer(tmp_path / "whole")
    whole.train()
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    expected = whole.model.state_dict()
    for name, tensor in resumed.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
    assert np.isfinite(load(tmp_path / "whole" / "checkpoint-6").encode(SENTENCES)).all()
