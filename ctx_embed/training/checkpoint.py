"""The course of a run: the state that the same run resumes from, its log, and whether its loss is still a number."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file


class Checkpoint:
    """One file in the folder ``OUT.partial`` next to a run's output, created with the first state.

    Args:
        output: what the run writes at its end.
        run: the run's :func:`ctx_embed.fingerprint.identity`; the state of another run is ignored and replaced.
    """

    def __init__(self, output: Path, run: str) -> None:
        self.folder = output.with_name(output.name + ".partial")
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} must be a folder for the state of the run, got a file; remove it first")
        self.run = run
        self.path = self.folder / "checkpoint.pt"

    def load(self) -> dict[str, Any] | None:
        """Return the state last saved by the same run, or None if there is none that can be read."""
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
            return state if state.pop("run") == self.run else None
        except Exception:
            # The file is missing or damaged (torch.load raises many kinds of errors): start from the beginning.
            return None

    def save(self, state: dict[str, Any]) -> None:
        """Store a state of tensors, numbers, strings and containers of them."""
        self.folder.mkdir(exist_ok=True)
        # torch does not say why it cannot write to a path.
        with replaced_file(self.path) as beside, beside.open("wb") as file:
            torch.save({**state, "run": self.run}, file)

    def remove(self) -> None:
        """Remove the state, and the folder if nothing else is in it."""
        for path in (self.path, *self.folder.glob(f".{self.path.name}.*")):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


class TrainingLog:
    """Appends entries, each with its ``step``, to a file of JSON lines.

    Args:
        path: file to append to; the first entry makes its folder. None keeps no log.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def resume(self, step: int) -> None:
        """Remove the entries after ``step``, from which the run resumes, and those that were not written whole."""
        if self.path is None or not self.path.exists():
            return
        *lines, _cut_off = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        kept = []
        for line in lines:
            with suppress(ValueError, LookupError, TypeError):
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        with replaced_file(self.path) as beside:
            beside.write_text("".join(kept), encoding="utf-8")

    def add(self, step: int, **figures: Any) -> None:
        """Append an entry."""
        if self.path is not None:
            self.path.parent.mkdir(exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **figures}) + "\n")


def require_finite(value: float, step: int) -> None:
    """Raise an error if a loss or a metric is infinite or NaN: the training has failed and must not be saved."""
    if not math.isfinite(value):
        raise InputError(f"the training diverged at step {step} ({value}); lower --learning-rate")
