"""The state of an interrupted run, resumed only by the same run."""

from __future__ import annotations

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

    Raises:
        InputError: the folder's name is that of a file.
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
