"""Folders that take the place of others, and a lock that a killed process lets go of."""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.files import sync_folder

LOCK = "lock"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchanged(left: Path, right: Path) -> bool:
    """Exchange two folders in one step, where the system can (Linux); False where it cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    paths = os.fsencode(left), os.fsencode(right)
    return rename is not None and rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0


def put_in_place(new: Path, target: Path) -> None:
    """Rename the folder ``new`` to ``target``; what was there before is removed.

    Where the system cannot exchange two folders, a kill between two renames leaves the new one under its old name.
    """
    if target.is_dir() and any(target.iterdir()):
        if _exchanged(new, target):
            sync_folder(target.parent)
            remove(new)
            return
        remove(target)
    new.replace(target)
    sync_folder(target.parent)


def remove(folder: Path) -> None:
    """Remove a folder in one step as far as its name goes, then what is in it."""
    remove_the_rest(folder)
    folder.replace(_removed(folder))
    sync_folder(folder.parent)
    remove_the_rest(folder)


def remove_the_rest(folder: Path) -> None:
    """Remove what a process left that was killed while it removed a folder of this name."""
    shutil.rmtree(_removed(folder), ignore_errors=True)


def _removed(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.removed")


@contextmanager
def locked(folder: Path, who: str) -> Iterator[None]:
    """Hold the lock of a folder; the system lets go of it when the process ends, however it does.

    Args:
        folder: that exists.
        who: else may hold it, for the message.

    Raises:
        InputError: another process holds it.
    """
    with closing(sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            raise InputError(f"{folder}: {who}, try again when it has finished") from None
        yield
