from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from ctx_embed.errors import InputError
from ctx_embed.fingerprint import identity
from papers import RunOptions, Workplace, find_experiment, reproduce, write_report, write_tables
from papers.cell_file import CellFile
from papers.runner import FORMAT, chosen

TABLE3 = find_experiment("table3")
ONE = RunOptions(quick=True, folds=3, patterns=("ones_k-1",))


def silent(line: str) -> None:
    pass


def measured(results) -> list[dict]:
    """Return the results by part without their times."""
    return [
        {part: {name: value for name, value in figures.items() if name != "seconds"} for part, figures in parts.items()}
        for parts in (outcome.parts for outcome in results.outcomes)
    ]


def counting(experiment, done: list[str], stop_before: str | None = None):
    """Return the experiment, recording the parts it computes; interrupted before one."""

    def work(settings, part, workplace):
        if part == stop_before:
            raise KeyboardInterrupt
        done.append(part)
        return experiment.work(settings, part, workplace)

    return replace(experiment, work=work)


def test_an_interrupted_run_resumes_after_its_last_fold(workplace, tmp_path):
    whole = reproduce(TABLE3, tmp_path / "whole", workplace, ONE, silent)
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce(counting(TABLE3, done, "fold 2"), tmp_path / "cut", workplace, ONE, silent)
    assert done == ["fold 1"]
    resumed = reproduce(counting(TABLE3, done), tmp_path / "cut", workplace, ONE, silent)
    assert done == ["fold 1", "fold 2", "fold 3"]
    assert measured(resumed) == measured(whole)
    assert len(measured(whole)[0]) == 3


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"accuracy": ', '"accuracy": 1'),
    ],
)
def test_a_damaged_cell_is_computed_again(workplace, tmp_path, damage):
    whole = reproduce(TABLE3, tmp_path, workplace, ONE, silent)
    (file,) = tmp_path.glob("ones_k-1-*.json")
    file.write_text(damage(file.read_text()))
    told: list[str] = []
    again = reproduce(TABLE3, tmp_path, workplace, ONE, told.append)
    assert told[0] == f"{file}: damaged; the cell will be computed again"
    assert len(told) == 4
    assert measured(again) == measured(whole)


def test_runs_add_up(workplace, tmp_path):
    done: list[str] = []
    experiment = counting(TABLE3, done)
    reproduce(experiment, tmp_path, workplace, ONE, silent)
    other = RunOptions(quick=True, folds=1, patterns=("learned_k-1", "ones_k-1"))
    results = reproduce(experiment, tmp_path, workplace, other, silent)
    assert done == ["fold 1", "fold 2", "fold 3", "fold 1"]
    assert {outcome.cell.key: len(outcome.parts) for outcome in results.outcomes if outcome.parts} == {
        "ones_k-1": 3,
        "learned_k-1": 1,
    }


def test_two_shells_at_one_table(workplace, tmp_path):
    """What another run has stored meanwhile is in the report and is not overwritten."""
    other = replace(ONE, patterns=("learned_k-1",))
    beside: list[str] = []

    def work(settings, part, workplace):
        if not beside:
            beside.append(part)
            reproduce(TABLE3, tmp_path, workplace, other, silent)
        return TABLE3.work(settings, part, workplace)

    known: list[dict[str, list[str]]] = []

    def note(results):
        known.append({outcome.cell.key: sorted(outcome.parts) for outcome in results.outcomes if outcome.parts})

    folds = ["fold 1", "fold 2", "fold 3"]
    reproduce(replace(TABLE3, work=work), tmp_path, workplace, ONE, silent, note)
    assert known == [{"ones_k-1": folds, "learned_k-1": folds}]


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


