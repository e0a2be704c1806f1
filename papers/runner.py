"""The run of an experiment: cell by cell, part by part, each stored when it is computed, and used only by runs that
would compute the same.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import commit, processor
from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import locked, replaced_file, require_file
from ctx_embed.fingerprint import identity
from ctx_embed.progress import Meter
from ctx_embed.systems import option_defaults, without_vocabulary
from ctx_embed.training.options import SupervisedOptions
from papers.classifier_cells import DROPOUT, INITIAL, INPUTS, MLP, TOKENS, WORDS, initial_values
from papers.experiment import FOLDS, QUICK_FOLDS, Cell, Experiment, Figures, Outcome, Settings
from papers.inputs import Workplace
from papers.variants import REDRAWN, TIED

# Name of the folder of lock files, within the folder of the cells.
LOCKS = ".locks"


class CellFile:
    """The computed parts of a cell, in ``FOLDER/KEY-HASH.json``; ``run`` hashes everything that determines the outcome.

    A file of another table's cell with the same hash serves this cell too. If it is damaged, the cell is computed
    again, and ``tell`` is called with a line.
    """

    def __init__(self, folder: Path, cell: Cell, run: str, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.cell = cell
        self.run = run
        self.parts: dict[str, Figures] = {}
        if self.path.exists():
            parts = self._read()
            if parts is None:
                tell(f"{self.path}: damaged; the cell will be computed again")
            self.parts = parts or {}

    @property
    def path(self) -> Path:
        """The cell's file, looked up each time, since another table's run may have created it meanwhile."""
        name = f"-{self.run[:12]}.json"
        return next(iter(sorted(self.folder.glob(f"*{name}"))), self.folder / f"{self.cell.key}{name}")

    @contextmanager
    def claimed(self, part: str, wait: bool) -> Iterator[bool]:
        """Lock a part against other runs inside the block, and yield whether this run holds the lock.

        If so, parts that other runs have stored by then are loaded. The system releases the lock of a killed run.
        """
        with locked(self._lock(part), wait=wait) as mine:
            if mine:
                self.refresh()
            yield mine

    def refresh(self) -> None:
        """Load the parts that other runs have stored meanwhile."""
        self.parts = {**(self._read() or {}), **self.parts}

    def _lock(self, name: str) -> Path:
        return self.folder / LOCKS / f"{self.run[:12]}-{name.replace(' ', '-')}"

    def _read(self) -> dict[str, Figures] | None:
        try:
            content: Any = json.loads(self.path.read_text(encoding="utf-8"))
            parts: dict[str, Figures] = content["parts"]
            whole = content["run"] == self.run and content["parts_sha256"] == identity(parts)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return parts if whole else None

    def keep(self, part: str, figures: Figures) -> None:
        """Add the results of a part and write the file atomically."""
        # Other runs may store parts of the same cell in this file.
        with locked(self._lock("file")):
            self.refresh()
            self.parts[part] = figures
            content = {
                "cell": self.cell.key,
                "settings": dict(self.cell.settings),
                "run": self.run,
                "parts": self.parts,
                "parts_sha256": identity(self.parts),
            }
            with replaced_file(self.path) as temporary:
                temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# Increase this when a change of the code changes results, so that stored ones are computed again.
FORMAT = 1
# The largest value of a float32 weight.
LARGEST = torch.finfo(torch.float32).max
# An example value of each setting that is None by default; :func:`_alike` compares new values with it.
VALUE_LIKE = {TOKENS: 256, WORDS: 100, MLP: 512, DROPOUT: 0.5, "start": "PATH", REDRAWN: False, TIED: False}
# Stands for the hash of a cell whose data are missing, or to which the changes do not apply.
UNKNOWN_RUN = "unknown"


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    ``folds`` is how many of the ten folds to run (None: all, in a quick run two), ``patterns`` cell names with
    wildcards (empty: all), ``changes`` new values for options of the cells' encoders and training by name, for each
    cell that has them; a changed cell is stored in addition to the unchanged one.
    """

    quick: bool = False
    folds: int | None = None
    patterns: tuple[str, ...] = ()
    paper: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """The results of an experiment's cells, including those of earlier runs, with the files of all cells in order.

    ``folds`` is the largest number of folds run; the tokenizer is the vocabulary's file, or None for BERT's.
    """

    experiment: Experiment
    options: RunOptions
    folds: int
    seed: int
    tokenizer: Path | None
    files: list[CellFile] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all cells in the order of the table."""
        return [_outcome(self.experiment, file) for file in self.files]

    @property
    def claim(self) -> str:
        """The paper's claim with our measurement and verdict; of a quick run the claim alone."""
        claim = self.experiment.claim
        return f"The paper: {claim.text}" if self.options.quick else claim.line(self.outcomes)

    def refresh(self) -> None:
        """Load the results that other runs have stored meanwhile."""
        for file in self.files:
            file.refresh()


