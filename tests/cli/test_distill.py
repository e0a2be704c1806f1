from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import click
import pytest

from ctx_embed import load
from ctx_embed.cli.distill import SECTIONS, distill
from ctx_embed.systems import SYSTEMS
from ctx_embed.training import distill as distill_in_python
from tests.helpers.cli import Command

COMMAND = Command("distill")

SMALL = {
    "dimension": 8,
    "steps": 1,
    "rank": 2,
    "epochs": 2,
    "batch_size": 16,
    "held_out": 16,
    "vocabulary_size": 120,
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, tiny_model_path, sentences):
    """Work in a folder with a teacher and three corpus files of 80 sentences each, and no data folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTX_EMBED_DATA", raising=False)
    (tmp_path / "teacher").symlink_to(tiny_model_path)
    for name in ("a.txt", "b.txt", "c.txt.gz"):
        text = "".join(f"{sentence} {name[0]} {number}\n" for number in range(10) for sentence in sentences).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return tmp_path


def options(**changes) -> list[str]:
    chosen = {"teacher": "teacher", **SMALL, **changes}
    return [part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def run(*arguments, **changes):
    return COMMAND.run(*arguments, *options(**changes))


def sentences_of(result) -> int:
    """The sentences that a run tells."""
    assert result.exit_code == 0, result.output
    line = r"model: trained on ([\d,]+) texts, held-out 1 - cos 0\.\d{4} \(([\d,]+) held out\)\n"
    told = [int(number.replace(",", "")) for number in re.fullmatch(line, result.stdout).groups()]
    assert told == [record()["trained_texts"], record()["held_out_texts"]]
    return record()["texts"]


def fails(*arguments, **changes) -> str:
    return COMMAND.fails("-o", "model", *arguments, *options(**changes))


def record() -> dict:
    with open("model/training.json", encoding="utf-8") as file:
        return json.load(file)


def test_a_model(here):
    result = run("--corpus", "a.txt", "-o", "model")
    assert sentences_of(result) == 80
    assert f"{record()['held_out_distance']:.4f}" in result.stdout
    *epochs, last = result.stderr.splitlines()
    assert [line.split(":")[0] for line in epochs] == ["epoch 1", "epoch 2"]
    following = "next: ctx-embed eval run --encoder model --encoder default --task STSB"
    assert re.fullmatch(rf"took \d+ s; {following}", last)
    assert sorted(set(os.listdir()) - {"a.txt", "b.txt", "c.txt.gz", "teacher"}) == ["model", "model.teacher"]
    assert load("model").encode(["the cat"]).shape == (1, 8)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--corpus", "a.txt", "b.txt", "c.txt.gz", "-o", "model"],
        ["-o", "model", "--corpus", "a.txt", "b.txt", "--corpus", "c.txt.gz"],
        ["--corpus", "**/*.txt*", "--data", "..", "-o", "model"],
    ],
)
def test_ways_to_name_a_corpus(here, arguments):
    if ".." in arguments:
        arguments = [str(here.parent) if part == ".." else part for part in arguments]
        arguments = [part.replace("**", f"**/{here.name}") for part in arguments]
    assert sentences_of(run(*arguments)) == 240
    assert sorted(record()["sources"][0]["files"]) == ["a.txt", "b.txt", "c.txt.gz"]


def test_the_device_of_teacher_and_student():
    assert run("a.txt", "-o", "plain").exit_code == 0
    assert run("a.txt", "-o", "named", "--device", "cpu").exit_code == 0
    plain, named = (load(name).encode(["the device changes nothing"]) for name in ("plain", "named"))
    assert (plain == named).all()
    assert "device 'warp' cannot be used here (" in fails("a.txt", "--device", "warp")


def test_a_training_that_does_not_help_is_named(here):
    result = run("a.txt", "-o", "model", learning_rate=50, relation_weight=0)
    assert "so the start is kept; try a lower --learning-rate or more texts" in result.stderr
    assert (record()["kept_epoch"], record()["held_out_distance"]) == (0, record()["history"][0]["held_out_distance"])


def test_a_finished_model_is_not_replaced_unasked(here):
    first = run("--corpus", "a.txt", "-o", "model")
    before = (here / "model" / "model.safetensors").read_bytes()
    again = run("--corpus", "a.txt", "-o", "model")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert again.stderr.startswith("nothing to do: this command has made model already\n")
    # From Python, without the options that are defaults.
    summary = distill_in_python("a.txt", "model", teacher="teacher", progress=False, **SMALL)
    assert f"{summary['held_out_distance']:.4f}" in first.stdout
    message = (
        "model: a model exists already and this command would make another; replace it with --overwrite, or choose "
        "another name"
    )
    (here / "labelled.tsv").write_text("0\tbad\n1\tgood\n" * 20)
    arguments = [["--corpus", "b.txt"], ["--corpus", "a.txt", "--labelled", "labelled.tsv"]]
    changes = [{"seed": 1}, {"epochs": 1}, {"rank": 3}, {"vocabulary_size": 110}, {"store": "float16"}, {"phrases": 2}]
    for change in changes:
        assert fails("--corpus", "a.txt", **change) == message
    for other in arguments:
        assert fails(*other) == message
    assert (here / "model" / "model.safetensors").read_bytes() == before
    assert run("--corpus", "b.txt", "-o", "model", "--overwrite").exit_code == 0
    assert (here / "model" / "model.safetensors").read_bytes() != before


def test_texts_of_evaluation_sets_are_left_out(here):
    (here / "test.tsv").write_text("1\t" + (here / "a.txt").read_text().splitlines()[0].upper() + "\n")
    result = run("--corpus", "a.txt", "-o", "model", "--exclude", "*.tsv", "--data", ".")
    assert sentences_of(result) == 80
    assert "1 of 80 texts are excluded" in result.stderr
    assert (list(record()["exclude"]), record()["excluded_texts"]) == (["test.tsv"], 1)
    (here / "test.tsv").write_text((here / "a.txt").read_text())
    message = "all 80 texts are excluded; give texts that are not in the excluded files"
    assert fails("--corpus", "a.txt", "--exclude", "test.tsv", "--overwrite") == message


def test_a_corpus_and_labels_in_tables(here):
    lines = (here / "a.txt").read_text().splitlines()
    (here / "a.csv").write_text("body\n" + "".join(f'"{line}"\n' for line in lines))
    (here / "labels.csv").write_text(
        "stars,body\n" + "".join(f"{number % 2},{line}\n" for number, line in enumerate(lines))
    )
    fields = ["--field", "body", "--label-field", "stars"]
    result = run("--corpus", "a.csv", "--labelled", "labels.csv", "-o", "model", *fields, spare_dimensions=2)
    assert sentences_of(result) == 80
    of_table = record()["history"]
    (here / "labels.tsv").write_text("".join(f"{number % 2}\t{line}\n" for number, line in enumerate(lines)))
    arguments = ["--corpus", "a.txt", "--labelled", "labels.tsv", "-o", "model", "--overwrite"]
    again = run(*arguments, spare_dimensions=2)
    assert sentences_of(again) == 80
    assert [epoch["held_out_distance"] for epoch in record()["history"]] == [
        epoch["held_out_distance"] for epoch in of_table
    ]


def test_data_from_the_environment(monkeypatch, here, tmp_path_factory):
    monkeypatch.setenv("CTX_EMBED_DATA", str(here))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    teacher = str(here / "teacher")
    assert sentences_of(run("--corpus", "[ab].txt", "-o", "model", teacher=teacher)) == 160
    monkeypatch.delenv("CTX_EMBED_DATA")
    message = "[ab].txt: no such file; patterns need --data or CTX_EMBED_DATA"
    assert fails("--corpus", "[ab].txt", teacher=teacher) == message


@pytest.mark.parametrize("name", ["missing.txt", "", "**x", "/", "none/*.gz"])
def test_a_corpus_that_is_not_there(here, name):
    hint = "; patterns need --data or CTX_EMBED_DATA" if "*" in name else ""
    assert fails("--corpus", name) == f"{name}: no such file{hint}"
    (here / "empty").mkdir()
    if name != "/":
        assert fails("--corpus", name, "--data", "empty") == f"{name}: no such file, and nothing under empty matches it"


SYSTEM = {name: value for name, value in SMALL.items() if name not in ("steps", "rank")}


def run_system(*arguments, **changes):
    """A run without the Contextualizer's own flags."""
    chosen = {"teacher": "teacher", **SYSTEM, **changes}
    flags = [part for name, value in chosen.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return COMMAND.run("--corpus", "a.txt", "-o", "model", "--overwrite", *arguments, *flags)


@pytest.mark.parametrize("encoder", SYSTEMS)
def test_every_system_comes_nearer_to_the_teacher(encoder):
    of_system = {"transformer": ["dropout=0"], "use-transformer": ["dropout=0"], "cnn": ["dropout=0"]}.get(encoder, [])
    arguments = [part for option in of_system for part in ("--option", option)]
    result = run_system(*arguments, encoder=encoder, epochs=4, phrases=3, store="int8")
    assert result.exit_code == 0, result.output
    history = record()["history"]
    assert min(entry["held_out_distance"] for entry in history[1:]) < history[0]["held_out_distance"]
    assert record()["encoder"] == encoder
    model = load("model")
    assert type(model[0]) is SYSTEMS[encoder]
    assert model.encode(["the cat"]).shape == (1, 8)


def test_options_of_a_system(here):
    assert run_system("--option", "heads=3", "--option", "context=learned", encoder="lama").exit_code == 0
    assert record()["architecture"] == {
        "dimension": 8,
        "spare_dimensions": 0,
        "heads": 3,
        "context": "learned",
        "output_dimension": 8,
    }
    assert load("model")[0].heads == 3
    assert run_system("--option", "widths=1,2", "--option", "filters=2", encoder="cnn").exit_code == 0
    assert load("model")[0].widths == [1, 2]


def test_a_recipe_of_a_system(here):
    (here / "r.toml").write_text('encoder = "lama"\n[encoder_options]\nheads = 3\ncontext = "learned"\n')
    assert run_system("--recipe", "r.toml").exit_code == 0
    assert (load("model")[0].heads, load("model")[0].context) == (3, "learned")
    assert run_system("--recipe", "r.toml", "--option", "heads=2").exit_code == 0
    assert (load("model")[0].heads, load("model")[0].context) == (2, "learned")
    assert run_system("--recipe", "r.toml", encoder="mean").exit_code == 0
    assert record()["architecture"] == {"dimension": 8, "spare_dimensions": 0}
    assert run_system("--steps", "3", encoder="lama").stderr.endswith(
        "only for the contextualizer; use --option for lama.\n"
    )
    assert "must be NAME=VALUE, got 'heads'." in run_system("--option", "heads", encoder="lama").stderr


def test_a_model_to_start_from_keeps_its_rank_or_fewer_heads(here):
    assert run("a.txt", "-o", "first").exit_code == 0
    sizes = ["--epochs", "2", "--batch-size", "16", "--held-out", "16"]
    for given, rank in (([], 2), (["--rank", "1"], 1)):
        arguments = ["a.txt", "--teacher", "teacher", "--from", "first", "-o", "model", "--overwrite"]
        result = COMMAND.run(*arguments, *sizes, *given)
        assert result.exit_code == 0, result.output
        assert json.loads((here / "model" / "contextualizer_config.json").read_text())["rank"] == rank
    assert record()["architecture"]["rank"] == 1
    message = "rank must be at most that of the model to start from, 2, got 3; leave it out"
    assert fails("a.txt", "--from", "first", "--overwrite", rank=3) == message


RECIPES = sorted(Path(__file__).parents[2].glob("recipes/*.toml"))
# The recipes of the model that ships run always.
SHIPPED = ("default", "second-stage")


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(path, marks=[] if path.stem in SHIPPED else pytest.mark.slow, id=path.stem) for path in RECIPES],
)
def test_the_recipes_in_the_repository(here, recipe):
    """Every recipe runs as it is on a small folder of data, but for the teacher and the sizes that it decides."""
    texts = (here / "a.txt").read_text().splitlines()[:32]
    kinds = ("definition", "heading", "headline", "product", "qa", "summary", "title", "tldr", "nli", "para")
    named = (
        *(f"{kind}_a" for kind in kinds),
        *("nli_counterfactual_snli", "nli_snli_dev_test", "definition_wordnet", "headline_article_news"),
        *("product_title_description", "qa_medquad", "qa_squad_sentences", "qa_wikiqa", "qa_xquad_en"),
        *("summary_passage_cochrane", "title_abstract_arxiv", "tldr_abstract_scitldr"),
    )
    pairs = [json.dumps({"query": text, "passage": f"{text} {number}"}) for number, text in enumerate(texts)]
    genres = (
        *("wikipedia_en", "wikisplit", "gutenberg", "dialogue_a", "dialogue_sgd", "dialogue_topical_chat", "docs_a"),
        *("docs_microsoft_cpp", "docs_powershell", "docs_python_peps", "abstracts_arxiv", "imdb_reviews"),
        *("reviews_other", "reviews_steam", "recipes_howto", "nltk_mixed", "reuters21578", "news_2010s"),
        *(f"{family}_a" for family in ("bio", "finance", "forum", "gov", "issues", "legal", "politics", "questions")),
        *("tweets_a", "bio_craft", "bio_evidence_inference", "forum_stackexchange"),
    )
    for name, lines in {
        **{f"corpus/{genre}.00.txt.gz": texts for genre in genres},
        **{f"pairs/{name}.jsonl.gz": pairs for name in named},
        "sentiment/pros_cons.tsv": [f"{number % 2}\t{text}" for number, text in enumerate(texts)],
        "sentiment/uci_a.tsv": [f"{number % 2}\t{text}" for number, text in enumerate(texts)],
        "sentiment/b.tsv.gz": [f"{number % 2}\t{text}" for number, text in enumerate(texts)],
        "longdocs/IMDB_train.tsv.gz": [f"{number % 2}\t7\t{text}" for number, text in enumerate(texts)],
        "sentiment/imdb_lines_to_skip.json": ['{"lines": {}}'],
        "senteval/STSB_dev.tsv": [f"{number % 5}\tso {text}\tnot {texts[0]}" for number, text in enumerate(texts)],
    }.items():
        (here / name).parent.mkdir(exist_ok=True)
        content = "\n".join(lines).encode()
        (here / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    sizes = {**SYSTEM, "spare_dimensions": 2, "vocabulary_size": 120, "phrases": 3, "batch_size": 32, "held_out": 8}
    flags = [part for name, value in sizes.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    arguments = ["--recipe", str(recipe), "--data", ".", "--teacher", "teacher", "-o", "model", *flags]
    if "\nstart = " in recipe.read_text():
        # The shipped model is too large for the teacher here.
        assert run("a.txt", "-o", "first", spare_dimensions=2).exit_code == 0
        arguments += ["--from", "first", "--learning-rate", "0.005"]
        arguments += ["--second-teacher", "teacher"] * ("second_texts" in recipe.read_text())
        arguments += ["--rank", "1"] * ("\nrank = " in recipe.read_text())
    result = COMMAND.run(*arguments)
    assert result.exit_code == 0, result.output
    assert load("model").encode(["the cat"]).shape == (1, 8)
    history = record()["history"]
    assert min(entry["held_out_distance"] for entry in history[1:]) < history[0]["held_out_distance"]


def test_a_training_that_diverges_leaves_the_teachers_work_only():
    result = run("--corpus", "a.txt", "-o", "model", learning_rate=1e30)
    assert result.exit_code == 1
    assert result.stderr == "Error: the training diverged at step 2 (nan); lower --learning-rate\n"
    assert sorted(path for path in os.listdir() if path.startswith("model")) == ["model.teacher"]


# Recipes


@pytest.fixture
def recipe(here):
    def write(**changes) -> list[str]:
        values = {"corpus": ["a.txt"], "teacher": "teacher", **SMALL, **changes}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value is not None]
        (here / "r.toml").write_text("".join(lines))
        return ["--recipe", "r.toml"]

    return write


def with_recipe(*arguments: str):
    return COMMAND.run("-o", "model", "--overwrite", *arguments)


def test_a_recipe(recipe):
    assert sentences_of(with_recipe(*recipe(corpus=["a.txt", "c.txt.gz"], learning_rate=0.01, seed=3))) == 160
    assert record()["options"]["learning_rate"] == 0.01
    assert record()["options"]["seed"] == 3
    assert record()["architecture"]["dimension"] == 8


def test_what_is_given_on_the_command_line_goes_before_the_recipe(recipe):
    for order in (1, -1):
        arguments = [recipe(seed=3, sentences=80), ["--seed", "4", "--corpus", "b.txt", "--epochs", "1"]]
        assert sentences_of(with_recipe(*[part for group in arguments[::order] for part in group])) == 80
        assert record()["options"]["seed"] == 4
        assert record()["options"]["epochs"] == 1
        assert list(record()["sources"][0]["files"]) == ["b.txt"]


def test_a_recipe_sets_no_place_of_the_command(recipe):
    for name in ("output", "cache", "data", "recipe", "more"):
        assert f"unknown option of r.toml '{name}': " in with_recipe(*recipe(**{name: "x"})).stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 1.5}, "Invalid value for '--epochs': '1.5' is not a valid integer range."),
        ({"learning_rate": "nan"}, "Invalid value for '--learning-rate': 'nan' is not a finite number."),
        ({"corpus": None}, "Missing option '--corpus'."),
    ],
)
def test_a_recipes_values_are_checked_as_options_are(recipe, changes, message):
    result = with_recipe(*recipe(**changes))
    assert result.exit_code == 2
    assert result.stderr.endswith(f"Error: {message}\n")


def test_the_help_has_every_option_in_one_section():
    named = [name for names in SECTIONS.values() for name in names]
    options = [option.name for option in distill.params if isinstance(option, click.Option) and not option.hidden]
    assert sorted(named) == sorted(name for name in options if name != "help")
    shown = COMMAND.succeeds("--help")
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")] == [*SECTIONS]
    assert shown.count("--epochs") == 1


def test_real_text(data):
    corpus = ["--corpus", "corpus/docs_python_peps.00.txt.gz", "--data", str(data)]
    result = run(*corpus, "-o", "model", sentences=1000, vocabulary_size=2000, epochs=1, batch_size=128)
    assert sentences_of(result) == 2048
