import gzip
import json
import os
import re
from pathlib import Path

import pytest

from ctx_embed import load
from ctx_embed.cli import options as chosen
from ctx_embed.fingerprint import fingerprint
from ctx_embed.systems import SYSTEMS, system
from ctx_embed.training.distillation import objectives
from tests.helpers.cli import Command, file, record
from tests.test_sentence_transformers import card

COMMAND = Command("distill")


@pytest.fixture(autouse=True)
def corpora(here, tiny_model_path, sentences):
    """A teacher and three corpus files of 80 sentences each."""
    (here / "teacher").symlink_to(tiny_model_path)
    for name in "abc":
        file(f"{name}.txt", *(f"{sentence} {name} {number}" for number in range(10) for sentence in sentences))
    (here / "c.txt.gz").write_bytes(gzip.compress((here / "c.txt").read_bytes()))
    (here / "c.txt").unlink()


SYSTEM = {"dimension": 8, "epochs": 2, "batch_size": 16, "held_out": 16, "vocabulary_size": 120}
SMALL = {**SYSTEM, "steps": 1, "rank": 2}


def options(chosen: dict) -> list[str]:
    return [part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def run(*arguments, **changes):
    return COMMAND.run(*arguments, *options({"teacher": "teacher", **SMALL, **changes}))


def run_system(*arguments, **changes):
    """A run without the Contextualizer's own flags."""
    chosen = options({"teacher": "teacher", **SYSTEM, **changes})
    return COMMAND.run("--corpus", "a.txt", "-o", "model", "--overwrite", *arguments, *chosen)


def sentences_of(result) -> int:
    """The sentences that a run tells."""
    assert result.exit_code == 0, result.output
    line = r"model: trained on ([\d,]+) texts, held-out 1 - cos 0\.\d{4} \(([\d,]+) held out\)\n"
    told = [int(number.replace(",", "")) for number in re.fullmatch(line, result.stdout).groups()]
    assert told == [record()["trained_texts"], record()["held_out_texts"]]
    return record()["texts"]


def fails(*arguments, **changes) -> str:
    return COMMAND.fails("-o", "model", *arguments, *options({"teacher": "teacher", **SMALL, **changes}))


def test_a_model(here):
    lines = (here / "a.txt").read_text().splitlines()
    file("labels.csv", "stars,body", *(f"{number % 2},{line}" for number, line in enumerate(lines)))
    fields = ["--labelled", "labels.csv", "--field", "body", "--label-field", "stars"]
    result = run("--corpus", "labels.csv", "-o", "model", *fields, spare_dimensions=2)
    assert sentences_of(result) == 80
    assert "held_out_label_accuracy" in record()["history"][-1]
    assert f"{record()['held_out_distance']:.4f}" in result.stdout
    *lines, last = result.stderr.splitlines()
    # A slow machine prints progress between them.
    assert [line.split(":")[0] for line in lines if not line.startswith("distilling:")] == ["epoch 1", "epoch 2"]
    following = "next: ctx-embed eval run --encoder model --encoder default --task STSB"
    assert re.fullmatch(rf"took \d+ s; {following}", last)
    assert sorted(name for name in os.listdir() if name.startswith("m")) == ["model", "model.teacher"]
    assert load("model").encode(["the cat"]).shape == (1, 8)
    text = card("model")
    assert "distilled from teacher" in text
    assert f"teacher, fingerprint `{fingerprint(load('teacher'))}`" in text
    assert "64 texts were trained on." in text
    assert "On 16 texts that were held out" in text
    assert re.search(r"\| held out distance \| \d\.\d{4} \| \d\.\d{4} \|", text)


def test_ways_to_name_a_corpus(here, monkeypatch, tmp_path_factory):
    # Texts of evaluation sets are left out.
    excluded = file("test.tsv", f"1\t{Path('a.txt').read_text().splitlines()[0].upper()}")
    files = ["--corpus", "a.txt", "b.txt", "--corpus", "c.txt.gz", "--exclude", excluded]
    assert sentences_of(result := run("-o", "model", *files, epochs=1)) == 240
    assert "1 of 240 texts are excluded" in result.stderr
    assert (list(record()["exclude"]), record()["excluded_texts"]) == (["test.tsv"], 1)
    assert sorted(record()["sources"][0]["files"]) == ["a.txt", "b.txt", "c.txt.gz"]
    # In order, however the system lists them.
    with monkeypatch.context() as patch:
        patch.setattr(chosen, "glob", lambda *_, **__: ["b.txt", "a.txt"])
        assert chosen.corpus_files(("[ab].txt",), here) == [here / "a.txt", here / "b.txt"]
    pattern = f"**/{here.name}/*.txt*"
    assert sentences_of(run("--corpus", pattern, "--data", "..", "-o", "model", "--overwrite", epochs=1)) == 240
    # The folder of the environment.
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    teacher = str(here / "teacher")
    message = "[ab].txt: no such file; patterns need --data or CTX_EMBED_DATA"
    assert fails("--corpus", "[ab].txt", teacher=teacher) == message
    monkeypatch.setenv("CTX_EMBED_DATA", str(here))
    assert sentences_of(run("--corpus", "[ab].txt", "-o", "model", teacher=teacher, epochs=1)) == 160
    assert fails("--corpus", "x", teacher=teacher) == f"x: no such file, and nothing under {here} matches it"


def test_a_training_that_does_not_help_is_named_and_a_finished_model_not_replaced_unasked(here):
    first = run("a.txt", "-o", "model", learning_rate=50, relation_weight=0)
    assert "so the start is kept; try a lower --learning-rate or more texts" in first.stderr
    assert (record()["kept_epoch"], record()["held_out_distance"]) == (0, record()["history"][0]["held_out_distance"])
    before = (here / "model" / "model.safetensors").read_bytes()
    again = run("a.txt", "-o", "model", learning_rate=50, relation_weight=0)
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert again.stderr.startswith("nothing to do: this command has made model already\n")
    labelled = file("labelled.tsv", *["0\tbad", "1\tgood"] * 20)
    message = "model: a model exists already and this command would make another; replace it with --overwrite, or "
    for corpus, change in (("a.txt", {"rank": 3}), ("a.txt", {"labelled": labelled}), ("b.txt", {})):
        assert fails("--corpus", corpus, **change).startswith(message)
    assert (here / "model" / "model.safetensors").read_bytes() == before
    result = run("--corpus", "a.txt", "-o", "new", learning_rate=1e30)
    assert result.stderr == "Error: the training diverged at step 2 (nan); lower --learning-rate\n"
    assert [path for path in os.listdir() if path.startswith("new")] == ["new.teacher"]


@pytest.mark.parametrize("encoder", SYSTEMS)
def test_every_system_comes_nearer_to_the_teacher(encoder):
    of_system = ["--option", "dropout=0"] if encoder in ("transformer", "use-transformer", "cnn") else []
    assert run_system(*of_system, encoder=encoder, epochs=4, phrases=3, store="int8").exit_code == 0
    history = record()["history"]
    assert min(entry["held_out_distance"] for entry in history[1:]) < history[0]["held_out_distance"]
    assert type(load("model")[0]) is system(encoder)


def test_options_and_a_recipe_of_a_system(here):
    assert run_system("--option", "widths=1,2", "--option", "filters=2", encoder="cnn", epochs=1).exit_code == 0
    assert load("model")[0].widths == [1, 2]
    file("r.toml", 'encoder = "lama"', "[encoder_options]", "heads = 3", 'context = "learned"')
    for more, heads in (([], 3), (["--option", "heads=2"], 2)):
        assert run_system("--recipe", "r.toml", *more, epochs=1).exit_code == 0
        assert (load("model")[0].heads, load("model")[0].context) == (heads, "learned")
    assert run_system("--recipe", "r.toml", encoder="mean", epochs=1).exit_code == 0
    assert record()["architecture"] == {"dimension": 8, "spare_dimensions": 0}
    for arguments, said in (
        (("--steps", "3"), "only for the contextualizer; use --option for lama.\n"),
        (("--option", "heads"), "must be NAME=VALUE, got 'heads'."),
    ):
        assert said in run_system(*arguments, encoder="lama").stderr


def test_a_model_to_start_from_keeps_its_rank_or_fewer_heads(here):
    assert run("a.txt", "-o", "first").exit_code == 0
    line = "a.txt --teacher teacher --from first -o model --overwrite --epochs 1 --batch-size 16 --held-out 16"
    for given, rank in (([], 2), (["--rank", "1"], 1)):
        COMMAND.succeeds(*line.split(), *given)
        assert load("model")[0].rank == rank
    message = "rank must be at most that of the model to start from, 2, got 3; leave it out"
    assert fails("a.txt", "--from", "first", "--overwrite", rank=3) == message


RECIPES = sorted(Path(__file__).parents[2].glob("recipes/*.toml"))
# Of the models that ship, one from scratch and one from another model run always.
SHIPPED = ("default-first", "permissive-first")


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(path, marks=[] if path.stem in SHIPPED else pytest.mark.slow, id=path.stem) for path in RECIPES],
)
def test_the_recipes_in_the_repository(here, recipe, monkeypatch):
    """Every recipe runs as it is on a small folder of data, but for the teacher and the sizes that it decides."""
    monkeypatch.setattr(objectives, "FEWEST_TAUGHT", 32)
    texts = (here / "a.txt").read_text().splitlines()[:32]
    lines = {
        "corpus": texts,
        "pairs": [json.dumps({"query": text, "passage": f"{text} {number}"}) for number, text in enumerate(texts)],
        "senteval": [f"{number % 5}\tso {text}\tnot {texts[0]}" for number, text in enumerate(texts)],
    }
    labelled = [f"{number % 2}\t{text}" for number, text in enumerate(texts)]
    # A file for each pattern of the recipe.
    for pattern, folder in re.findall(r'"((\w+)/[^"\s]+)"', recipe.read_text()):
        path = here / re.sub(r"\[(.)[^]]*\]", r"\1", pattern).replace("*", "a")
        found = lines.get("senteval" if "_test*" in pattern else folder, labelled)
        content = b'{"lines": {}}' if path.suffix == ".json" else "\n".join(found).encode()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    sizes = {**SYSTEM, "spare_dimensions": 2, "phrases": 3, "batch_size": 24, "held_out": 8}
    arguments = ["--recipe", str(recipe), "--data", ".", "--teacher", "teacher", "-o", "model", *options(sizes)]
    if "\nstart = " in recipe.read_text():
        # The shipped model is too large for the teacher here.
        assert run("a.txt", "-o", "first", spare_dimensions=2).exit_code == 0
        arguments += ["--from", "first", "--learning-rate", "0.005"]
        arguments += ["--second-teacher", "teacher"] * ("second_texts" in recipe.read_text())
        arguments += ["--rank", "1"] * ("\nrank = " in recipe.read_text())
    COMMAND.succeeds(*arguments)
    # The distance to the teacher may grow where a stage learns to find.
    losses = [step["loss"] for step in record()["losses"]]
    assert losses[-1] < losses[0]


