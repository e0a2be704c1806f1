"""Running an experiment: cell by cell, part by part, each kept when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.eval.reproduce.cell_file import CellFile
from ctx_embed.eval.reproduce.classifier_cells import INITIAL, initial_values
from ctx_embed.eval.reproduce.experiment import FOLDS, Cell, Experiment, Figures, Outcome, Settings
from ctx_embed.eval.reproduce.inputs import Workplace
from ctx_embed.files import require_file
from ctx_embed.fingerprint import identity
from ctx_embed.systems import option_defaults, sample
from ctx_embed.training.supervised.train import SupervisedOptions

# Raised when a cell of the same settings would come out differently.
FORMAT = 1
# That weights can hold.
LARGEST = torch.finfo(torch.float32).max
# Of a cell whose data are not there, or which the changes do not fit.
UNKNOWN_RUN = "unknown"


@dataclass(frozen=True)
class RunOptions:
    """What is run.

    Args:
        quick: a small sample of the same work.
        folds: how many of the ten folds are run; None: all, of a quick run as many as the experiment says.
        patterns: names of cells, as of files; empty: all.
        changes: of cells' settings: options of their encoders and of their training by name, for each cell that has
            them. A cell changed is kept beside the one that is not.
    """

    quick: bool = False
    folds: int | None = None
    patterns: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What is known of an experiment's cells, those of earlier runs too.

    Attributes:
        experiment, options: what was run, with which options.
        folds: run at most.
        seed: of the run.
        tokenizer: the vocabulary's file; None is BERT's.
        files: of all cells in the order of the table.
    """

    experiment: Experiment
    options: RunOptions
    folds: int
    seed: int
    tokenizer: Path | None
    files: list[CellFile] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all cells in the order of the table."""
        return [_outcome(self.experiment, file) for file in self.files]

    def refresh(self) -> None:
        """Take up what other runs have kept since."""
        for file in self.files:
            file.refresh()


def chosen(experiment: Experiment, patterns: Sequence[str]) -> list[Cell]:
    """The cells whose names match one of the patterns; all where there are none.

    Raises:
        InputError: a pattern that matches no cell.
    """
    patterns = [pattern.lower() for pattern in patterns]
    for pattern in patterns:
        if not any(fnmatch(cell.key, pattern) for cell in experiment.cells):
            known = ", ".join(cell.key for cell in experiment.cells)
            raise InputError(f"--cell {pattern}: no cell of {experiment.name} matches, they are {known}")
    return [
        cell for cell in experiment.cells if not patterns or any(fnmatch(cell.key, pattern) for pattern in patterns)
    ]


def changeable(settings: Settings) -> dict[str, set[str]]:
    """The names that :func:`changed` knows of a cell, by the settings they belong to."""
    names = {"training": set(settings.get("training", ()))}
    if "encoder" in settings:
        names["architecture"] = {"dimension", *option_defaults(settings["encoder"])}
        names[INITIAL] = initial_values(settings["encoder"])
    return names


def _alike(value: Any, other: Any) -> bool:
    """Whether a value may stand for another: a word, true or false, an integer above 0, or a number from 0."""
    if isinstance(other, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(other, bool)
    if isinstance(other, str):
        return isinstance(value, str)
    if isinstance(other, int):
        return isinstance(value, int) and value > 0
    return isinstance(value, int | float) and 0 <= value <= LARGEST


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The settings with those of the changes that fit them.

    Raises:
        InputError: a value of another kind than the one it would replace, or out of its range.
    """
    for group, names in changeable(settings).items():
        for name in names & changes.keys():
            kept = 1.0 if group == INITIAL else settings[group].get(name)
            if group != "architecture" and not _alike(changes[name], kept):
                raise InputError(f"{name}={changes[name]}: a value like {kept} is needed")
        if fitting := {name: value for name, value in changes.items() if name in names}:
            settings = {**settings, group: {**settings.get(group, {}), **fitting}}
            # Told now, and not when the cell's turn comes.
            if group == "training":
                SupervisedOptions(**settings[group])
            elif group == "architecture":
                try:
                    sample(settings["encoder"], **settings[group])
                except RuntimeError:
                    raise InputError(f"{fitting}: the encoder cannot be made, its sizes are too large") from None
    return settings


