"""Results of a run, stored one by one so that an interrupted run resumes where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctx_embed import __version__
from ctx_embed.errors import InputError
from ctx_embed.eval.sealed import read_sealed, write_sealed
from ctx_embed.fingerprint import identity

# Increased when the same key would produce a different score.
FORMAT = 2


class Store:
    """JSON values in ``FOLDER/scores``, each under the hash of everything that determines it.

    Args:
        folder: created if missing; None stores nothing.

    Raises:
        InputError: the folder cannot be created.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            try:
                (folder / "scores").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot create the folder {folder}: {error.strerror}") from None

    def get(self, key: tuple[Any, ...] | None, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the value stored under ``key``, else call ``make`` and store its result (not if ``key`` is None)."""
        if self.folder is None or key is None:
            return make()
        path = self.folder / "scores" / f"{identity(__version__, FORMAT, *key)[:40]}.json"
        if (content := read_sealed(path)) is not None:
            stored: dict[str, Any] = json.loads(content)
            return stored
        made = make()
        write_sealed(path, json.dumps(made).encode())
        return made
