"""Child process: break a command at chosen moments and check what is left.

Usage: faulty.py KINDS WORK MOST COMMAND..., with the compiled faults.c in LD_PRELOAD. WORK has a folder ``before``;
each run begins in a copy of it. KINDS, with commas between them: ``errors`` (a write, fsync or rename fails),
``memory`` (a large allocation fails), ``kills`` (before such a call, or by time), ``power`` (before an fsync or rename,
see disk.py). Each kind has at most MOST moments, evenly spaced. Prints for each how
many states were checked, and how many of them were the one before the command and the one after it. Any other is an
error, and so is a command that cannot be repeated.
"""

import ctypes
import hashlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ctx_embed import SearchIndex
from ctx_embed.cli.main import main
from ctx_embed.index.database import DATABASE
from tests.helpers.disk import NAMES, NONE, Disk, events, write

LIBRARY = ctypes.CDLL(None)
LIBRARY.calls.restype = ctypes.c_long
# Names of unfinished work end so, and those of a teacher's embeddings, which are computed again.
UNFINISHED = (".partial", ".teacher")
SLOW_IMPORTS = {"train": "ctx_embed.training.supervised.train", "distill": "ctx_embed.training.distillation.job"}
# What the library counts.
CALLS, ALLOCATIONS = range(2)
CRASHED = 70
# Exit status of a process that the library has ended.
ENDED = 71
# Libraries in C++ and Rust end the process if a small allocation fails.
ABORTED = (-signal.SIGABRT, -signal.SIGSEGV)


