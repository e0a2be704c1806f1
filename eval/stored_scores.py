"""Results of a run, stored one by one so that an interrupted run resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctx_embed import __version__
from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file
from ctx_embed.fingerprint import identity

# Increased when the same key would produce a different score.
FORMAT = 2


def _seal(content: bytes) -> bytes:
    return b"\n" + hashlib.sha256(content).hexdigest().encode()


def write_sealed(path: Path, content: bytes) -> None:
    """Write ``content`` and its checksum; raises as :func:`ctx_embed.files.replaced_file`."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(content + _seal(content))


def read_sealed(path: Path) -> bytes | None:
    """Return the content; None if the file is missing or damaged."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    length = max(0, len(sealed) - len(_seal(b"")))
    return sealed[:length] if sealed[length:] == _seal(sealed[:length]) else None


class StoredScores:
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
