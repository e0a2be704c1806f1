import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from huggingface_hub import metadata_load
from safetensors.numpy import load_file
from sklearn.metrics import f1_score

from ctx_embed import load
from ctx_embed.classify.labelled import Labelled, label_accuracy
from ctx_embed.errors import InputError, UnknownTextsWarning
from ctx_embed.training import train
from ctx_embed.training.labelled_texts import are_known, hashes_of
from ctx_embed.training.options import FINE_TUNING
from ctx_embed.training.supervised import job
from ctx_embed.training.supervised.classifier import TextClassifier
from tests.conftest import make_model
from tests.helpers.cli import Command, file, record
from tests.helpers.errors import error
from tests.test_sentence_transformers import card
from tests.training.toy import forty_texts

COMMAND = Command("train", only_error=False)
run, fails = COMMAND.run, COMMAND.fails

TOY = forty_texts()
ROWS = [f"{'pos' if label == '+' else 'neg'}\t{text}" for label, text in zip(TOY.labels, TOY.texts, strict=True)]
SHORT = ["--epochs", "2"]
SMALL = ["--from", "scratch", "--dimension", "8", "--steps", "1", "--rank", "2", *SHORT, "--vocabulary-size", "120"]


@pytest.fixture
def train_file(here):
    return file("train.tsv", *ROWS)


def succeeds(*arguments) -> str:
    sizes = [] if "--epochs" in arguments else SHORT if "--from" in arguments else SMALL
    return COMMAND.succeeds(*arguments, *sizes, "--overwrite")


def test_a_model_and_its_record(train_file):
    result = run(train_file, "-o", "model", *SMALL)
    assert result.exit_code == 0, result.output
    found = record()
    (epoch,), best = found["result"]["best_epochs"], max(entry["valid_accuracy"] for entry in found["history"])
    assert found["history"][epoch - 1]["valid_accuracy"] == best == found["result"]["valid_accuracy"]
    assert result.stdout == f"model: best epoch {epoch}, valid accuracy {best:.4g} (majority class 0.5)\n"
    shown = r"epoch 1: .*\nepoch 2: .*\ntook \d+ s; next: ctx-embed predict model FILE\nfor its accuracy on new .*\n"
    assert re.fullmatch(shown, result.stderr)
    sha256 = hashlib.sha256(Path(train_file).read_bytes()).hexdigest()
    assert found["data"] == {"train": {"file": "train.tsv", "sha256": sha256, "rows": 40}}
    assert sorted(os.listdir()) == ["model", "train.tsv"]
    assert found["options"]["epochs"] == 2
    assert found["options"]["modules"][0] == {"module": "Contextualizer", **load("model")[0].get_config_dict()}
    assert load("model").encode(["a good film"]).shape == (1, 8)
    assert set(TextClassifier.load("model").predict(["so good", "so bad"])) <= {"pos", "neg"}
    assert "trained on labelled texts from scratch" in card("model")
    assert "made from" not in card("model")
    assert "None is stated." in card("model")
    assert "license" not in metadata_load("model/README.md")


def test_a_table_with_test_and_validation_texts_in_json(train_file):
    name = file("table.csv", "stars,review", *(row.replace("\t", ",") for row in ROWS))
    arguments = ["--valid", name, "--test", name, "--json", "--learning-rate", "0.05"]
    result = json.loads(succeeds(name, "-o", "model", "--field", "review", "--label-field", "stars", *arguments))
    of_parts = {f"{part}_{what}" for part in ("valid", "test") for what in ("accuracy", "floor")}
    assert result.keys() == {"model", "words", "best_epochs", "test", *of_parts}
    assert (result["model"], result["test_floor"]) == ("model", 0.5)
    data = Labelled.read(train_file)
    accuracy = TextClassifier.load("model").score(data.texts, data.labels)
    assert result["valid_accuracy"] == result["test_accuracy"] == result["test"]["accuracy"] == accuracy


