"""Atomic writing of files and folders: write a temporary neighbour, sync it, rename it into place."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import count
from pathlib import Path

from ctx_embed.errors import InputError, UnwritableError
from ctx_embed.texts import composed

try:
    import fcntl
except ImportError:  # Windows has no fcntl; there, leftovers are not removed.
    fcntl = None  # type: ignore[assignment]

_UNFINISHED = ".unfinished"
# Seconds between two tries to lock a folder. Each waiter draws its own, so that none is always late.
TRIES = 0.001, 0.003
# Descriptors of folders that this process has locked or waits for.
_turns: set[int] = set()
# The message about a pointer of git-lfs.
POINTER = "a pointer of git-lfs in place of the file; fetch the file with git lfs pull"
# Errors of a full disk, an exceeded quota, and a file that is too large for the system.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Arguments of renameat2(2): paths are relative to the working folder; exchange the two names.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable (a no-op where folders cannot be opened, as on Windows)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _fsync(descriptor, folder)
        finally:
            os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the contents of ``path`` durable."""
    with path.open("rb+") as file:
        _fsync(file.fileno(), path)


def _fsync(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # the system does not name the file


class PathInside(str):
    """The path of a file that must lie in a folder: :func:`open_regular` opens no link that leads out of it.

    The folder is a real path with a slash at its end; empty: the file may be anywhere.
    """

    folder: str

    def __new__(cls, path: str, folder: str = "") -> PathInside:
        """Return the path."""
        found = super().__new__(cls, path)
        found.folder = folder
        return found


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file for reading, or raise OSError; never wait, as opening a pipe or a device might."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(descriptor, "rb")
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if isinstance(path, PathInside) and path.folder:
            # Compare after opening, so that the file that is open lies in the folder, whatever becomes of its path.
            real = os.path.realpath(path)
            if not real.startswith(path.folder) or not os.path.samestat(os.lstat(real), found):
                raise OSError(errno.EXDEV, "a link out of the folder")
    except BaseException:
        file.close()
        raise
    return file


def on_disk(folder: str, source: str) -> str:
    """Return the path of a file in a folder by its path in NFC, whose names may be decomposed on the disk."""
    path = os.path.join(folder, source)
    if source.isascii() or os.path.lexists(path):
        return path
    found = folder
    for name in source.split("/"):
        with suppress(OSError):
            name = next((each for each in os.listdir(found) if composed(each) == name), name)
        found = os.path.join(found, name)
    return found


def is_pointer(file: BufferedReader) -> bool:
    """Return whether an open file is a pointer of git-lfs, whose contents are elsewhere."""
    return file.peek(64).startswith(b"version https://git-lfs.github.com/spec/")


def require_folder(path: Path) -> None:
    """Refuse an output without a usable name, or whose folder does not exist or cannot be written to."""
    if path.name in ("", ".."):
        raise InputError(f"cannot write {path}: it is a folder; name the file or folder to write in it")
    if "\0" in str(path):
        raise InputError("cannot write to a name with a NUL character in it: choose another name")
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"cannot write {path}: the name must be UTF-8; choose another one") from None
    # os.path answers False where pathlib would raise, as for a name that is too long.
    if not os.path.isdir(path.parent):
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: the folder {path.parent} is not writable")


def require_file(path: Path) -> None:
    """Refuse an output file that cannot be written."""
    require_folder(path)
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "a device or a pipe"
        raise InputError(f"cannot write {path}: the output must be a file, got {kind}")


def require_other_file(path: Path, source: str | Path) -> None:
    """Refuse an output that would replace its own input."""
    try:
        same = str(source) != "-" and os.path.samefile(path, source)
    except (OSError, ValueError):  # One of the two does not exist.
        return
    if same:
        raise InputError(f"cannot write {path}: it is the input; choose another name")


def require_replaceable(path: Path, mark: str) -> None:
    """Refuse an output folder if its name is taken by anything but an earlier output."""
    require_folder(path)
    if os.path.isdir(path):
        if os.listdir(path) and not (path / mark).is_file():
            raise InputError(f"cannot write {path}: the folder holds other things (no {mark}); choose another name")
    elif os.path.lexists(path):
        raise InputError(f"cannot write {path}: it must be a folder, got a file")


