"""What is left on a disk when the power is lost."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

# For each name in a folder, its inode and whether it is a folder.
Names: TypeAlias = dict[str, tuple[int, bool]]
# Whether names in folders, and contents of files, are as they were last synced; None: some are, the others the newest.
WAYS: list[tuple[bool | None, bool | None]] = [(True, True), (False, True), (True, None), (None, None)]


class Disk:
    """The folder of a command and what is synced in it.

    Args:
        folder: the folder before the command; all in it is on disk.
        kept: where faults.c keeps what is synced.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self.kept = kept
        # No new file gets the inode of one that is open.
        self._open = [os.open(path, os.O_RDONLY) for path in (folder, *folder.rglob("*"))]
        self._names, self._contents = _read(folder)
        self._times = {path.stat().st_ino: path.stat().st_mtime_ns for path in folder.rglob("*")}

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def survivors(self, folder: Path, target: Path) -> Iterator[str]:
        """Write to a folder what may survive, in each way in turn, and yield the name of the way.

        Args:
            folder: what the command left.
            target: the folder to write.
        """
        names, contents = _read(folder)
        for old_names, old_contents in WAYS:
            shutil.rmtree(target, ignore_errors=True)
            self._write(target, folder.stat().st_ino, names, contents, old_names, old_contents)
            yield f"names {old_names}, contents {old_contents}"

    def _write(
        self,
        target: Path,
        inode: int,
        names: dict[int, Names],
        contents: dict[int, bytes],
        old_names: bool | None,
        old_contents: bool | None,
    ) -> None:
        generator = random.Random(0)

        def synced(which: bool | None) -> bool:
            return generator.random() < 0.5 if which is None else which

        def write(path: Path, inode: int, is_folder: bool) -> None:
            if is_folder:
                path.mkdir()
                known = inode in names and not synced(old_names)
                for name, entry in sorted((names[inode] if known else self._synced_names(inode)).items()):
                    # SQLite's shared memory is no part of the database.
                    if not name.endswith("-shm"):
                        write(path / name, *entry)
                return
            known = inode in contents and not synced(old_contents)
            path.write_bytes(contents[inode] if known else self._synced_content(inode))
            if inode in self._times:
                os.utime(path, ns=(self._times[inode],) * 2)

        write(target, inode, True)

    def _synced_names(self, inode: int) -> Names:
        path = self.kept / str(inode)
        if not path.exists():
            return self._names.get(inode, {})
        lines = (line.split(" ", 2) for line in path.read_text().splitlines())
        return {name: (int(number), kind == "1") for number, kind, name in lines if name not in (".", "..")}

    def _synced_content(self, inode: int) -> bytes:
        path = self.kept / str(inode)
        return path.read_bytes() if path.exists() else self._contents.get(inode, b"")


def _read(folder: Path) -> tuple[dict[int, Names], dict[int, bytes]]:
    """Return the names in each folder and the content of each file, by inode."""
    names: dict[int, Names] = {}
    contents: dict[int, bytes] = {}
    for path in (folder, *folder.rglob("*")):
        inode = path.stat().st_ino
        if path.is_dir():
            names[inode] = {each.name: (each.stat().st_ino, each.is_dir()) for each in path.iterdir()}
        else:
            contents[inode] = path.read_bytes()
    return names, contents
