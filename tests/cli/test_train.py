from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from ctx_embed import load
from ctx_embed.classify.labelled import Labelled
from ctx_embed.training import train
from ctx_embed.training.labelled_texts import are_known, hashes_of
from ctx_embed.training.options import FINE_TUNING, SupervisedOptions
from ctx_embed.training.supervised.classifier import TextClassifier
from ctx_embed.training.supervised.train import ClassifierNetwork
from tests.conftest import make_model
from tests.helpers.cli import Command
from tests.helpers.errors import error

COMMAND = Command("train", only_error=False)
run, fails = COMMAND.run, COMMAND.fails

WORDS = {"pos": ["joy", "good", "fine", "glad"], "neg": ["dull", "bad", "sad", "poor"]}
FRAMES = ["a {} film", "the book is {}", "{} from first to last", "the night was {} and long", "so {}"]
ROWS = [f"{label}\t{frame.format(word)}" for label in WORDS for word in WORDS[label] for frame in FRAMES]
SHORT = ["--epochs", "2"]
SMALL = ["--from", "scratch", "--dimension", "8", "--steps", "1", "--rank", "2", *SHORT, "--vocabulary-size", "120"]


@pytest.fixture
def train_file(here):
    return file("train.tsv", *ROWS)


def file(name: str, *lines: str) -> str:
    Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return name


def succeeds(*arguments) -> str:
    sizes = [] if "--epochs" in arguments else SHORT if "--from" in arguments else SMALL
    return COMMAND.succeeds(*arguments, *sizes, "--overwrite")


def record(name: str = "model") -> dict:
    return json.loads(Path(name, "training.json").read_text())


def test_a_model_and_its_record(train_file):
    result = run(train_file, "-o", "model", *SMALL)
    assert result.exit_code == 0, result.output
    found = record()
    best = max(entry["valid_accuracy"] for entry in found["history"])
    (epoch,) = found["result"]["best_epochs"]
    assert found["history"][epoch - 1]["valid_accuracy"] == best == found["result"]["valid_accuracy"]
    assert result.stdout == f"model: best epoch {epoch}, valid accuracy {best:.4g} (majority class 0.5)\n"
    *epochs, last = result.stderr.splitlines()
    assert [line.split(":")[0] for line in epochs] == ["epoch 1", "epoch 2"]
    assert re.fullmatch(r"took \d+ s; next: ctx-embed predict model FILE", last)
    sha256 = hashlib.sha256(Path(train_file).read_bytes()).hexdigest()
    assert found["data"] == {"train": {"file": "train.tsv", "sha256": sha256, "rows": 40}}
    assert sorted(os.listdir()) == ["model", "train.tsv"]
    assert found["options"]["epochs"] == 2
    assert found["options"]["modules"][0] == {"module": "Contextualizer", **load("model")[0].get_config_dict()}
    assert load("model").encode(["a good film"]).shape == (1, 8)
    assert set(TextClassifier.load("model").predict(["so good", "so bad"])) <= {"pos", "neg"}


def test_a_table_trains_as_the_same_lines_do(train_file):
    name = file("table.csv", "stars,review", *(row.replace("\t", ",") for row in ROWS))
    fields = ["--field", "review", "--label-field", "stars"]
    table = json.loads(succeeds(name, "-o", "of_table", "--json", "--test", name, *fields))
    lines = json.loads(succeeds(train_file, "-o", "of_lines", "--json", "--test", train_file))
    assert {**table, "model": 0} == {**lines, "model": 0}


def test_a_trained_encoder_is_tuned_by_other_defaults(train_file, tiny_model_path, tiny_model):
    succeeds(train_file, "-o", "model", "--from", tiny_model_path, "--epochs", "1")
    expected = vars(replace(FINE_TUNING, epochs=1))
    assert {name: record()["options"][name] for name in expected} == expected
    assert record()["options"]["head"] == "probe"
    model = load("model")
    assert are_known([row.split("\t")[1] for row in ROWS], model[0].labelled_texts).all()
    assert model[0].get_config_dict() == tiny_model[0].get_config_dict()
    assert not np.array_equal(model.encode(["a good film"]), tiny_model.encode(["a good film"]))