def content(folder: Path) -> dict[str, Any]:
    """Return the documents and nearest hits of each index in a folder, and the hash of each other file.

    Indexes must be whole. A Parquet set without rows is unfinished work, as are names that begin with a dot.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith(UNFINISHED):
            continue
        if (path / DATABASE).exists():
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


def run(
    folder: Path,
    command: list[str],
    fault: int = 0,
    ends: bool = False,
    record: Path | None = None,
    seconds: float | None = None,
    counted: int = CALLS,
) -> tuple[int, str, int]:
    """Run a command in a fork, in a folder; return its status, its standard error and its number of calls.

    Args:
        fault: the number of the call that fails; 0 for none.
        ends: whether the process ends at the fault.
        record: a file to record the changes and syncs of the folder in.
        seconds: kill the process after this time.
    """
    reader, writer = os.pipe()
    errors = folder.parent / "stderr"
    child = os.fork()
    if child == 0:
        status = CRASHED
        try:
            os.chdir(folder)
            for number, path in ((1, os.devnull), (2, errors)):
                os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
            if record is not None:
                LIBRARY.record(os.fsencode(folder), os.fsencode(record))
            LIBRARY.arm(ctypes.c_long(fault), counted, ends)
            main(command)
        except SystemExit as error:
            status = int(error.code or 0)
        finally:
            calls = LIBRARY.calls()
            LIBRARY.arm(ctypes.c_long(0), CALLS, False)
            if status == CRASHED:
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os.write(writer, str(calls).encode())
            os._exit(status)
    os.close(writer)
    timer = threading.Timer(seconds or 0, os.kill, (child, signal.SIGKILL))
    if seconds is not None:
        timer.start()
    with open(reader) as stream:
        calls = int(stream.read() or 0)
    timer.cancel()
    _, status = os.waitpid(child, 0)
    if seconds is not None:
        timer.join()
    return os.waitstatus_to_exitcode(status), errors.read_text(), calls


class Trials:
    """Runs of a command that are broken, at ``most`` moments, in copies of ``before`` in the folder ``work``."""

    def __init__(self, work: Path, most: int, command: list[str]) -> None:
        self.work, self.most, self.command = work, most, command
        # Here, and not in each process.
        if command[0] in SLOW_IMPORTS:
            import_module(SLOW_IMPORTS[command[0]])
        self.before = content(work / "before")
        began = time.monotonic()
        status, message, self.calls = run(self.fresh("after"), command)
        self.seconds = time.monotonic() - began
        assert status == 0, message
        self.after = content(work / "after")

    def fresh(self, name: str) -> Path:
        """Return a new copy of ``before``."""
        shutil.rmtree(self.work / name, ignore_errors=True)
        return Path(shutil.copytree(self.work / "before", self.work / name))

    def moments(self, last: int) -> Iterator[int]:
        """Yield numbers of calls from the first to the last one, evenly spaced."""
        most = min(self.most, last)
        return (1 + number * (last - 1) // max(most - 1, 1) for number in range(most))

    def errors(self) -> Iterator[bool]:
        """Let calls fail; yield for each whether the state after the command is there."""
        return self._failures(self.calls, CALLS)

    def memory(self) -> Iterator[bool]:
        """Let large allocations fail."""
        allocations = run(self.fresh("faulty"), self.command, counted=ALLOCATIONS)[2]
        return self._failures(allocations, ALLOCATIONS)

    def _failures(self, last: int, counted: int) -> Iterator[bool]:
        for fault in self.moments(last):
            folder = self.fresh("faulty")
            status, message, _ = run(folder, self.command, fault, counted=counted)
            lines = [line for line in message.splitlines() if line.startswith("Error: ")]
            what = f"fault {fault} of {last}: status {status}\n{message}"
            refused = status == 1 and len(lines) == 1 and "Traceback" not in message
            assert status == 0 or refused or (counted == ALLOCATIONS and status in ABORTED), what
            yield self.is_after(folder, status == 0, what)

    def kills(self) -> Iterator[bool]:
        """Kill the process, in turn before a call and after some time."""
        for number in range(self.most):
            folder = self.fresh("faulty")
            if number % 2:
                status, message, _ = run(folder, self.command, 1 + number * self.calls // self.most, ends=True)
            else:
                status, message, _ = run(folder, self.command, seconds=self.seconds * (number + 1) / (self.most + 1))
            assert status in (0, ENDED, -signal.SIGKILL), message
            yield self.is_after(folder, status == 0, f"kill {number} of {self.most}")

    def power(self) -> Iterator[bool]:
        """Cut the power before fsyncs and renames, and at the end."""
        folder, record = self.fresh("disk"), self.work / "record"
        record.unlink(missing_ok=True)
        status, message, _ = run(folder, self.command, record=record)
        assert status == 0, message
        disk, seen, history = Disk(folder, self.work / "before"), set(), list(events(record))
        calls = [number for number, event in enumerate(history) if event.kind in "SRX"] + [len(history)]
        moments = {calls[number - 1] for number in self.moments(len(calls))}
        for number in range(len(history) + 1):
            for way in (NONE, NAMES, random.Random(number), random.Random(-number)) if number in moments else ():
                left, done = disk.left(way), number == len(history)
                state = hashlib.sha256(repr((done, left)).encode()).digest()
                if state not in seen:
                    seen.add(state)
                    shutil.rmtree(folder)
                    write(left, folder)
                    yield self.is_after(folder, done, f"event {number} of {len(history)}, {way}")
            if number < len(history):
                disk.apply(history[number])

    def is_after(self, folder: Path, done: bool, what: str) -> bool:
        """Check what is left in a folder, and that the command can be repeated if it has not been done."""
        found = content(folder)
        for name in {*found, *self.after}:
            states = [self.after.get(name)] if done else [self.before.get(name), self.after.get(name)]
            assert found.get(name) in states, f"{what}: {name}"
        if found != self.after:
            resume = ["--resume"] if self.command[:2] == ["index", "build"] else []
            status, message, _ = run(folder, [*self.command, *resume])
            assert (status, content(folder)) == (0, self.after), f"again, after {what}\n{message}"
            assert not list(folder.glob("*.partial")), f"again, after {what}"
        return found == self.after


if __name__ == "__main__":
    trials = Trials(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    for kind in sys.argv[1].split(","):
        after = list(getattr(trials, kind)())
        print(len(after), len(after) - sum(after), sum(after))
