"""The log of a training, a JSON object per line, which a resumed run continues."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctx_embed.files import replaced_file


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