@pytest.mark.parametrize("options", [("--field", "review"), (), ("--id-field", "n")])
def test_titles_are_part_of_texts_and_predictions_read_the_same_columns(here, options):
    rows = [(number, *row.split("\t")) for number, row in enumerate(ROWS)]
    # The title alone tells the labels apart.
    name = file("table.csv", "n,stars,subject,text,review", *(f"{n},{label},{text},,a book" for n, label, text in rows))
    arguments = ["--title-field", "subject", "--label-field", "stars", *options, "--cv", "2", "--json"]
    result = run(name, "-o", "model", *arguments)
    assert json.loads(result.stdout)["cv"]["accuracy"] > 0.9
    assert record()["fields"] == {"text": ["subject", "review" if "review" in options else "text"], "label": "stars"}
    predict = Command("predict").succeeds
    alone = file("texts.txt", *(text for _, _, text in rows))
    assert [line.split("\t")[0] for line in predict("model", name).splitlines()] == [label for _, label, _ in rows]
    assert predict("model", name).count("a book") == (40 if "review" in options else 0)
    assert predict("model", name, "--field", "review").count("a book") == 40
    assert json.loads(predict("model", name, "--evaluate", "--json"))["texts"] == 40
    # Other inputs are read as ever.
    other = file("other.jsonl", *(json.dumps({"text": text}) for _, _, text in rows))
    assert predict("model", other) == predict("model", alone)
    lacking = file("lacking.csv", "n,other", "1,a")
    assert Command("predict").fails("model", lacking).startswith("lacking.csv: no field 'subject'")
    assert "no field 'nope' (fields: " in fails(name, "-o", "new", "--title-field", "nope", "--label-field", "stars")


def test_a_training_starts_from_the_default_model_unless_told(train_file, tiny_model_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ctx-embed", "train", "a b.tsv", "-o", "model"])
    *_, last = run(train_file, "-o", "model").stderr.splitlines()
    assert last == "for its accuracy on new texts: ctx-embed train 'a b.tsv' -o model --overwrite --cv 5"
    assert (record()["options"]["from"], record()["options"]["frozen"]) == ("default", True)
    assert np.array_equal(load("model").encode(["a good film"]), load().encode(["a good film"]))
    # The same in Python, so that nothing is left to do.
    train(train_file, "model", start="default")
    # An encoder is trained with the options for a trained one as soon as one of them is given.
    succeeds(train_file, "-o", "model", "--from", tiny_model_path, "--epochs", "1", "--runs", "1")
    assert record()["options"].items() >= vars(replace(FINE_TUNING, epochs=1, runs=1)).items()
    assert are_known([row.split("\t")[1] for row in ROWS], load("model")[0].labelled_texts).all()
    assert run(train_file, "-o", "model", "--from", tiny_model_path, "--no-frozen", "--overwrite").exit_code == 0
    assert record()["options"]["epochs"] == FINE_TUNING.epochs


def test_from_scratch_is_the_papers_protocol(train_file):
    succeeds(train_file, "-o", "model", "--from", "scratch", "--epochs", "1", "--vocabulary-size", "120")
    options = record()["options"]
    assert (options["from"], options["learning_rate"], options["batch_size"]) == (None, 1e-4, 32)
    (config,) = (module for module in options["modules"] if module["module"] == "Contextualizer")
    expected = {"steps": 5, "rank": 260, "positions": "absolute", "scale": "sum", "initial_context": "ones"}
    assert config.items() >= expected.items()
    sizes = ["--dimension", "8", "--epochs", "1", "--vocabulary-size", "120"]
    succeeds(train_file, "-o", "model", *sizes, "--encoder", "lama", "--option", "heads=3")
    assert (load("model")[0].heads, record()["options"]["from"]) == (3, None)
    message = "an encoder named 'mean' is trained from scratch; leave out the model to start from"
    assert error(train, train_file, "new", encoder="mean", start="default") == message
    assert error(train, train_file, "new", strat="default").startswith("unknown option 'strat': did you mean 'start'?")


def test_cross_validation(train_file, tiny_model_path):
    train_file = file("train.tsv", *ROWS, *ROWS[:4], "pos\t日本語")
    # The folds do not count a text again.
    with pytest.warns(UnknownTextsWarning, match=r"^1 of 45 texts have too few words .* \('日本語'\)") as said:
        result = run(train_file, "-o", "model", "--cv", "4", "--seed", "3", "--json")
    assert len(said) == 1
    found = json.loads(result.stdout)["cv"]
    texts, labels = zip(*(row.split("\t")[::-1] for row in Path(train_file).read_text().splitlines()), strict=True)
    folds = Labelled(labels, texts).folds(4, 3)
    assert sorted(row for fold in folds for row in fold) == list(range(45))
    # Each text is predicted by a classifier of the other folds.
    predicted = np.empty(45, object)
    for fold in folds:
        others = sorted(set(range(45)) - set(fold))
        assert not {texts[row] for row in fold} & {texts[row] for row in others}
        assert 3 <= sum(labels[row] == "neg" for row in fold) <= 8
        made = TextClassifier().fit([texts[row] for row in others], [labels[row] for row in others])
        predicted[fold] = made.predict([texts[row] for row in fold])
    assert found["accuracy"] == np.mean(predicted == np.array(labels))
    assert (found["folds"], found["seed"], found["texts"]) == (4, 3, 45)
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted.tolist(), average="macro"))
    assert found["floor"] == max(map(labels.count, ("neg", "pos"))) / 45
    assert "for its accuracy" not in result.stderr
    again = run(train_file, "-o", "model", "--cv", "4", "--seed", "3")
    assert again.stderr.startswith("nothing to do")
    assert again.stdout.startswith(f"4-fold cross-validation, seed 3, majority class {found['floor']:.4f}: accuracy ")
    assert fails(train_file, "-o", "new", "--cv", "46").startswith("46 folds need 46 different texts")
    # With an encoder that is trained, each fold has one of its own.
    arguments = [train_file, "-o", "tuned", "--from", tiny_model_path, *SHORT, "--runs", "1", "--cv", "2"]
    assert 0.3 < json.loads(COMMAND.succeeds(*arguments, "--json"))["cv"]["accuracy"] <= 1
    assert sorted(os.listdir()) == ["model", "train.tsv", "tuned"]


