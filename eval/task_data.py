"""The data of a task: from a folder in the published layout, a user's file, or the Hugging Face hub."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.eval.tasks import TASKS, FileTask, HubSource, ProbeTask, SimilarityTask, Task
from ctx_embed.texts import read_labelled, read_lines

REMEDY = "name a folder that holds it with --data or CTX_EMBED_DATA"

# A row is a label and a text, or a score and two texts.
Row = tuple[str, ...]


@dataclass(frozen=True)
class TaskData:
    """The rows of a task by subset, where they come from, and how many were left out."""

    source: str
    subsets: dict[str, list[Row]]
    left_out: int = 0

    @property
    def rows(self) -> int:
        """The number of rows over all subsets."""
        return sum(map(len, self.subsets.values()))

    @property
    def sha256(self) -> str:
        """The hash of the rows as tab-separated lines: that of the file, where the task is one plain file."""
        lines = ("\t".join(row) + "\n" for rows in self.subsets.values() for row in rows)
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


class DataReader:
    """Reads the data of tasks.

    Args:
        folder: the local data (``senteval/MR.tsv`` and so on); None reads from the hub.

    Raises:
        InputError: there is no such folder.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not os.path.isdir(folder):
            raise InputError(f"{folder}: no such data folder, --data or CTX_EMBED_DATA names it")
        self.folder = folder
        self._hub_is_away = False

    def read(self, task: Task) -> TaskData:
        """The rows of ``task``, without those that it shares with the task it excludes.

        Raises:
            InputError: the data are absent or broken; the message names the task.
        """
        data = self._read(task)
        if not isinstance(task, SimilarityTask) or task.without is None:
            return data
        excluded = {frozenset(row[1:]) for rows in self._read(TASKS[task.without]).subsets.values() for row in rows}
        kept = {
            name: [row for row in rows if frozenset(row[1:]) not in excluded] for name, rows in data.subsets.items()
        }
        # A subset that lies wholly in the excluded set has no correlation.
        kept = {name: rows for name, rows in kept.items() if rows}
        if not kept:
            raise InputError(f"{task.name}: all pairs stand in {task.without} too, none is left")
        return TaskData(data.source, kept, data.rows - sum(map(len, kept.values())))

    def _read(self, task: Task) -> TaskData:
        if isinstance(task, FileTask):
            return TaskData(str(task.path), {task.name: read_probe_rows(task.path)})
        if self.folder is not None:
            paths = [self.folder / file for file in task.files]
            for path in paths:
                if not os.path.isfile(path):
                    raise InputError(f"{task.name}: {path} is missing; {REMEDY}")
            read = read_probe_rows if isinstance(task, ProbeTask) else read_pair_rows
            data = TaskData(str(self.folder), {path.stem: read(path) for path in paths})
        elif task.hub is None:
            raise InputError(f"{task.name}: no copy on the hub keeps its subsets apart; {REMEDY}")
        else:
            data = TaskData(f"hub: {task.hub.repository}", {task.name: self._from_hub(task.name, task.hub)})
        if isinstance(task, ProbeTask):
            _check_labels(task, data)
        return data

    def _from_hub(self, task: str, source: HubSource) -> list[Row]:
        failure = f"{task}: {source.repository} could not be had from the hub"
        if self._hub_is_away:
            raise InputError(f"{failure}; {REMEDY}")
        from datasets import load_dataset

        # The client tells of each of its retries, and the line below of their outcome.
        log = logging.getLogger("huggingface_hub")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            splits = load_dataset(source.repository)
            for split in source.splits:
                if split not in splits or not set(source.columns) <= set(splits[split].column_names):
                    raise LookupError(f"it has no split {split!r} with the columns {', '.join(source.columns)}")
            return [
                tuple(map(str, row))
                for split in source.splits
                for row in zip(*(splits[split][name] for name in source.columns), strict=True)
            ]
        # The client raises whatever its transport and its file formats raise.
        except Exception as error:
            self._hub_is_away = isinstance(error, ConnectionError)
            raise InputError(f"{failure} ({_first_line(error)}); {REMEDY}") from None
        finally:
            log.setLevel(level)


def read_probe_rows(path: Path) -> list[Row]:
    """The rows (label, text) of a ``label<TAB>text`` file; errors as :func:`ctx_embed.texts.read_labelled`."""
    return list(zip(*read_labelled(path), strict=True))


def read_pair_rows(path: Path) -> list[Row]:
    """The rows (score, text, text) of a ``score<TAB>text<TAB>text`` file, blank lines skipped.

    Raises:
        InputError: as :func:`ctx_embed.texts.read_lines`; another number of fields, or a score that is no number.
    """
    rows: list[Row] = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        row = tuple(line.split("\t"))
        if len(row) != 3 or not _is_number(row[0]):
            raise InputError(f"{path}, line {number}: {line[:40]!r} is not score<TAB>text<TAB>text")
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: no rows, lines of score<TAB>text<TAB>text are needed")
    return rows


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_labels(task: ProbeTask, data: TaskData) -> None:
    labels = {row[0] for rows in data.subsets.values() for row in rows}
    if strange := sorted(labels - set(task.labels)):
        known = ", ".join(f"{label} ({meaning})" for label, meaning in task.labels.items())
        raise InputError(f"{task.name}: the label {strange[0]!r} in {data.source}, its labels are {known}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
