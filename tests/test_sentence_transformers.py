"""What sentence-transformers' users do with a model: pools of processes, forks, training, checkpoints, model cards."""

import copy
import os
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.utils import convert_to_fp32, send_to_device
from datasets import Dataset
from huggingface_hub import metadata_load
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Dense

import ctx_embed
from ctx_embed import load
from ctx_embed.eval.evaluator import ProbeEvaluator
from ctx_embed.fingerprint import fingerprint
from ctx_embed.model_card import page, table
from tests.conftest import SENTENCES, make_model
from tests.helpers.cli import Command
from tests.helpers.errors import error


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_embed_as_one_does(processes):
    loaded = load(device="cpu")
    model = type(loaded)(modules=[*loaded, Dense(320, 8)], device="cpu")
    texts = [f"{sentence}, number {number}" for number in range(3) for sentence in SENTENCES]
    pooled = model.encode(texts, device=["cpu"] * processes, chunk_size=10)
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


RANKING, CACHED = losses.MultipleNegativesRankingLoss, losses.CachedMultipleNegativesRankingLoss


@pytest.mark.filterwarnings("default")  # other people's deprecations inside the trainer
@pytest.mark.parametrize(
    ("loss", "options"),
    [(RANKING, {}), (CACHED, {}), (CACHED, {"bf16": True}), (CACHED, {"gradient_checkpointing": True})],
)
def test_the_trainer_trains(tokenizer, tmp_path, loss, options):
    model = make_model(tokenizer)
    before = model.state_dict()["0.embedding.weight"].clone()
    settings = arguments(tmp_path, max_steps=12, save_strategy="no", **options)
    trainer = SentenceTransformerTrainer(model, settings, pairs(), loss=loss(model))
    trainer.train()
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert history[-1] < history[0]
    assert not torch.equal(before, model.state_dict()["0.embedding.weight"])


@pytest.mark.parametrize("copied", [convert_to_fp32, partial(send_to_device, device="cpu"), copy.deepcopy, dict])
def test_features_are_copied(tokenizer, copied):
    model = make_model(tokenizer)
    with torch.no_grad():
        features = model[0](model.preprocess(SENTENCES))
        whole = features["token_embeddings"]
    found = copied(features)
    assert found.keys() == features.keys()
    assert torch.equal(found["token_embeddings"], whole)
    assert torch.equal(pickle.loads(pickle.dumps(found))["sentence_embedding"], features["sentence_embedding"])


def test_torch_saves_and_loads_a_model(tokenizer, tmp_path):
    the, cat, dog, film = map(tokenizer.token_to_id, ("the", "cat", "dog", "film"))
    make_model(tokenizer, phrases=np.array([[the, cat], [dog, film], [the, dog]])).save_pretrained("small")
    model = load("small")
    expected = model.encode(SENTENCES)
    torch.save(model, tmp_path / "whole")
    torch.save(model.state_dict(), tmp_path / "state")
    other = load("small")
    other[0].embedding.weight.data.zero_()
    other[0].phrases.copy_(other[0].phrases.flip(1))
    other[0].tokenizer = other[0].backend_tokenizer
    assert (other.encode(SENTENCES) != expected).any()
    other.load_state_dict(torch.load(tmp_path / "state"))
    for one in (torch.load(tmp_path / "whole", weights_only=False), other, copy.deepcopy(model)):
        np.testing.assert_array_equal(one.encode(SENTENCES), expected)


ADDED = {
    "add_tokens": lambda model: model.tokenizer.add_tokens(["zyzzogeton"]),
    "add_special_tokens": lambda model: model.tokenizer.add_special_tokens({"cls_token": "[MINE]"}),
    "the view's backend": lambda model: model.tokenizer.backend_tokenizer.add_tokens(["zyzzogeton"]),
    "a known token": lambda model: model.tokenizer.add_tokens(["cat"]),
    "the model's own": lambda model: model[0].backend_tokenizer.add_tokens(["zyzzogeton"]),
}