def test_cells_that_a_change_makes_the_same_are_computed_once(workplace, tmp_path):
    done: list[str] = []
    options = RunOptions(quick=True, folds=1, patterns=("ones_*",), changes={"steps": 1})
    results = reproduce(counting(TABLE3, done), tmp_path, workplace, options, silent)
    assert done == ["fold 1"]
    assert [outcome.cell.key for outcome in results.outcomes if outcome.parts] == ["ones_k-1", "ones_k-5"]
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_tables_share_cells(workplace, tmp_path):
    done: list[str] = []
    fold = RunOptions(quick=True, folds=1, patterns=("contextualizer_0.5-m",))
    reproduce(counting(find_experiment("table2"), done), tmp_path, workplace, fold, silent)
    assert done == ["speed", "fold 1"]
    reproduce(counting(TABLE3, done), tmp_path, workplace, replace(fold, folds=2, patterns=("ones_k-5",)), silent)
    assert done == ["speed", "fold 1", "fold 2"]
    again = reproduce(counting(find_experiment("table2"), done), tmp_path, workplace, replace(fold, folds=2), silent)
    assert (len(done), again.outcomes[0].figures["tests"]) == (3, 2)
    done.clear()
    options = RunOptions(quick=True, patterns=("*_r8",))
    reproduce(counting(find_experiment("lama-figure5"), done), tmp_path, workplace, options, silent)
    assert len(done) == 6
    results = reproduce(counting(find_experiment("lama-table3"), done), tmp_path, workplace, options, silent)
    assert len(done) == 6 + 2
    assert sum(1 for outcome in results.outcomes if outcome.parts) == 8
    table4 = find_experiment("lama-table4")
    reproduce(counting(table4, done), tmp_path, workplace, RunOptions(quick=True), silent)
    figure2 = reproduce(counting(find_experiment("lama-figure2"), done), tmp_path, workplace, RunOptions(True), silent)
    # IMDB and R8 once, for the words of both tables.
    assert len(done) == 6 + 2 + 2
    assert figure2.outcomes[0].figures["attention"]


@pytest.mark.parametrize("other", ["seed", "data", "vocabulary", "changes", "full"])
def test_what_decides_the_outcome_begins_anew(workplace, data_folder, vocabulary, tokenizer, tmp_path, other):
    done: list[str] = []
    experiment = counting(TABLE3, done)
    options = replace(ONE, folds=1)
    reproduce(experiment, tmp_path / "out", workplace, options, silent)
    if other == "seed":
        workplace = replace(workplace, seed=1)
    elif other == "data":
        rows = (data_folder / "senteval" / "MR.tsv").read_text().splitlines(keepends=True)
        (tmp_path / "data" / "senteval").mkdir(parents=True)
        (tmp_path / "data" / "senteval" / "MR.tsv").write_text("".join(rows[::-1]))
        workplace = replace(workplace, data=tmp_path / "data")
    elif other == "vocabulary":
        text = (
            vocabulary.read_text()
            .replace('"lowercase":true', '"lowercase":false')
            .replace('"lowercase": true', '"lowercase": false')
        )
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
    options = RunOptions(quick=True, folds=1, patterns=("*_mr",), changes={"scale": "sum", "epochs": 1})
    results = reproduce(find_experiment("table4"), tmp_path, workplace, options, silent)
    of_mr = {outcome.cell.row: outcome.cell.settings for outcome in results.outcomes if outcome.cell.column == "MR"}
    assert of_mr["Contextualizer, from scratch"]["architecture"]["scale"] == "sum"
    assert "scale" not in of_mr["DAN"]["architecture"]
    assert {settings["training"]["epochs"] for settings in of_mr.values()} == {1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunOptions(patterns=("ones_k-1", "k-9")), "--cell k-9: must match a cell of table3: ones_k-1, "),
        (RunOptions(changes={"scal": 1}), "unknown option of the cells of table3 'scal': did you mean 'scale'? known"),
        (RunOptions(changes={"rank": 0}), "rank must be a positive integer, got 0"),
        (RunOptions(changes={"rank": 10**14}), "{'rank': 100000000000000}: the encoder cannot be created; "),
        (RunOptions(changes={"rank": 10**21}), "rank must be below 2^63, got 1000000000000000000000"),
        (RunOptions(changes={"scale": "median"}), "unknown scale 'median': "),
        (RunOptions(changes={"epochs": 0.5}), "epochs must be a value like 10, got 0.5"),
        (RunOptions(changes={"learning_rate": "fast"}), "learning_rate must be a value like 0.0001, got fast"),
        (RunOptions(changes={"token_deviation": -1}), "token_deviation must be a value like 1.0, got -1"),
        (RunOptions(changes={"token_deviation": float("inf")}), "token_deviation must be a value like 1.0, got inf"),
        (RunOptions(changes={"initial_b": 1e39}), "initial_b must be a value like 1.0, got 1e+39"),
        (RunOptions(changes={"initial_b": "ones"}), "initial_b must be a value like 1.0, got ones"),
        (RunOptions(changes={"redrawn": 1}), "redrawn must be a value like False, got 1"),
        (RunOptions(changes={"head": 1}), "head must be a value like zeros, got 1"),
        (
            RunOptions(changes={"head": "zero"}),
            "unknown head 'zero': did you mean 'zeros'? known are probe, random, zeros",
        ),
        (RunOptions(changes={"learning_rate": 0}), "learning_rate must be above 0, got 0"),
        (RunOptions(changes={"token_dropout": 1}), "token_dropout must be at least 0 and below 1, got 1"),
    ],
)
def test_what_is_refused(workplace, tmp_path, options, message):
    with pytest.raises(InputError) as caught:
        reproduce(TABLE3, tmp_path / "out", workplace, options, silent)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "out").exists()


