"""Files that are either whole or absent: write beside, sync, rename."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctx_embed.errors import InputError


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable (a no-op where folders cannot be opened, as on Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the contents of ``path`` durable."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def require_folder(path: Path) -> None:
    """Refuse an output whose folder does not exist.

    Raises:
        InputError: the folder of ``path`` is missing.
    """
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist, create it first")


@contextmanager
def replaced_file(path: str | Path) -> Iterator[Path]:
    """Give the path of a temporary neighbour that takes the place of ``path`` when the block ends without an error.

    Raises:
        InputError: the folder of ``path`` is missing, or ``path`` is a folder.
    """
    target = Path(path)
    require_folder(target)
    if target.is_dir():
        raise InputError(f"cannot write {target}: it is a folder, a file is needed")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(descriptor)
    beside = Path(name)
    try:
        yield beside
        sync_file(beside)
        # mkstemp makes the file private; give it the mode that open() would have given.
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o666 & ~mask)
        beside.replace(target)
        sync_folder(target.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replaced_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary neighbouring folder that takes the place of ``path`` when the block ends without an error.

    Raises:
        InputError: the parent folder is missing, or ``path`` is a file.
    """
    target = Path(path)
    require_folder(target)
    if target.exists() and not target.is_dir():
        raise InputError(f"cannot write {target}: it is a file, a folder is needed")
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    old = beside.with_name(beside.name + ".old")
    try:
        yield beside
        for file in beside.rglob("*"):
            if file.is_file():
                sync_file(file)
        beside.chmod(0o755)
        if target.exists():
            target.replace(old)
        beside.replace(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