def test_rows_without_a_label(here):
    labels = ["", "+", "-", None, " ", "+"]
    name = file("rows.jsonl", *(json.dumps({"text": f"food {n}", "label": label}) for n, label in enumerate(labels)))
    listed = "rows.jsonl, line 1; rows.jsonl, line 4; rows.jsonl, line 5"
    said = f"3 rows have an empty label ({listed}); give labels, or leave such rows out by --skip-empty"
    assert fails(name, "-o", "model") == said
    result = run(name, "-o", "model", "--skip-empty")
    assert result.stderr.startswith(f"3 rows have an empty label and are left out: {listed}\n")
    assert record()["data"]["train"]["rows"] == 3


def test_a_trained_table_may_be_stored_whole(train_file, tiny_model_path):
    for store in ("int8", "float32"):
        succeeds(train_file, "--epochs", "1", "--runs", "1", "--from", tiny_model_path, "-o", store, "--store", store)
        assert str(load_file(f"{store}/model.safetensors")["embedding.weight"].dtype) == store


def test_options_that_do_not_go_together(train_file):
    needed = "only for a model from scratch; add --from scratch, or leave it out: default has its own."
    for arguments, said in (
        ("--from default --encoder mean --option a=1", f"--encoder, --option: {needed}"),
        ("--from default --steps 7 --vocabulary-size 120", f"--steps, --vocabulary-size: {needed}"),
        ("--from scratch --runs 2", "--runs needs a model to start from: the mean of encoders from scratch"),
        ("--frozen --from scratch", "--frozen needs a model to start from: an encoder from scratch must be trained."),
        ("--frozen --epochs 2", "--epochs: only for training the encoder, which --frozen leaves as it is."),
        ("--class-weight even", "--class-weight must be balanced, or LABEL=W with a number W, got 'even'"),
    ):
        assert fails(train_file, "-o", "new", *arguments.split(), code=2).startswith(said)


