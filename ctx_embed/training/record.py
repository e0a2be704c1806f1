"""``training.json`` in a model folder: how the model was made, and whether the same command has already made it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.files import require_replaceable
from ctx_embed.progress import say

RECORD = "training.json"
MODEL = "modules.json"


def content_hash(path: str | Path | None) -> str | None:
    """Return the sha256 of a file, or of all files in a folder with their names; None if there is neither."""
    path = Path(path) if path is not None else None
    if path is None or not path.exists():
        return None
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    files = sorted(file for file in path.rglob("*") if file.is_file())
    parts = [f"{file.relative_to(path)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def file_hashes(files: Sequence[Path]) -> dict[str, str]:
    """Return the sha256 by file name; files of the same name are listed with their folder's name."""
    alike = Counter(path.name for path in files)
    names = [path.name if alike[path.name] == 1 else f"{path.absolute().parent.name}/{path.name}" for path in files]
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in zip(names, files, strict=True)}


def finished(output: Path, asked: str, *, overwrite: bool) -> dict[str, Any] | None:
    """Return the record if the same command has already finished, and say so on stderr; None if a model is to be made.

    A record holds a hash of everything that its command ``asked`` for. Raise an InputError if the folder holds
    something else, or another model that is not to be replaced.
    """
    require_replaceable(output, MODEL)
    if overwrite or not (output / MODEL).is_file():
        return None
    try:
        record: Any = json.loads((output / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or record.get("asked") != asked:
        raise InputError(
            f"{output}: a model exists already and this command would make another; replace it with --overwrite, or "
            "choose another name"
        )
    say(f"nothing to do: this command has made {output} already")
    return record
