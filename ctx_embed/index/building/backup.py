"""Backup: a copy of an index in one of its generations, made while others read and write."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.files import fsync_file, replaced_folder
from ctx_embed.index.ann import nearest
from ctx_embed.index.storage.database import DATABASE
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.storage.folder import IndexFolder

# Pages that SQLite copies at a time.
PAGES = 4096


def back_up(folder: IndexFolder, target: Path) -> None:
    """Copy an index to a new folder, with FAISS's file if it is still there.

    Raises:
        InputError: the folder is taken or cannot be written, or the index is damaged.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: already exists; choose another name")
    try:
        with replaced_folder(target, new=True) as beside:
            with closing(DocumentStore(folder.documents.path)) as store, store.reading():
                # One transaction, so that a writer's commits do not begin the copy again.
                store.state()
                with closing(sqlite3.connect(beside / DATABASE)) as copy, store.reporting_errors():
                    store.connection.backup(copy, pages=PAGES)
                record = nearest.recorded(store)
            fsync_file(beside / DATABASE)
            if record is not None:
                with suppress(OSError):
                    shutil.copyfile(record.path(folder.path), record.path(beside))
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"cannot write {target}: {error}") from None