@pytest.mark.parametrize("added", ADDED)
def test_added_tokens_are_refused(tokenizer, tmp_path, added):
    model = make_model(tokenizer)
    ADDED[added](model)
    for call in (lambda: model.encode("a cat"), lambda: model.save_pretrained(str(tmp_path))):
        assert error(call).startswith("tokens were added to the model's tokenizer (")
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.filterwarnings("default")
def test_a_checkpoint_resumes_to_the_same_weights_and_the_best_by_a_probe_is_known(tokenizer, tmp_path):
    texts = [f"{('a dull film', 'the good cat')[i % 2]} {'and rain ' * (i % 5)}" for i in range(20)]
    evaluator = ProbeEvaluator(["0", "1"] * 10, texts, name="mine")

    def trainer(folder):
        model = make_model(tokenizer)
        settings = arguments(folder, eval_strategy="steps", eval_steps=3, metric_for_best_model="eval_mine_accuracy")
        known = {"train_dataset": pairs(), "loss": RANKING(model), "evaluator": evaluator}
        return SentenceTransformerTrainer(model, settings, **known)

    whole = trainer(tmp_path / "whole")
    whole.train()
    scores = [entry["eval_mine_accuracy"] for entry in whole.state.log_history if "eval_mine_accuracy" in entry]
    assert len(scores) == 2
    assert whole.state.best_metric == max(scores)
    resumed = trainer(tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    expected = whole.model.state_dict()
    for name, tensor in resumed.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
    found = load(tmp_path / "whole" / "checkpoint-6").encode(SENTENCES)
    np.testing.assert_allclose(found, whole.model.encode(SENTENCES), atol=1e-6)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def card(name: str) -> str:
    """The card in a folder, whose Python code runs where it stands."""
    text = Path(name, "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
    assert "sentence_transformers_model_id" not in text
    return text


def test_the_untouched_default_keeps_its_card():
    for model in (ctx_embed.load(), SentenceTransformer(str(ctx_embed.path()), trust_remote_code=True)):
        model.save_pretrained("copy")
        assert Path("copy/README.md").read_bytes() == (ctx_embed.path() / "README.md").read_bytes()


@pytest.mark.filterwarnings("default")  # other people's deprecations inside the trainer
def test_the_default_trained_by_sentence_transformers():
    model = SentenceTransformer(str(ctx_embed.path()), device="cpu", trust_remote_code=True)
    options = arguments("run", max_steps=1, learning_rate=1e-3, save_strategy="no")
    pairs = Dataset.from_dict({"anchor": SENTENCES, "positive": SENTENCES[::-1]})
    SentenceTransformerTrainer(model, options, pairs, loss=RANKING(model)).train()
    model.save_pretrained("tuned")
    text = card("tuned")
    assert "# tuned\n\nSentence embeddings: trained with sentence-transformers." in text
    assert f"made from | ctx-embed/default, fingerprint `{fingerprint(ctx_embed.load())}`" in text
    assert f"| fingerprint | `{fingerprint(model)}` |" in text
    assert "8 rows of unnamed data, loss MultipleNegativesRankingLoss" in text
    assert "learning_rate 0.001" in text
    # Not the default's figures and data, but its terms.
    assert "82.7" not in text
    assert "`apache-2.0`, inherited from ctx-embed/default" in text
    stated = metadata_load("tuned/README.md")
    assert (stated["language"], stated["license"]) == ("en", "apache-2.0")
    assert "base_model" not in stated


def test_weights_that_a_program_of_its_own_changed(tokenizer):
    make_model(tokenizer).save_pretrained("made")
    assert "Sentence embeddings: made by a program of its own." in card("made")
    assert "None is stated." in card("made")
    model = ctx_embed.load("made")
    model.save_pretrained("same")
    assert card("same") == Path("made/README.md").read_text(encoding="utf-8")
    with torch.no_grad():
        model[0].embedding.weight[3] += 1
    model.save_pretrained("changed")
    assert "Sentence embeddings: made changed by a program of its own." in card("changed")
    assert f"made from | made, fingerprint `{fingerprint(ctx_embed.load('made'))}`" in card("changed")


def test_a_classifier():
    for name, count in (("mine|a.tsv", 40), ("test.tsv", 8)):
        rows = [f"{word}\tthe {word} of {number}\n" for number in range(count // 2) for word in ("joy", "grief")]
        Path(name).write_text("".join(rows))
    options = ("--from", "default", "--epochs", "1", "--runs", "1", "--test", "test.tsv")
    Command("train").succeeds("mine|a.tsv", "-o", "model", *options)
    text = card("model")
    assert "# model\n\nA text classifier" in text
    assert "trained on labelled texts from ctx-embed/default" in text
    assert "| labels | 'grief', 'joy' |" in text
    assert "| training texts | 40 |" in text
    assert re.search(r"\| valid \| held out of train \| \d+\.\d \| 50\.0 \|\n\| test \| 8 \| \d+\.\d \| 50\.0 \|", text)
    assert f"| fingerprint | `{fingerprint(ctx_embed.load('model'))}` |" in text
    assert f"made from | ctx-embed/default, fingerprint `{fingerprint(ctx_embed.load())}`" in text
    assert "82.7" not in text
    assert metadata_load("model/README.md")["license"] == "apache-2.0"


def test_the_parts(tmp_path):
    assert table(["a", "b"], [[1, "x|y"]]) == "| a | b |\n|---|---|\n| 1 | x\\|y |"
    assert table(["a"], []) == ""
    known = {"license": "mit", "language": "de"}
    for stated, found in (("", {}), ("license: [\n", {}), ("license: mit\nlanguage: de\ntags: [x]\n", known)):
        Path("README.md").write_text(f"---\n{stated}---\n")
        Path("card.md").write_text(page("model", "", [], {}, tmp_path))
        card = metadata_load("card.md")
        assert {key: card[key] for key in known if key in card} == found


SCRIPT = """
import os, sys
texts = [f"a cat sat on mat number {number}" for number in range(2000)]
if sys.argv[1] == "encoders":
    import ctx_embed
    from ctx_embed.systems import untrained
    shipped, other = ctx_embed.load(device="cpu"), untrained("transformer")
    compute = lambda texts: [*shipped.encode(texts), *other.encode(texts[:100])]
elif sys.argv[1] == "tokenizer":
    from ctx_embed.runtime import Embedder
    embedder = Embedder.load()
    def compute(texts):
        # Whole texts and words that no kernel has met: both go through the pool of threads.
        embedder.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return embedder.encode([f"{text} {os.getpid()}é{place}" for place, text in enumerate(texts)])
else:
    from ctx_embed import SearchIndex
    os.mkdir("notes")
    for number in range(20):
        open(f"notes/{number}.html", "w").write(f"<p>{texts[number]}")
    index = SearchIndex.create("index", factory="IVF16,SQ8")
    index.add(texts)
    def compute(texts):
        index.sync("notes", checksum=True)
        index.add([f"{text} {os.getpid()}" for text in texts[:50]])
        return index.search(texts[:300], k=5)
compute(texts)
child = os.fork()
if not child:
    code = 1
    try:
        code = 0 if len(compute(texts)) else 1
    finally:
        os._exit(code)
print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("kind", ["encoders", "tokenizer", "an index with FAISS"])
def test_a_child_computes_after_its_parent_did_on_several_threads(kind):
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"}
    # A child that waits for threads never ends; the session ends it with its parent.
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, kind]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    assert said == b"exit code 0\n"