def test_texts_that_the_model_has_learned_from_are_told(train_file, tokenizer):
    model = make_model(tokenizer)
    model[0].labelled_texts = hashes_of(row.split("\t")[1] for row in ROWS[:3])
    model.save_pretrained("start")
    valid, test = file("valid.tsv", *ROWS[::2]), file("test.tsv", *ROWS[1:])
    result = run(train_file, "-o", "model", "--from", "start", "--valid", valid, "--test", test, *SHORT)
    told = "texts are among the labelled texts that start was trained on; its score says less about new texts"
    assert "for its accuracy on new" not in result.stderr
    assert result.stderr.splitlines()[:2] == [f"validation: 2 of 20 {told}", f"test: 2 of 39 {told}"]


def test_an_interrupted_run_with_a_change_begins_anew(train_file, tokenizer, monkeypatch):
    make_model(tokenizer).save_pretrained("start")
    arguments = [train_file, "-o", "model", "--from", "start", "--valid", file("valid.tsv", *ROWS[:30]), "--no-frozen"]
    monkeypatch.setattr(job, "Checkpoint", checkpoint := Mock(side_effect=InputError("begun")))
    for change in (
        lambda: None,
        lambda: file("train.tsv", *ROWS[::-1]),
        lambda: file("valid.tsv", *(row.replace("pos\t", "neg\t") for row in ROWS[:30])),
        lambda: make_model(tokenizer, scale="sum").save_pretrained("start"),
        lambda: arguments.extend(["--learning-rate", "0.1"]),
    ):
        change()
        assert fails(*arguments) == "begun"
    assert len({run for (_, run), _ in checkpoint.call_args_list}) == 5


def test_a_finished_model_is_not_replaced_unasked(train_file, tokenizer):
    first = run(train_file, "-o", "model", *SMALL)
    before = Path("model/model.safetensors").read_bytes()
    again = run(train_file, "-o", "model", *SMALL)
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert again.stderr.startswith("nothing to do: this command has made model already\n")
    said = "a model exists already and this command would make another; replace it with --overwrite, or choose"
    make_model(tokenizer).save_pretrained("start")
    for change in (["--rank", "3"], ["--test", train_file], ["-o", "start"]):
        assert f": {said}" in fails(train_file, "-o", "model", *SMALL, *change)
    file("train.tsv", *ROWS[::-1])
    assert fails(train_file, "-o", "model", *SMALL).startswith(f"model: {said}")
    assert Path("model/model.safetensors").read_bytes() == before
    succeeds(train_file, "-o", "model", *SMALL)
    assert Path("model/model.safetensors").read_bytes() != before


def test_texts_that_cannot_be_used(train_file):
    other, few = file("other.tsv", "neutral\tso so", "pos\tgood"), file("few.tsv", "stance\tsentence", *ROWS)
    for arguments, message in (
        ((train_file, "--valid", other), "the validation texts have labels that the training texts lack: 'neutral'"),
        ((train_file, "--test", other), "the test texts have labels that the training texts lack: 'neutral'"),
        ((few,), "41 texts with 3 labels are too few to hold out 10% with every label; the label 'stance' occurs once"),
    ):
        assert fails(*arguments, "-o", "model", *SMALL).startswith(message)


def test_runs_of_a_trained_encoder_are_averaged(train_file, tiny_model_path):
    arguments = [train_file, "-o", "model", "--from", tiny_model_path, "--runs", "2"]
    assert re.search(r"best epochs \d, \d, mean valid accuracy [\d.]+ \(majority class 0.5\)\n$", succeeds(*arguments))
    # With validation texts, their accuracy is that of the mean.
    several = file("several.tsv", *(row.replace("\t", ",all\t") for row in ROWS))
    weights = ["--class-weight", "neg=5", "--class-weight", "pos=2"]
    printed = json.loads(succeeds(several, *arguments[1:], "--multi-label", "--valid", several, "--json", *weights))
    data = Labelled.read(several, several=True)
    assert printed["valid_accuracy"] == label_accuracy(TextClassifier.load("model").predict(data.texts), data)