def _usual(mode: int) -> int:
    """Return the mode that open() and mkdir() would set; mkstemp and mkdtemp make files and folders private."""
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask


def keep_permissions(old: Path, new: Path) -> None:
    """Give a file or folder the mode of what it will replace and, where the system allows it, its owner."""
    try:
        found = os.stat(old)
    except OSError:
        return
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(new, found.st_uid, found.st_gid)
    new.chmod(stat.S_IMODE(found.st_mode))


def has_locks(folder: str | Path) -> bool:
    """Return whether files in a folder can be locked, as they cannot on some network file systems."""
    if fcntl is None:
        return True
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    except OSError:
        return True
    with file:
        try:
            for lock in (fcntl.flock, fcntl.lockf):
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@contextmanager
def taking_turns(folder: Path, stop: float) -> Iterator[bool]:
    """Wait until no other writer of the folder is in such a block; yield False if one still is at the time ``stop``.

    SQLite's own waiters try the more rarely the longer they have waited, so that some starve, and each try disturbs the
    one that writes. The system releases the lock of a process that ends. Where folders cannot be locked (on Windows and
    some network file systems), the block begins at once.
    """
    turn: int | None = None
    # A folder that is not yet in its place belongs to its maker, which has locked it.
    if fcntl is not None and not folder.name.endswith(_UNFINISHED):
        with suppress(OSError):
            turn = os.open(folder, os.O_RDONLY)
    if turn is None:
        yield True
        return
    _turns.add(turn)
    try:
        while late := not _is_locked(turn):
            if time.monotonic() >= stop:
                break
            time.sleep(random.uniform(*TRIES))
        yield not late
    finally:
        # A child that was forked a moment ago may still have the lock, too, so closing it would not be enough.
        with suppress(OSError):
            fcntl.flock(turn, fcntl.LOCK_UN)
        _turns.discard(turn)
        os.close(turn)


