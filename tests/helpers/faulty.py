"""Child process: run a command once for each chosen write, fsync and rename, which fails, and check what is left.

Usage: faulty.py WORK MOST COMMAND..., with the compiled faults.c in LD_PRELOAD. WORK has a folder ``before``; each run
begins in a copy of it. At most MOST calls fail, evenly spaced. Prints how many did, and how many of them left the state
before the command and the one after it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from ctx_embed import SearchIndex
from ctx_embed.cli.main import main
from ctx_embed.index.storage.manifest import MANIFEST

LIBRARY = ctypes.CDLL(None)
LIBRARY.calls.restype = ctypes.c_long
CRASHED = 70


def content(folder: Path) -> dict[str, Any]:
    """Return the documents and nearest hits of each index in a folder, and the hash of each other file.

    Indexes must be whole. Names that begin with a dot or end with ``.partial`` or ``.reembedded`` are of unfinished
    work, and so is a Parquet set without rows.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith((".partial", ".reembedded")):
            continue
        if (path / MANIFEST).exists():
            with SearchIndex.open(path) as index:
                assert index.verify() == [], path
                documents = [(each.id, each.text, each.metadata) for each in index.documents()]
                hits = [(hit.id, round(hit.score, 4)) for hit in index.search("a film", k=3, mode="dense")]
            found[path.name] = documents, hits
            continue
        # The other files of a model say how long its training took.
        files = [path] if path.is_file() else list(path.rglob("*.safetensors")) or list(path.rglob("*.parquet"))
        hashes = sorted(hashlib.sha256(each.read_bytes()).hexdigest() for each in files if each.name[0] not in "._")
        if hashes:
            found[path.name] = hashes
    return found


def run(folder: Path, command: list[str], fault: int = 0) -> tuple[int, str, int]:
    """Run a command in a fork, in a folder; return its status, its standard error and its number of calls."""
    reader, writer = os.pipe()
    errors = folder.parent / "stderr"
    child = os.fork()
    if child == 0:
        status = CRASHED
        try:
            os.chdir(folder)
            for number, path in ((1, os.devnull), (2, errors)):
                os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
            LIBRARY.arm(ctypes.c_long(fault))
            main(command)
        except SystemExit as error:
            status = int(error.code or 0)
        finally:
            calls = LIBRARY.calls()
            LIBRARY.arm(ctypes.c_long(0))
            if status == CRASHED:
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os.write(writer, str(calls).encode())
            os._exit(status)
    os.close(writer)
    with open(reader) as stream:
        calls = int(stream.read())
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), errors.read_text(), calls


def every_fault(work: Path, most: int, command: list[str]) -> None:
    """Check each chosen fault."""
    again = [*command, "--resume"] if command[:2] == ["index", "build"] else command
    before, left = content(work / "before"), {"before": 0, "after": 0}

    def fresh(name: str) -> Path:
        shutil.rmtree(work / name, ignore_errors=True)
        shutil.copytree(work / "before", work / name)
        return work / name

    status, message, calls = run(fresh("after"), command)
    assert status == 0, message
    after = content(work / "after")
    chosen = range(1, calls + 1) if calls <= most else (1 + number * calls // most for number in range(most))
    for fault in chosen:
        folder = fresh("faulty")
        status, message, _ = run(folder, command, fault)
        lines = [line for line in message.splitlines() if line.startswith("Error: ")]
        assert status == 0 or (status == 1 and len(lines) == 1), f"fault {fault}: status {status}\n{message}"
        found = content(folder)
        for name in {*found, *after}:
            states = [after.get(name)] if status == 0 else [before.get(name), after.get(name)]
            assert found.get(name) in states, f"fault {fault}: status {status}, {name}\n{message}"
        left["after" if found == after else "before"] += 1
        if found != after:
            status, message, _ = run(folder, again)
            assert (status, content(folder)) == (0, after), f"again, after fault {fault}\n{message}"
    print(sum(left.values()), left["before"], left["after"])


if __name__ == "__main__":
    every_fault(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
