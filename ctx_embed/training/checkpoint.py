"""The state of an interrupted run, taken up only by a run that is the same."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file


def identity(*parts: Any) -> str:
    """A hash over JSON values that decide a run's course: its options and its data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class Checkpoint:
    """One file in the folder ``OUT.partial`` beside a run's output.

    Args:
        output: what the run writes at its end.
        run: the run's :func:`identity`; the state of another run is not taken up but replaced.

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, output: Path, run: str) -> None:
        self.folder = output.with_name(output.name + ".partial")
        self.run = run
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {self.folder}: {error.strerror}") from None
        self.path = self.folder / "checkpoint.pt"

    def load(self) -> dict[str, Any] | None:
        """The state last saved by the same run, or None."""
        if not self.path.exists():
            return None
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        return state if state.pop("run") == self.run else None

    def save(self, state: dict[str, Any]) -> None:
        """Keep tensors, numbers, strings and containers of them."""
        with replaced_file(self.path) as beside:
            torch.save({**state, "run": self.run}, beside)

    def remove(self) -> None:
        """Remove the folder: the run has ended well."""
        shutil.rmtree(self.folder, ignore_errors=True)