def _is_locked(descriptor: int) -> bool:
    """Lock a file; return False if another process has locked it, and True if files cannot be locked here."""
    with suppress(OSError):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _give_up_turns() -> None:
    while _turns:
        os.close(_turns.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_turns)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock between processes inside the block; yield whether no other process holds it.

    The system releases the lock of a process that is killed. The file of the lock is never deleted. Where locking is
    impossible (the file belongs to another user, or the file system has no locks), the block runs without a lock.
    """
    # Imported here, as it is slow to import and readers need no lock.
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    free = True
    try:
        path.parent.mkdir(exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        free = not has_locks(path.parent)
    except (OSError, NotImplementedError):
        pass
    try:
        yield free
    finally:
        lock.release()


@contextmanager
def replaced_file(path: str | Path) -> Iterator[Path]:
    """Yield the path of a temporary file that atomically replaces ``path`` when the block ends without an error."""
    require_file(Path(path))
    # A link stays; the file that it points to is replaced.
    target = Path(os.path.realpath(path))
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    os.close(descriptor)
    beside = Path(name)
    try:
        yield beside
        fsync_file(beside)
        beside.chmod(_usual(0o666))
        keep_permissions(target, beside)
        beside.replace(target)
        fsync_folder(target.parent)
    except Exception as error:
        _require_space(path, error)
        raise
    finally:
        beside.unlink(missing_ok=True)


def _require_space(path: str | Path, error: BaseException) -> None:
    """Raise an UnwritableError if an error means that the disk is full.

    torch raises an error of its own, whose context is the system's error; safetensors names its number in a message.
    """
    of_library = re.search(r"(?:\(os error |Os \{ code: )(\d+)", str(error))
    number = int(of_library[1]) if of_library else getattr(error, "errno", None)
    if number in _FULL:
        raise UnwritableError(f"cannot write {path}: {os.strerror(number)}") from None
    if error.__context__ is not None:
        _require_space(path, error.__context__)


@contextmanager
def temporary_files() -> Iterator[None]:
    """Name the folder of temporary files in errors of a full disk, which name no file."""
    try:
        yield
    except OSError as error:
        _require_space(f"temporary files in {tempfile.gettempdir()} (set TMPDIR to another folder)", error)
        raise


@contextmanager
def replaced_folder(path: str | Path, *, new: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that atomically replaces ``path`` when the block ends without an error.

    Leftovers of killed processes that wrote to the same ``path`` are removed. With ``new``, only an empty folder may be
    replaced, and a folder that another process made meanwhile is an OSError.
    """
    require_folder(Path(path))
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not os.path.isdir(target):
        raise InputError(f"cannot write {path}: it must be a folder, got a file")
    try:
        remove_leftovers(target)
        beside, lock = _locked_neighbour(target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    try:
        yield beside
        mode = _usual(0o666)
        for path in (*beside.rglob("*"), beside):
            if path.is_dir():
                fsync_folder(path)
            elif path.is_file():
                fsync_file(path)
                if not path.is_symlink():
                    # safetensors writes files that only their owner can read.
                    path.chmod(mode)
        beside.chmod(_usual(0o777))
        if new:
            if target.exists():
                target.rmdir()
            # A folder cannot replace one that is not empty.
            beside.replace(target)
            fsync_folder(target.parent)
        else:
            put_in_place(beside, target)
    except Exception as error:
        _require_space(path, error)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def put_in_place(new: Path, target: Path) -> None:
    """Rename the folder ``new`` to ``target`` and remove what was there before.

    On Linux, which can exchange two folders, ``target`` is always either the old folder or the new one. Elsewhere, a
    kill between two renames leaves the old folder under another name; :func:`remove_leftovers` restores it.
    """
    if target.is_dir() and any(target.iterdir()):
        if _exchanged(new, target):
            # It makes the exchange durable before it removes contents.
            remove_folder(new)
            return
        old = _beside(target, "replaced")
        target.replace(old)
        try:
            new.replace(target)
        except BaseException:
            old.replace(target)
            raise
    else:
        new.replace(target)
    fsync_folder(target.parent)
    remove_leftovers(target)


def _exchanged(left: Path, right: Path) -> bool:
    """Exchange two folders in one step, where the system can (Linux); return False where it cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    paths = os.fsencode(left), os.fsencode(right)
    return rename is not None and rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0


def remove_folder(folder: Path) -> None:
    """Remove a folder: its name in one step, then its contents."""
    _remove_contents(gone := _beside(folder, "removed"))
    numbers = count(2)
    while gone.exists():
        # The files that remain belong to another user.
        gone = folder.with_name(f".{folder.name}.removed{next(numbers)}")
    folder.replace(gone)
    fsync_folder(folder.parent)
    _remove_contents(gone)


def remove_leftovers(folder: Path) -> None:
    """Clean up after a process that was killed while it removed or replaced a folder of this name."""
    _remove_contents(_beside(folder, "removed"))
    old = _beside(folder, "replaced")
    if old.exists() and not folder.exists():
        old.replace(folder)
    _remove_contents(old)


def _remove_contents(folder: Path) -> None:
    """Remove a folder as far as possible, including read-only folders in it."""
    for home, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(home, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def final_name(folder: Path) -> str:
    """Return the name that a folder of :func:`replaced_folder` has once it is finished; of others, their own."""
    # tempfile adds eight characters.
    found = re.fullmatch(rf"\.(.+)\.[a-z0-9_]{{8}}{re.escape(_UNFINISHED)}", folder.name)
    return found[1] if found else folder.name


def _locked_neighbour(target: Path) -> tuple[Path, int | None]:
    """Return a new folder next to ``target`` and the handle of its lock, released when the process ends.

    Unlocked folders of this kind, which killed processes have left, are removed.
    """
    for left in list(target.parent.iterdir()) if fcntl is not None else ():
        if left.name == target.name or final_name(left) != target.name:
            continue
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
    while True:
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_UNFINISHED, dir=target.parent))
        if fcntl is None:
            return beside, None
        with suppress(FileNotFoundError):
            lock = os.open(beside, os.O_RDONLY)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if beside.exists():
                return beside, lock
            # Another process mistook the folder for a leftover and removed it before it was locked.
            os.close(lock)
