"""One cell's file: the figures of its parts as JSON, taken up only by a run that would come to the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctx_embed.eval.reproduce.experiment import Cell, Figures
from ctx_embed.files import locked, replaced_file
from ctx_embed.fingerprint import identity

# In the folder of the cells.
LOCKS = ".locks"


class CellFile:
    """The parts of a cell that have been worked out, in ``FOLDER/KEY-HASH.json``.

    Where another table's cell of the same run has a file there, that file is this cell's too.

    Args:
        folder: exists when a part is kept.
        cell: names the file.
        run: the hash of all that decides the outcome.
        tell: is given a line where the file is damaged; its cell is then worked out anew.
    """

    def __init__(self, folder: Path, cell: Cell, run: str, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.cell = cell
        self.run = run
        self.parts: dict[str, Figures] = {}
        if self.path.exists():
            parts = self._read()
            if parts is None:
                tell(f"{self.path}: damaged, the cell is worked out anew")
            self.parts = parts or {}

    @property
    def path(self) -> Path:
        """Looked for each time: another table's run may have begun the file since."""
        name = f"-{self.run[:12]}.json"
        return next(iter(sorted(self.folder.glob(f"*{name}"))), self.folder / f"{self.cell.key}{name}")

    @contextmanager
    def claimed(self, part: str, wait: bool) -> Iterator[bool]:
        """Keep other runs from a part inside the block; the system lets go of the claim of a run that is killed.

        Args:
            part: of the cell.
            wait: for a run that is at it.

        Yields:
            Whether nobody else is at it; what others have kept until then is taken up.
        """
        with locked(self._lock(part), wait=wait) as mine:
            if mine:
                self.refresh()
            yield mine

    def refresh(self) -> None:
        """Take up the parts that another run has kept since."""
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
        """Add the figures of a part and write the file whole."""
        # Other runs keep their parts of the same cell.
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
            with replaced_file(self.path) as beside:
                beside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