def test_json_test_texts_and_validation_texts(train_file):
    valid, test = file("valid.tsv", *ROWS[::5]), file("test.tsv", *ROWS[1::5])
    arguments = ["--valid", valid, "--test", test, "--json", "--learning-rate", "0.05"]
    result = json.loads(succeeds(train_file, "-o", "model", *arguments))
    of_parts = {f"{part}_{what}" for part in ("valid", "test") for what in ("accuracy", "floor")}
    assert result.keys() == {"model", "words", "best_epochs", "test", *of_parts}
    assert result["test_floor"] == 0.5
    assert result["model"] == "model"
    data = Labelled.read(test)
    assert result["test_accuracy"] == result["test"]["accuracy"]
    assert result["test_accuracy"] == TextClassifier.load("model").score(data.texts, data.labels)


def test_a_training_starts_from_the_default_model_unless_told(train_file):
    assert run(train_file, "-o", "model").exit_code == 0
    assert (record()["options"]["from"], record()["options"]["frozen"]) == ("default", True)
    # The same in Python.
    for start in ({}, {"start": "default"}):
        train(train_file, "model", **start)
    # The encoder is trained with the options for a trained encoder as soon as one of them is given.
    succeeds(train_file, "-o", "model", "--epochs", "1", "--runs", "1")
    assert record()["options"]["learning_rate"] == FINE_TUNING.learning_rate
    assert "frozen" not in record()["options"]


def test_from_scratch_is_the_papers_protocol(train_file):
    succeeds(train_file, "-o", "model", "--from", "scratch", "--epochs", "1", "--vocabulary-size", "120")
    options = record()["options"]
    assert (options["from"], options["learning_rate"], options["batch_size"]) == (None, 1e-4, 32)
    (config,) = (module for module in options["modules"] if module["module"] == "Contextualizer")
    expected = {"steps": 5, "rank": 260, "positions": "absolute", "scale": "sum", "initial_context": "ones"}
    assert config.items() >= expected.items()
    train(train_file, "python", SupervisedOptions(epochs=1), encoder="mean")
    assert record("python")["options"]["from"] is None
    message = "an encoder named 'mean' is trained from scratch; leave out the model to start from"
    assert error(train, train_file, "new", encoder="mean", start="default") == message
    assert error(train, train_file, "new", strat="default").startswith("unknown option 'strat': did you mean 'start'?")


def test_options_of_a_system(train_file):
    sizes = ["--dimension", "8", "--epochs", "1", "--vocabulary-size", "120"]
    succeeds(
        train_file, "-o", "model", *sizes, "--encoder", "lama", "--option", "heads=3", "--option", "output_dimension=5"
    )
    assert (load("model")[0].heads, load("model").encode(["a good film"]).shape) == (3, (1, 5))
    assert record()["options"]["from"] is None
    needed = "only for a model from scratch; add --from scratch, or leave it out: default has its own."
    for arguments, names in (
        (("--encoder", "mean", "--option", "a=1"), "--encoder, --option"),
        (("--steps", "7", "--vocabulary-size", "120"), "--steps, --vocabulary-size"),
    ):
        assert fails(train_file, "-o", "new", "--from", "default", *arguments, code=2) == f"{names}: {needed}"


def test_texts_that_the_model_has_learned_from_are_told(train_file, tokenizer):
    model = make_model(tokenizer)
    model[0].labelled_texts = hashes_of(row.split("\t")[1] for row in ROWS[:3])
    model.save_pretrained("start")
    valid, test = file("valid.tsv", *ROWS[::2]), file("test.tsv", *ROWS[1:])
    result = run(train_file, "-o", "model", "--from", "start", "--valid", valid, "--test", test, *SHORT)
    told = "texts are among the labelled texts that start was trained on; its score says less about new texts"
    assert result.stderr.splitlines()[:2] == [f"validation: 2 of 20 {told}", f"test: 2 of 39 {told}"]


