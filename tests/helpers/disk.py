"""What a power cut may leave of a folder: rebuilt from the record that faults.c keeps of its changes and syncs.

A file system promises little more than this: what fsync has been called for stays, a file's bytes and a folder's names
each on their own. All else may be lost in part, whole blocks or names of it, in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from os.path import normpath
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

# Whether a change that was not synced is kept, called for each name and block; None: only the names and sizes are.
Way: TypeAlias = "random.Random | bool | None"
# A folder of the file system, as nested dictionaries of contents.
Tree: TypeAlias = "dict[str, Tree | bytes]"
# Everything, nothing, and only names and sizes.
ALL, NONE, NAMES = True, False, None


class Event(NamedTuple):
    """One line of the record: a kind (see :meth:`Disk.apply`), a number, names, and the bytes written."""

    kind: str
    number: int
    path: str
    other: str
    data: bytes


def events(record: Path) -> Iterator[Event]:
    """Yield the events of a record."""
    with record.open("rb") as file:
        while line := file.readline():
            kind, number, size, path, other = line.decode().rstrip("\n").split("\t")
            if kind.isupper():
                path, other = normpath(path), other and normpath(other)
            yield Event(kind, int(number), path, other, file.read(int(size)))


class Node:
    """What a file or a folder holds now, held when it was last synced, and the changes since then."""

    def __init__(self, now: Any, changed: Callable[..., None]) -> None:
        self.now, self.synced, self.changes, self.changed = now, now.copy(), [], changed

    def change(self, *values: Any) -> None:
        self.changes.append(values)
        self.changed(self.now, *values)

    def sync(self) -> None:
        self.synced, self.changes = self.now.copy(), []


class File(Node):
    """Bytes, and the writes and sizes."""

    def __init__(self, now: bytes = b"") -> None:
        super().__init__(bytearray(now), _put)

    def left(self, way: Way) -> bytes:
        if way is ALL or not self.changes:
            return bytes(self.now)
        found = bytearray(self.synced)
        for place, data in self.changes if way is not NONE else ():
            end = place if data is None else max(len(found), place + len(data))
            if way is NAMES or way.random() < 0.5:
                _put(found, end, None)
            if way is not NAMES and data is not None:
                block = way.choice((512, 4096))
                starts = [place, *range(place - place % block + block, place + len(data), block), place + len(data)]
                for start, stop in pairwise(starts):
                    if way.random() < 0.5:
                        _put(found, start, data[start - place : stop - place])
        return bytes(found)


def _put(content: bytearray, place: int, data: bytes | None) -> None:
    """Write bytes to a place, or set the size if they are None; what lies between is zeros."""
    end = place if data is None else max(len(content), place + len(data))
    content.extend(bytes(max(end - len(content), 0)))
    if data is None:
        del content[place:]
    else:
        content[place : place + len(data)] = data


class Folder(Node):
    """Files and folders by their names; None in a change: no such name."""

    def __init__(self, now: dict[str, Node] | None = None) -> None:
        super().__init__(now or {}, _rename)

    def left(self, way: Way) -> Tree:
        found = dict(self.now if way is ALL or way is NAMES else self.synced)
        if isinstance(way, random.Random):
            for (names,) in self.changes:
                if way.random() < 0.5:
                    _rename(found, names)
        return {name: node.left(way) for name, node in sorted(found.items()) if not name.endswith("-shm")}


def _rename(found: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        found.pop(name, None)
        if node is not None:
            found[name] = node


class Disk:
    """A folder, from its state when the record began (all of it synced) to that after the last event applied.

    ``before`` has the files that it had then, None for none.
    """

    def __init__(self, path: Path, before: Path | None = None) -> None:
        self.path = str(path)
        self.root = Folder() if before is None else _read(before)

    def _at(self, path: str) -> tuple[Any, str]:
        """Return the folder that holds a path, and the path's name in it."""
        folder: Any = self.root
        *homes, name = path.removeprefix(self.path).strip("/").split("/")
        for home in homes:
            folder = folder.now[home]
        return folder, name

    def apply(self, event: Event) -> None:
        """Change the folder as an event did; remarks change nothing."""
        if event.kind.islower():
            return
        kind, number, path, other, data = event
        folder, name = self._at(path)
        if kind == "S":
            (folder.now[name] if name else folder).sync()
        elif kind in "WT":
            folder.now[name].change(number, data if kind == "W" else None)
        elif kind in "CV":
            if name not in folder.now:
                # Rust renames a finished file in a system call that is not recorded.
                same = [it for it, node in folder.now.items() if isinstance(node, File) and node.now == data != b""]
                folder.change({same[0]: None, name: folder.now[same[0]]} if same else {name: File()})
            if kind == "V" and folder.now[name].now != data:
                folder.now[name].change(0, None)
                folder.now[name].change(0, data)
        elif kind == "D":
            folder.change({name: Folder()})
        elif kind == "U":
            folder.change({name: None})
        else:
            home, to = self._at(other)
            assert home is folder, "a move between folders, of which a power cut may leave both ends or none"
            node, there = folder.now[name], folder.now.get(to)
            folder.change({"L": {to: node}, "R": {name: None, to: node}, "X": {name: there, to: node}}[kind])

    def left(self, way: Way) -> Tree:
        """Return what a power cut now leaves."""
        return self.root.left(way)


def _read(path: Path) -> Node:
    return Folder({each.name: _read(each) for each in path.iterdir()}) if path.is_dir() else File(path.read_bytes())


def write(tree: Tree | bytes, path: Path) -> None:
    """Write what is left to a path that does not exist."""
    if isinstance(tree, bytes):
        path.write_bytes(tree)
    else:
        path.mkdir()
        for name, inside in tree.items():
            write(inside, path / name)


def tree(path: Path) -> Tree | bytes:
    """Return the contents of a path, without the shared memory that SQLite makes again."""
    if path.is_file():
        return path.read_bytes()
    return {each.name: tree(each) for each in sorted(path.iterdir()) if not each.name.endswith("-shm")}
