"""What a run has worked out, kept a piece at a time, so that an interrupted run goes on where it stood."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctx_embed import __version__
from ctx_embed.errors import InputError
from ctx_embed.eval.sealed import read_sealed, write_sealed
from ctx_embed.fingerprint import identity

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
        if (content := read_sealed(path)) is not None:
            kept: dict[str, Any] = json.loads(content)
            return kept
        made = make()
        write_sealed(path, json.dumps(made).encode())
        return made