def with_recipe(*arguments: str, **changes):
    values = {"corpus": ["a.txt"], "teacher": "teacher", **SMALL, **changes}
    file("r.toml", *(f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None))
    return COMMAND.run("-o", "model", "--overwrite", *arguments)


def test_the_command_line_goes_before_the_recipe():
    given = ["--seed", "4", "--corpus", "b.txt", "--epochs", "1"]
    for arguments in (["--recipe", "r.toml", *given], [*given, "--recipe", "r.toml"]):
        assert sentences_of(with_recipe(*arguments, seed=3, learning_rate=0.01)) == 80
        assert record()["options"].items() >= {"seed": 4, "epochs": 1, "learning_rate": 0.01}.items()
        assert list(record()["sources"][0]["files"]) == ["b.txt"]
    recipe = file("r.toml", 'teacher = "teacher"', "[[sources]]", 'files = ["a.txt"]')
    refused = COMMAND.run("-o", "model", "--recipe", recipe, "--sentences", "9")
    assert "--sentences needs --corpus" in refused.stderr


def test_a_recipe_sets_no_place_of_the_command_and_its_values_are_checked_as_options():
    for changes, message in (
        ({"output": "x"}, "unknown option of r.toml 'output': "),
        ({"epochs": 1.5}, "Invalid value for '--epochs': '1.5' is not a valid integer range."),
        ({"learning_rate": "nan"}, "learning_rate must be a finite number, above 0, got nan"),
        ({"corpus": None}, "Missing option '--corpus'."),
    ):
        result = with_recipe("--recipe", "r.toml", **changes)
        assert result.exit_code != 0
        assert f"Error: {message}" in result.stderr


def test_the_help_has_sections():
    shown = re.split(r"^(\w[\w ]+):$", COMMAND.succeeds("--help"), flags=re.MULTILINE)
    assert shown[1::2] == ["Options", "Training", "Further objectives", "Student"]
    some = "--corpus --teacher --help", "--epochs --device", "--label-weight", "--from"
    for options, part in zip(some, shown[2::2], strict=True):
        assert set(options.split()) <= set(re.findall(r"--[\w-]+", part))