def reproduce(
    experiment: Experiment,
    folder: Path,
    workplace: Workplace,
    options: RunOptions | None = None,
    tell: Callable[[str], None] = print,
    after_cell: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Work out the cells of an experiment that ``folder`` does not hold yet.

    Several runs may be at the same cells: each part is worked out by one of them.

    Args:
        experiment: what to run.
        folder: of the cells' files, those of other experiments too; made where it is absent.
        workplace: data and seed.
        options: which part of it.
        tell: is given a line for each part that has been worked out.
        after_cell: is given what is known so far after each cell.

    Returns:
        All cells with what is known of them under the same settings, data and seed.

    Raises:
        InputError: a pattern that matches no cell, a change that none takes, folds of cells without, data that are
            missing, a folder that cannot be made, a cell's file that cannot be written.
    """
    options = options or RunOptions()
    if options.folds and all(
        experiment.parts(cell.settings, 1) == experiment.parts(cell.settings, 2) for cell in experiment.cells
    ):
        raise InputError(f"the cells of {experiment.name} have no folds, leave out --folds")
    cells = chosen(experiment, options.patterns)
    wanted = {cell.key for cell in cells}
    known = {name for cell in cells for names in changeable(cell.settings).values() for name in names}
    for name in options.changes:
        if not known:
            raise InputError(f"the cells of {experiment.name} have no options to change, leave out {name}")
        if name not in known:
            raise unknown_name(f"option of the cells of {experiment.name}", name, known)
    folds = options.folds or (experiment.quick_folds if options.quick else FOLDS)
    results = Results(experiment, options, folds, workplace.seed, workplace.tokenizer)
    files = results.files
    for cell in experiment.cells:
        if options.quick:
            cell = replace(cell, settings=experiment.quick(cell.settings))
        if cell.key in wanted:
            files.append(_file(folder, cell, workplace, options.changes, tell))
        else:
            files.append(_known(folder, cell, workplace, options.changes))
    # Made when nothing is left to refuse.
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
    todo = [
        (place, part)
        for place, file in enumerate(files)
        if file.cell.key in wanted
        for part in experiment.parts(file.cell.settings, folds)
        if part not in file.parts
    ]
    # Told now, and not when the figures are there and cannot be kept.
    for place in {place for place, _ in todo}:
        require_file(files[place].path)
    held: list[tuple[int, str]] = []
    with tqdm(total=len(todo), desc=experiment.name, unit=" parts", disable=None) as bar:

        def say(line: str) -> None:
            with bar.external_write_mode():
                tell(line)

        # What other runs are at is left to them; if they are stopped, it is done in the end.
        for wait, turns in ((False, todo), (True, held)):
            for place, cell_turns in groupby(turns, key=itemgetter(0)):
                for _, part in cell_turns:
                    bar.set_postfix_str(f"{files[place].cell.key} {part}")
                    if _work_out(experiment, files[place], part, workplace, wait, say):
                        bar.update()
                    else:
                        held.append((place, part))
                results.refresh()
                after_cell(results)
    return results


def _work_out(
    experiment: Experiment, file: CellFile, part: str, workplace: Workplace, wait: bool, tell: Callable[[str], None]
) -> bool:
    """Work out a part that nobody has kept, unless another run is at it and is not waited for; whether it is there."""
    name = f"{experiment.name} {file.cell.key} {part}"
    with file.claimed(part, wait) as mine:
        if not mine:
            tell(f"{name}: another run is at it")
        elif part not in file.parts:
            start = time.perf_counter()
            figures = experiment.work(file.cell.settings, part, workplace)
            figures["seconds"] = time.perf_counter() - start
            file.keep(part, figures)
            tell(f"{name}: {_short(figures)}")
    return mine


def _file(
    folder: Path, cell: Cell, workplace: Workplace, changes: Mapping[str, Any], tell: Callable[[str], None]
) -> CellFile:
    """A changed cell, with what earlier runs have kept of it."""
    cell = replace(cell, settings=changed(cell.settings, changes))
    return CellFile(folder, cell, identity(FORMAT, workplace.identity(cell.settings)), tell)


def _known(folder: Path, cell: Cell, workplace: Workplace, changes: Mapping[str, Any]) -> CellFile:
    """The same of a cell that is not asked for: its data need not be there, nor need the changes fit it."""

    def silent(line: str) -> None:
        pass

    try:
        return _file(folder, cell, workplace, changes, silent)
    except InputError:
        return CellFile(folder, cell, UNKNOWN_RUN, silent)


def _outcome(experiment: Experiment, file: CellFile) -> Outcome:
    # All that is known: the folds of several runs add up.
    wanted = experiment.parts(file.cell.settings, FOLDS)
    parts = {part: file.parts[part] for part in wanted if part in file.parts}
    if not parts:
        return Outcome(file.cell, {}, {})
    figures = experiment.summary(file.cell.settings, parts)
    return Outcome(file.cell, parts, {**figures, "seconds": sum(part["seconds"] for part in parts.values())})


def _short(figures: Figures) -> str:
    shown = [f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, int | float)]
    return ", ".join(shown)
