"""Open connections and forks: a child process never uses, or closes, what its parent has open.

SQLite's locks belong to a process, but it keeps their books in memory, which a fork copies: a child that goes on with a
file that its parent had open takes no locks, and either of the two loses what the other writes. So connections are
closed before a fork and opened again when they are next used. A connection in the middle of a transaction stays open,
and its child is refused that file.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError

if TYPE_CHECKING:
    from ctx_embed.index.storage.database import Database

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
# Databases whose lock the forking thread holds during a fork.
_held: list[Database] = []
# Device and inode of files that the parent was using at the fork.
_of_parent: set[tuple[int, int] | None] = set()


def register(database: Database) -> None:
    """Let forks close the connection of a database."""
    _databases.add(database)


def require_own(database: Database) -> None:
    """Raise an error if the parent process was using the file at the fork.

    Raises:
        InputError: it was.
    """
    if database.opened in _of_parent:
        raise InputError(
            f"{database.path.parent}: the parent process was reading or changing this index when it forked; start "
            "workers with the method 'spawn' or 'forkserver', or fork at another moment"
        )


def _before() -> None:
    for database in list(_databases):
        if database.lock.acquire(blocking=False):
            _held.append(database)
            connection = database._connection
            if connection is not None and not connection.in_transaction:
                database.release()


def _after_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_in_child() -> None:
    for database in list(_databases):
        connection = database._connection
        if connection is not None:
            _abandon(connection)
            database._connection = None
            _of_parent.add(database.opened)
    _after_in_parent()
    for database in list(_databases):
        if not database.lock.acquire(blocking=False):
            # A thread of the parent holds it, which the child does not have.
            database.lock = type(database.lock)()
        else:
            database.lock.release()


def _abandon(connection: sqlite3.Connection) -> None:
    """Keep a connection for ever: closing it would release the locks' books, and remove the parent's log."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