def chosen(experiment: Experiment, patterns: Sequence[str]) -> list[Cell]:
    """Return the cells whose names match one of the patterns; all without patterns."""
    patterns = [pattern.lower() for pattern in patterns]
    for pattern in patterns:
        if not any(fnmatch(cell.key, pattern) for cell in experiment.cells):
            known = ", ".join(cell.key for cell in experiment.cells)
            raise InputError(f"--cell {pattern}: must match a cell of {experiment.name}: {known}")
    return [
        cell for cell in experiment.cells if not patterns or any(fnmatch(cell.key, pattern) for pattern in patterns)
    ]


def changeable(settings: Settings) -> dict[str, set[str]]:
    """Return the names that :func:`changed` accepts for a cell, by the group of settings they belong to."""
    names = {"training": set(settings.get("training", ())), "": {*INPUTS, "start"} & settings.keys()}
    if "encoder" in settings:
        names["architecture"] = {"dimension", *option_defaults(settings["encoder"])}
        names[INITIAL] = initial_values(settings)
    return names


def _alike(value: Any, other: Any) -> bool:
    """Return whether a value may replace another: a word, true or false, an integer above 0, or a number >= 0."""
    if isinstance(other, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(other, bool)
    if isinstance(other, str):
        return isinstance(value, str)
    if isinstance(other, int):
        return isinstance(value, int) and value > 0
    return isinstance(value, int | float) and 0 <= value <= LARGEST


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with those changes that apply to them."""
    for group, names in changeable(settings).items():
        for name in names & changes.keys():
            current = VALUE_LIKE.get(name, 1.0) if group in ("", INITIAL) else settings[group].get(name)
            unset = not group and name != "start" and changes[name] is None
            if group != "architecture" and not unset and not _alike(changes[name], current):
                raise InputError(f"{name} must be a value like {current}, got {changes[name]}")
        if fitting := {name: value for name, value in changes.items() if name in names}:
            settings = (
                {**settings, **fitting} if not group else {**settings, group: {**settings.get(group, {}), **fitting}}
            )
            if fitting.get(WORDS):
                settings = {**settings, "architecture": {**settings["architecture"], "dimension": fitting[WORDS]}}
            # Check now, not when it is the cell's turn.
            if group == "training":
                SupervisedOptions(**settings[group])
            elif group == "architecture":
                try:
                    without_vocabulary(settings["encoder"], **settings[group])
                except RuntimeError:
                    raise InputError(f"{fitting}: the encoder cannot be created; its sizes are too large") from None
    return settings


def reproduce(
    experiment: Experiment,
    folder: Path,
    workplace: Workplace,
    options: RunOptions | None = None,
    tell: Callable[[str], None] = print,
    after_cell: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Compute the cells of an experiment that ``folder`` does not hold yet, and return all with their results so far.

    Several runs may share the same cells: each part is computed by one of them. ``tell`` is called with a line for each
    part computed, ``after_cell`` after each cell with the results so far.
    """
    options = options or RunOptions()
    if options.paper and experiment.paper is None:
        raise InputError(f"the cells of {experiment.name} have no other settings of the paper; omit --paper")
    if options.folds and all(
        experiment.parts(cell.settings, 1) == experiment.parts(cell.settings, 2) for cell in experiment.cells
    ):
        raise InputError(f"the cells of {experiment.name} have no folds; omit --folds")
    cells = chosen(experiment, options.patterns)
    wanted = {cell.key for cell in cells}
    known = {name for cell in cells for names in changeable(cell.settings).values() for name in names}
    for name in options.changes:
        if not known:
            raise InputError(f"the cells of {experiment.name} have no options to change; omit {name}")
        if name not in known:
            raise unknown_name(f"option of the cells of {experiment.name}", name, known)
    folds = options.folds or (QUICK_FOLDS if options.quick else FOLDS)
    results = Results(experiment, options, folds, workplace.seed, workplace.tokenizer)
    files = results.files
    for cell in experiment.cells:
        if options.paper and experiment.paper:
            cell = replace(cell, settings=experiment.paper(cell.settings))
        if options.quick:
            cell = replace(cell, settings=experiment.quick(cell.settings))
        asked = cell.key in wanted
        try:
            cell = replace(cell, settings=changed(cell.settings, options.changes))
            run = identity(FORMAT, workplace.identity(cell.settings))
        except InputError:
            # The data of a cell that was not requested may be missing, and the changes need not fit.
            if asked:
                raise
            run = UNKNOWN_RUN
        files.append(CellFile(folder, cell, run, tell if asked else lambda line: None))
    todo = [
        (place, part)
        for place, file in enumerate(files)
        if file.cell.key in wanted
        for part in experiment.parts(file.cell.settings, folds)
        if part not in file.parts
    ]
    # Create the folder only after all input has been checked.
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder}: {error.strerror}") from None
    # Check now, before any work, that results can be stored.
    for place in {place for place, _ in todo}:
        require_file(files[place].path)
    held: list[tuple[int, str]] = []
    with Meter(experiment.name, len(todo), "parts") as meter:
        # Parts that other runs are computing are left to them; if those runs stop, the parts are computed at the end.
        for wait, turns in ((False, todo), (True, held)):
            for place, cell_turns in groupby(turns, key=itemgetter(0)):
                for _, part in cell_turns:
                    meter.note(f"{files[place].cell.key} {part}")
                    if _compute(experiment, files[place], part, workplace, wait, tell):
                        meter.update()
                    else:
                        held.append((place, part))
                results.refresh()
                after_cell(results)
    return results