@pytest.mark.parametrize("change", ["options", "rows", "valid", "start"])
def test_an_interrupted_run_with_a_change_begins_anew(train_file, tokenizer, monkeypatch, change):
    make_model(tokenizer).save_pretrained("start")
    arguments = [train_file, "-o", "model", *SHORT, "--runs", "2", "--from", "start"]
    arguments += ["--valid", file("valid.tsv", *ROWS[:30])]
    accuracy = ClassifierNetwork.accuracy
    calls = []

    def interrupted(self, data):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return accuracy(self, data)

    monkeypatch.setattr(ClassifierNetwork, "accuracy", interrupted)
    assert run(*arguments).exit_code == 130
    if change == "rows":
        file("train.tsv", *ROWS[::-1])
    elif change == "valid":
        file("valid.tsv", *(row.replace("pos\t", "neg\t") for row in ROWS[:30]))
    elif change == "start":
        make_model(tokenizer, scale="sum").save_pretrained("start")
    else:
        arguments += ["--learning-rate", "0.1"]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("run 1 of 2, epoch 1: ")


def test_a_finished_model_is_not_replaced_unasked(train_file, tokenizer):
    first = run(train_file, "-o", "model", *SMALL)
    before = Path("model/model.safetensors").read_bytes()
    again = run(train_file, "-o", "model", *SMALL)
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert again.stderr.startswith("nothing to do: this command has made model already\n")
    message = "a model exists already and this command would make another; replace it with --overwrite, or choose"
    make_model(tokenizer).save_pretrained("start")
    for change in (["--seed", "1"], ["--rank", "3"], ["--test", train_file]):
        assert fails(train_file, "-o", "model", *SMALL, *change).startswith(f"model: {message}")
    assert fails(train_file, "-o", "model", *SHORT, "--from", "start").startswith(f"model: {message}")
    assert fails(train_file, "-o", "start", *SMALL).startswith(f"start: {message}")
    file("train.tsv", *ROWS[::-1])
    assert fails(train_file, "-o", "model", *SMALL).startswith(f"model: {message}")
    assert Path("model/model.safetensors").read_bytes() == before
    succeeds(train_file, "-o", "model", *SMALL)
    assert Path("model/model.safetensors").read_bytes() != before


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "bad.tsv: no rows; give lines of label<TAB>text"),
        (["pos\tgood"] * 20, "the training texts must have at least two classes, got 1 ('pos')"),
        (
            ["stance\tsentence", *ROWS],
            "41 texts with 3 labels are too few to hold out 10% with every label; "
            "the label 'stance' occurs once, on the first line; if that is a header, name its columns with --field",
        ),
        (["pos\t", "neg\t"], "the texts must have at least one word to learn a vocabulary from, got none"),
    ],
)
def test_training_texts_that_cannot_be_used(lines, message):
    assert fails(file("bad.tsv", *lines), "-o", "model", *SMALL).startswith(message)


def test_other_texts_that_cannot_be_used(train_file):
    other = file("other.tsv", "neutral\tso so", "pos\tgood")
    for option, name in (("--valid", "validation"), ("--test", "test")):
        message = f"the {name} texts have labels that the training texts lack: 'neutral'"
        assert fails(train_file, "-o", "model", option, other, *SMALL) == message
    assert fails("missing", "-o", "model") == "missing: no such file"


def test_few_texts_leave_the_encoder_as_it_is(train_file):
    test = file("test.tsv", *ROWS[1::5])
    result = run(train_file, "-o", "model", "--from", "default", "--valid", test, "--test", test)
    assert result.exit_code == 0, result.output
    report, _, last = result.stdout.rstrip("\n").rpartition("\n\n")
    accuracies = "valid accuracy 1 (majority class 0.5), test accuracy 1 (majority class 0.5)"
    # Words may join where they help on the held-out texts.
    words = record()["result"]["words"]
    assert last == f"model: meaning{f' and {words} words and pairs' * bool(words)}, {accuracies}"
    assert report.splitlines()[0] == "accuracy 1.0000"
    assert report.splitlines()[-1].split() == ["pos", "0", "4"]
    assert record()["options"]["frozen"] is True
    assert np.array_equal(load("model").encode(["a good film"]), load().encode(["a good film"]))
    assert TextClassifier.load("model").predict("a sad film") == "neg"


