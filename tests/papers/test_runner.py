from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from ctx_embed.fingerprint import identity
from papers import RunOptions, Workplace, find_experiment, reproduce, write_report, write_tables
from papers.runner import FORMAT, CellFile, chosen
from tests.helpers.errors import error
from tests.papers.conftest import silent

TABLE3 = find_experiment("table3")
ONE = RunOptions(quick=True, folds=3, patterns=("ones_k-1",))


def measured(results) -> list[dict]:
    """Return the results by part without their times."""
    return [
        {
            part: {name: figures[name] for name in figures.keys() - {"seconds"}}
            for part, figures in outcome.parts.items()
        }
        for outcome in results.outcomes
    ]


def counting(experiment, done: list[str]):
    """Return the experiment, recording the parts it computes."""

    def work(settings, part, workplace):
        done.append(part)
        return experiment.work(settings, part, workplace)

    return replace(experiment, work=work)


def wait_for(path: Path, text: str, process: subprocess.Popen) -> None:
    """Wait until a file under ``path`` holds ``text``."""
    while not any(text in file.read_text() for file in path.glob("*.json")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


@pytest.mark.parametrize("folds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_killed_command_resumes_with_the_same_results(data_folder, vocabulary, tmp_path, folds):
    given = ["--data", data_folder, "--tokenizer", vocabulary, "--out", tmp_path, "--cell", "*_k-5", "--folds", 10]
    command = [sys.executable, "-m", "papers", "table3", "--quick", *map(str, given)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_for(tmp_path / "cells", '"fold 2"', process)
        os.kill(process.pid, signal.SIGKILL)
    kept = {file.name: json.loads(file.read_text())["parts"] for file in (tmp_path / "cells").glob("*.json")}
    # The command may have computed more of its ten folds than are looked at here.
    options = RunOptions(quick=True, folds=folds, patterns=("*_k-5",))
    workplace = Workplace(data_folder, 0, vocabulary)
    done: list[str] = []
    resumed = reproduce(counting(TABLE3, done), tmp_path / "cells", workplace, options, silent)
    assert 0 < len(done) < 3 * folds
    whole = measured(reproduce(TABLE3, tmp_path / "whole", workplace, options, silent))
    found = measured(resumed)
    assert [{part: found[cell][part] for part in parts} for cell, parts in enumerate(whole)] == whole
    assert any("fold 2" in parts for parts in kept.values())
    for name, parts in kept.items():
        after = json.loads((tmp_path / "cells" / name).read_text())["parts"]
        assert {part: after[part] for part in parts} == parts


def test_a_damaged_cell_is_computed_again(workplace, tmp_path):
    whole = reproduce(TABLE3, tmp_path, workplace, ONE, silent)
    (file,) = tmp_path.glob("ones_k-1-*.json")
    text = file.read_text()
    for damaged in (text[: len(text) // 2], "", "[]", "[" * 100_000, text.replace('"accuracy": ', '"accuracy": 1')):
        file.write_text(damaged)
        told: list[str] = []
        again = reproduce(TABLE3, tmp_path, workplace, ONE, told.append)
        assert told[0] == f"{file}: damaged; the cell will be computed again"
        assert len(told) == 4
        assert measured(again) == measured(whole)


def computed(results) -> dict[str, int]:
    """Return the number of parts of each cell that has any."""
    return {outcome.cell.key: len(outcome.parts) for outcome in results.outcomes if outcome.parts}


def test_runs_add_up(workplace, tmp_path):
    done: list[str] = []
    experiment = counting(TABLE3, done)
    reproduce(experiment, tmp_path, workplace, ONE, silent)
    other = RunOptions(quick=True, folds=1, patterns=("learned_k-1", "ones_k-1"))
    assert computed(reproduce(experiment, tmp_path, workplace, other, silent)) == {"ones_k-1": 3, "learned_k-1": 1}
    assert done == ["fold 1", "fold 2", "fold 3", "fold 1"]


def test_a_report_has_what_other_runs_have_stored_meanwhile(workplace, tmp_path):
    first = reproduce(TABLE3, tmp_path / "cells", workplace, ONE, silent)
    second = reproduce(TABLE3, tmp_path / "cells", workplace, replace(ONE, patterns=("learned_k-1",)), silent)
    for write in (lambda: write_tables(first, tmp_path), lambda: write_report(first, tmp_path, silent)):
        write_report(second, tmp_path, silent)
        write()
        cells = json.loads((tmp_path / "results.json").read_text())["cells"]
        assert [cell["cell"] for cell in cells if cell["parts"]] == ["ones_k-1", "learned_k-1"]


def test_runs_at_one_cell_share_its_folds(workplace, tmp_path):
    """Each fold is computed by one of them, and both know all in the end; the tables need not be the same."""
    table2 = find_experiment("table2")
    fold = RunOptions(quick=True, folds=3, patterns=("contextualizer_0.5-m",))
    done: list[str] = []
    others: list[str] = []
    told: list[str] = []
    with ThreadPoolExecutor(1) as shell:
        futures = []

        def work(settings, part, workplace):
            done.append(part)
            if part == "fold 1":
                options = replace(fold, patterns=("ones_k-5",))
                futures.append(
                    shell.submit(reproduce, counting(TABLE3, others), tmp_path, workplace, options, told.append)
                )
                while len(others) < 2 or not any('"fold 3"' in file.read_text() for file in tmp_path.glob("*.json")):
                    assert not futures[0].done()
                    time.sleep(0.005)
            return table2.work(settings, part, workplace)

        results = reproduce(replace(table2, work=work), tmp_path, workplace, fold, silent)
        beside = futures[0].result()
    assert (done, others) == (["speed", "fold 1"], ["fold 2", "fold 3"])
    assert told[0] == "table3 ones_k-5 fold 1: another run is computing it"
    assert list(results.outcomes[0].parts) == ["speed", "fold 1", "fold 2", "fold 3"]
    (same,) = (outcome for outcome in beside.outcomes if outcome.cell.key == "ones_k-5")
    assert list(same.parts) == ["fold 1", "fold 2", "fold 3"]
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_what_another_run_leaves_undone_is_done_in_the_end(workplace, tmp_path):
    done: list[str] = []
    (cell,) = chosen(TABLE3, ["ones_k-1"])
    settings = TABLE3.quick(cell.settings)
    held = CellFile(tmp_path, cell, identity(FORMAT, workplace.identity(settings)), silent)
    stopped = Event()

    def work(settings, part, workplace):
        done.append(part)
        if part == "fold 3":
            stopped.set()
        return TABLE3.work(settings, part, workplace)

    def other() -> None:
        with held.claimed("fold 2", wait=False) as mine:
            assert mine
            taken.set()
            assert stopped.wait(60)

    taken = Event()
    with ThreadPoolExecutor(1) as shell:
        future = shell.submit(other)
        assert taken.wait(60)
        reproduce(replace(TABLE3, work=work), tmp_path, workplace, ONE, silent)
        future.result()
    assert done == ["fold 1", "fold 3", "fold 2"]


def test_tables_share_cells(workplace, tmp_path):
    done: list[str] = []

    def run(name, **options):
        experiment = counting(find_experiment(name), done)
        return reproduce(experiment, tmp_path, workplace, RunOptions(quick=True, **options), silent)

    run("table2", folds=1, patterns=("contextualizer_0.5-m",))
    assert done == ["speed", "fold 1"]
    run("table3", folds=2, patterns=("ones_k-5",))
    assert done == ["speed", "fold 1", "fold 2"]
    again = run("table2", folds=2, patterns=("contextualizer_0.5-m",))
    assert (len(done), again.outcomes[0].figures["tests"]) == (3, 2)
    done.clear()
    run("lama-figure5", patterns=("*_r8",))
    assert len(done) == 6
    assert len(computed(run("lama-table3", patterns=("*_r8",)))) == len(done) == 6 + 2
    run("lama-table4")
    figure2 = run("lama-figure2")
    # IMDB and R8 once, for the words of both tables.
    assert len(done) == 6 + 2 + 2
    assert figure2.outcomes[0].figures["attention"]


@pytest.mark.parametrize("other", ["seed", "data", "vocabulary", "changes", "full"])
def test_what_decides_the_outcome_begins_anew(workplace, data_folder, vocabulary, tmp_path, other):
    done: list[str] = []
    experiment = counting(TABLE3, done)
    options = replace(ONE, folds=1)
    reproduce(experiment, tmp_path / "out", workplace, options, silent)
    if other == "seed":
        workplace = replace(workplace, seed=1)
    elif other == "data":
        rows = (data_folder / "senteval" / "MR.tsv").read_text().splitlines(keepends=True)
        (tmp_path / "senteval").mkdir()
        (tmp_path / "senteval" / "MR.tsv").write_text("".join(rows[::-1]))
        workplace = replace(workplace, data=tmp_path)
    elif other == "vocabulary":
        text = re.sub(r'("lowercase": ?)true', r"\1false", vocabulary.read_text())
        (tmp_path / "other.json").write_text(text)
        assert text != vocabulary.read_text()
        workplace = replace(workplace, tokenizer=tmp_path / "other.json")
    elif other == "changes":
        options = replace(options, changes={"scale": "sum", "epochs": 1})
    else:
        options = replace(options, quick=False, changes={"epochs": 1})
    reproduce(experiment, tmp_path / "out", workplace, options, silent)
    assert done == ["fold 1"] * 2


def test_changes_reach_the_cells_that_have_them(workplace, tmp_path):
    table4 = find_experiment("table4")
    patterns = ("contextualizer-from-scratch_mr", "dan_mr")
    options = RunOptions(quick=True, folds=1, patterns=patterns, changes={"scale": "sum", "epochs": 1})
    results = reproduce(table4, tmp_path, workplace, options, silent)
    of_mr = {outcome.cell.row: outcome.cell.settings for outcome in results.outcomes if outcome.parts}
    assert of_mr["Contextualizer, from scratch"]["architecture"]["scale"] == "sum"
    assert "scale" not in of_mr["DAN"]["architecture"]
    assert {settings["training"]["epochs"] for settings in of_mr.values()} == {1}
    # A change need not fit the cells that are not asked for.
    options = RunOptions(quick=True, folds=1, patterns=("dan_mr",), changes={"dimension": 30})
    results = reproduce(table4, tmp_path / "dan", workplace, options, silent)
    (outcome,) = (outcome for outcome in results.outcomes if outcome.parts)
    assert outcome.cell.settings["architecture"]["dimension"] == 30
    options = replace(options, patterns=())
    assert error(reproduce, table4, tmp_path, workplace, options, silent) == "heads must divide the dimension 30, got 4"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scal": 1}, "unknown option of the cells of table3 'scal': did you mean 'scale'? known"),
        ({"rank": 0}, "rank must be a positive integer, got 0"),
        ({"rank": 10**14}, "{'rank': 100000000000000}: the encoder cannot be created; "),
        ({"scale": "median"}, "unknown scale 'median': "),
        ({"epochs": 0.5}, "epochs must be a value like 10, got 0.5"),
        ({"token_deviation": -1}, "token_deviation must be a value like 1.0, got -1"),
        ({"initial_b": 1e39}, "initial_b must be a value like 1.0, got 1e+39"),
        ({"redrawn": 1}, "redrawn must be a value like False, got 1"),
        ({"head": 1}, "head must be a value like zeros, got 1"),
        ({"head": "zero"}, "unknown head 'zero': did you mean 'zeros'? known are probe, random, zeros"),
        ({"token_dropout": 1}, "token_dropout must be at least 0 and below 1, got 1"),
    ],
)
def test_changes_that_are_refused(workplace, tmp_path, changes, message):
    options = RunOptions(changes=changes)
    assert error(reproduce, TABLE3, tmp_path / "out", workplace, options, silent).startswith(message)
    assert not (tmp_path / "out").exists()


def test_what_is_refused(workplace, tmp_path, vocabulary):
    def refused(experiment, options, workplace=workplace, out=tmp_path / "out") -> str:
        return error(reproduce, experiment, out, workplace, options, silent)

    said = refused(TABLE3, RunOptions(patterns=("ones_k-1", "k-9")))
    assert said.startswith("--cell k-9: must match a cell of table3: ones_k-1, ")
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


def test_the_data_of_cells_that_are_not_asked_for_need_not_be_there(data_folder, vocabulary, tmp_path):
    (tmp_path / "senteval").mkdir()
    (tmp_path / "senteval" / "CR.tsv").write_bytes((data_folder / "senteval" / "CR.tsv").read_bytes())
    # Patterns are of any case.
    options = RunOptions(quick=True, folds=1, patterns=("DAN_cr",))
    results = reproduce(
        find_experiment("table4"), tmp_path / "out", Workplace(tmp_path, 0, vocabulary), options, silent
    )
    assert computed(results) == {"dan_cr": 1}


def test_a_cell_that_could_not_be_stored_is_not_computed(workplace, tmp_path):
    reproduce(TABLE3, tmp_path, workplace, replace(ONE, folds=1), silent)
    (file,) = tmp_path.glob("ones_k-1-*.json")
    file.unlink()
    file.mkdir()
    done: list[str] = []
    said = error(reproduce, counting(TABLE3, done), tmp_path, workplace, ONE, silent)
    assert (said, done) == (f"cannot write {file}: the output must be a file, got a folder", [])
