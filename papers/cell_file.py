"""One cell's file: the results of its parts as JSON, used only by runs that would compute the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctx_embed.files import locked, replaced_file
from ctx_embed.fingerprint import identity
from papers.experiment import Cell, Figures

# Name of the folder of lock files, within the folder of the cells.
LOCKS = ".locks"


class CellFile:
    """The computed parts of a cell, in ``FOLDER/KEY-HASH.json``.

    A file of another table's cell with the same hash serves this cell too.

    Args:
        folder: must exist when a part is stored.
        cell: the cell, which names the file.
        run: the hash of everything that determines the outcome.
        tell: called with a line if the file is damaged; its cell is then computed again.
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
        """Lock a part against other runs inside the block. The system releases the lock of a killed run.

        Args:
            part: the part of the cell.
            wait: wait for another run that holds the lock.

        Yields:
            Whether this run holds the lock; if so, parts that other runs have stored by then are loaded.
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
