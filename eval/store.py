"""What a run has worked out, kept a piece at a time, so that an interrupted run goes on where it stood."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctx_embed import __version__
from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file
from ctx_embed.training.checkpoint import identity

# Raised when a score of the same name would come out differently.
FORMAT = 2


class Store:
    """Pieces of JSON in ``FOLDER/scores``, each under the hash of all that decides it.

    Args:
        folder: made where it is absent; None keeps nothing.

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            try:
                (folder / "scores").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None

    def get(self, key: tuple[Any, ...] | None, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The piece of that key as it was kept, else as ``make`` gives it now; None as the key keeps nothing."""
        if self.folder is None or key is None:
            return make()
        path = self.folder / "scores" / f"{identity(__version__, FORMAT, *key)[:40]}.json"
        if (kept := _read(path)) is None:
            kept = make()
            text = json.dumps(kept)
            with replaced_file(path) as beside:
                beside.write_text(f"{_hash(text)}\n{text}", encoding="utf-8")
        return kept


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    """A piece behind the line with its hash; None where it is absent or damaged."""
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    kept: dict[str, Any] | None = json.loads(text) if digest == _hash(text) else None
    return kept