def _compute(
    experiment: Experiment, file: CellFile, part: str, workplace: Workplace, wait: bool, tell: Callable[[str], None]
) -> bool:
    """Compute a part that is not stored yet; return False if another run is computing it and ``wait`` is False."""
    name = f"{experiment.name} {file.cell.key} {part}"
    with file.claimed(part, wait) as mine:
        if not mine:
            tell(f"{name}: another run is computing it")
        elif part not in file.parts:
            start = time.perf_counter()
            figures = experiment.work(file.cell.settings, part, workplace)
            figures |= {
                "seconds": time.perf_counter() - start,
                "commit": commit(),
                "processor": processor() if workplace.device == "cpu" else torch.cuda.get_device_name(workplace.device),
            }
            file.keep(part, figures)
            shown = [f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, int | float)]
            tell(f"{name}: {', '.join(shown)}")
    return mine


def _outcome(experiment: Experiment, file: CellFile) -> Outcome:
    # Include the parts that earlier runs stored: the folds of several runs add up.
    wanted = experiment.parts(file.cell.settings, FOLDS)
    parts = {part: file.parts[part] for part in wanted if part in file.parts}
    if not parts:
        return Outcome(file.cell, {}, {})
    figures = experiment.summary(file.cell.settings, parts)
    return Outcome(file.cell, parts, {**figures, "seconds": sum(part["seconds"] for part in parts.values())})