def test_runs_of_a_trained_encoder_are_averaged(train_file, tiny_model_path):
    said = fails(train_file, "-o", "model", "--from", "scratch", "--runs", "2", code=2)
    assert said == "--runs needs a model to start from: the mean of encoders from scratch is useless."
    start = ["--from", tiny_model_path]
    printed = succeeds(train_file, "-o", "model", *start, "--runs", "2")
    found = record()
    best = [max(found["history"][begin : begin + 2], key=itemgetter("valid_accuracy")) for begin in (0, 2)]
    epochs = [entry["epoch"] for entry in best]
    accuracy = sum(entry["valid_accuracy"] for entry in best) / 2
    assert found["result"]["best_epochs"] == epochs
    assert found["result"]["valid_accuracy"] == pytest.approx(accuracy)
    shown = f"best epochs {epochs[0]}, {epochs[1]}, mean valid accuracy {accuracy:.4g} (majority class 0.5)"
    words = found["result"]["words"]
    assert printed == f"model: {f'meaning and {words} words and pairs, ' * bool(words)}{shown}\n"
    # With validation texts, their accuracy is that of the mean.
    valid = file("valid.tsv", *ROWS[::3])
    succeeds(train_file, "-o", "model", *start, "--runs", "2", "--valid", valid)
    data = Labelled.read(valid)
    assert record()["result"]["valid_accuracy"] == TextClassifier.load("model").score(data.texts, data.labels)


def test_frozen_goes_with_a_trained_encoder(train_file, tiny_model_path):
    for arguments, said in (
        (("--from", "scratch"), "--frozen needs a model to start from: an encoder from scratch must be trained."),
        (
            ("--from", tiny_model_path, "--epochs", "2"),
            "--epochs: only for training the encoder, which --frozen leaves as it is.",
        ),
    ):
        assert fails(train_file, "-o", "model", "--frozen", *arguments, code=2) == said
    assert run(train_file, "-o", "model", "--from", tiny_model_path, "--no-frozen").exit_code == 0
    assert record()["options"]["epochs"] == FINE_TUNING.epochs


def test_several_labels(here):
    rows = [f"{row.split()[0]},{'film' if 'film' in row else ''}\t{row.partition(chr(9))[2]}" for row in ROWS]
    several = file("several.tsv", *rows)
    result = run(several, "-o", "model", "--multi-label", "--test", several, "--json", "--from", "default")
    assert result.exit_code == 0, result.output
    test = json.loads(result.stdout)["test"]
    assert [row["label"] for row in test["classes"]] == ["film", "neg", "pos"]
    assert test["exact"] <= test["accuracy"] == json.loads(result.stdout)["test_accuracy"]
    assert set(TextClassifier.load("model").predict(["a good film"])[0]) == {"film", "pos"}


def test_class_weights(tiny_model_path):
    few = file("few.tsv", *(f"{'pos' if number % 6 else 'neg'}\tfilm {number}" for number in range(240)))
    assert run(few, "-o", "model", "--from", tiny_model_path, "--class-weight", "neg=5").exit_code == 0
    assert TextClassifier.load("model").predict_proba("a film")[0] == pytest.approx(0.5, abs=0.1)
    message = "class_weight names 'nge', but no training text has that label"
    assert fails(few, "-o", "new", "--from", "default", "--class-weight", "nge=5") == message
    said = "--class-weight must be balanced, or LABEL=W with a number W, got 'even'"
    assert fails(few, "-o", "new", "--class-weight", "even", code=2) == said