def test_a_change_need_not_fit_the_cells_that_are_not_asked_for(workplace, tmp_path):
    options = RunOptions(quick=True, folds=1, patterns=("dan_mr",), changes={"dimension": 30})
    results = reproduce(find_experiment("table4"), tmp_path, workplace, options, silent)
    (outcome,) = (outcome for outcome in results.outcomes if outcome.parts)
    assert outcome.cell.settings["architecture"]["dimension"] == 30
    with pytest.raises(InputError, match=r"^heads must divide the dimension 30, got 4$"):
        reproduce(find_experiment("table4"), tmp_path, workplace, replace(options, patterns=()), silent)


def test_an_experiment_without_folds(workplace, tmp_path):
    with pytest.raises(InputError, match=r"^the cells of lama-figure4 have no folds; omit --folds$"):
        reproduce(find_experiment("lama-figure4"), tmp_path, workplace, RunOptions(folds=3), silent)


def test_an_experiment_without_options(workplace, tmp_path):
    with pytest.raises(InputError, match=r"^the cells of lama-figure4 have no options to change; omit scale$"):
        reproduce(find_experiment("lama-figure4"), tmp_path, workplace, RunOptions(changes={"scale": 1}), silent)


def test_patterns_are_of_any_case():
    assert [cell.key for cell in chosen(TABLE3, ["ONES_K-1"])] == ["ones_k-1"]


def test_missing_data_is_one_line(tmp_path, vocabulary):
    workplace = Workplace(tmp_path, 0, vocabulary)
    with pytest.raises(InputError, match=r"^MR: .*senteval/MR\.tsv is missing; name a folder"):
        reproduce(TABLE3, tmp_path / "out", workplace, ONE, silent)


def test_the_data_of_cells_that_are_not_asked_for_need_not_be_there(data_folder, vocabulary, tmp_path):
    (tmp_path / "senteval").mkdir()
    (tmp_path / "senteval" / "CR.tsv").write_bytes((data_folder / "senteval" / "CR.tsv").read_bytes())
    options = RunOptions(quick=True, folds=1, patterns=("dan_cr",))
    table4 = find_experiment("table4")
    results = reproduce(table4, tmp_path / "out", Workplace(tmp_path, 0, vocabulary), options, silent)
    assert [outcome.cell.key for outcome in results.outcomes if outcome.parts] == ["dan_cr"]


def test_too_few_rows_for_ten_folds(tmp_path, vocabulary):
    (tmp_path / "senteval").mkdir()
    (tmp_path / "senteval" / "MR.tsv").write_text("0\ta\n1\tb\n" * 5)
    with pytest.raises(InputError, match="the class '0' has 5 rows; 10-fold"):
        reproduce(TABLE3, tmp_path / "out", Workplace(tmp_path, 0, vocabulary), ONE, silent)


def test_a_folder_that_cannot_be_made(workplace, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^cannot create the folder .*file/table3: Not a directory$"):
        reproduce(TABLE3, tmp_path / "file" / "table3", workplace, ONE, silent)


def test_a_cell_that_could_not_be_stored_is_not_computed(workplace, tmp_path):
    reproduce(TABLE3, tmp_path, workplace, replace(ONE, folds=1), silent)
    (file,) = tmp_path.glob("ones_k-1-*.json")
    file.unlink()
    file.mkdir()
    done: list[str] = []
    with pytest.raises(InputError) as caught:
        reproduce(counting(TABLE3, done), tmp_path, workplace, ONE, silent)
    assert (str(caught.value), done) == (f"cannot write {file}: the output must be a file, got a folder", [])
