"""Read files: plain text in this process, risky formats in worker processes with limits on time and memory.

A worker is started with ``python -m ctx_embed.reading.workers MEGABYTES``. For each path on its input, with the
folder in which the file must lie, it writes the texts or rows to its output, as lines of JSON, and how it ended. It
ends when its input does.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import date, time
from itertools import compress, count, repeat
from operator import ne
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from ctx_embed.files import PathInside
from ctx_embed.reading.decoding import MEGABYTES, SECONDS, Extracted, UnreadableFileError
from ctx_embed.reading.encodings import WrongBytesWarning
from ctx_embed.reading.formats import SPREADSHEET, extract, format_of
from ctx_embed.reading.opening import said

Item = TypeVar("Item")

MOST_WORKERS = 4
# Number of files that each worker reads ahead.
_AHEAD = 8


class Worker(AbstractContextManager["Worker"]):
    """A process that reads one file at a time; it starts at the first file, and again after :meth:`end`."""

    def __init__(self, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> None:
        self.seconds, self.megabytes = seconds, megabytes
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, path: str) -> Iterator[Any]:
        """Yield what the process reads in a file; too much time or memory is an :class:`UnreadableFileError`, too."""
        if self._closed:
            raise UnreadableFileError("not read")
        if self._process is None:
            # multiprocessing is unsuitable: it would import the user's script again, or fork a process with threads.
            paths = os.pathsep.join(path for path in sys.path if path)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self.megabytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )
        process = self._process
        if self._closed:
            # While the process started, another thread closed this worker.
            process.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        done, last = threading.Event(), None
        # Only waiting for the process counts, since whoever takes its rows may be slower.
        waited = 0.0
        since: float | None = monotonic()

        def watch() -> None:
            left = self.seconds
            while not done.wait(left):
                left = self.seconds - waited - (0.0 if since is None else monotonic() - since)
                if left <= 0:
                    process.kill()
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps([path, getattr(path, "folder", "")]).encode() + b"\n")
                process.stdin.flush()
            while last is None:
                since = monotonic()
                line = process.stdout.readline()
                waited, since = waited + monotonic() - since, None
                if not line.endswith(b"\n"):
                    break
                found = json.loads(line)
                if isinstance(found, dict) and "reason" in found:
                    last = found
                else:
                    yield found
        finally:
            done.set()
            if last is None or last["spent"]:
                self.end()
        if last is None:
            said = (
                f"takes longer than {self.seconds:g} s" if waited >= self.seconds else "ends the process that reads it"
            )
            raise UnreadableFileError(said)
        if last["reason"] is not None:
            raise UnreadableFileError(last["reason"], counted=last["counted"])
        for said in last["warnings"]:
            warnings.warn(WrongBytesWarning(said), stacklevel=2)

    def read(self, path: str) -> list[Extracted]:
        """Return the texts of a file, see :meth:`ask`."""
        return [Extracted(**fields) for fields in self.ask(path)]

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                # Closing a pipe first writes what is buffered, which may fail because the process is dead.
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            process.wait()

    def close(self) -> None:
        """End the process for good; a waiting :meth:`ask` raises an error."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()


class Extraction(AbstractContextManager["Extraction"]):
    """Reads files in order, in worker processes (None: one for each core, at most four) that read ahead."""

    def __init__(self, workers: int | None = None, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> None:
        self.count = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        self._workers = [Worker(seconds, megabytes) for _ in range(self.count)]
        self._free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(self.count)

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.end()

    def read(self, files: Iterable[tuple[Item, str | None]]) -> Iterator[tuple[Item, list[Extracted] | Exception]]:
        """Yield each item, in order, with the texts of the file at its path (None: no texts), or with the error."""

        def in_worker(path: str) -> list[Extracted]:
            worker = self._free.get()
            try:
                return worker.read(path)
            finally:
                self._free.put(worker)

        def result() -> tuple[Item, list[Extracted] | Exception]:
            item, path, future = waiting.popleft()
            try:
                return item, future.result() if future is not None else [] if path is None else list(extract(path))
            except UnreadableFileError as error:
                return item, error

        waiting: deque[tuple[Item, str | None, Future[list[Extracted]] | None]] = deque()
        count = 0
        for item, path in files:
            future = None
            if path is not None and format_of(path).apart and format_of(path).installed:
                future = self._threads.submit(in_worker, path)
                count += 1
            waiting.append((item, path, future))
            while waiting and (count == 0 or count >= _AHEAD * self.count or len(waiting) > 64 * _AHEAD):
                count -= waiting[0][2] is not None
                yield result()
        while waiting:
            yield result()


def rows_of(path: str) -> Iterator[tuple[str, int, int, list[Any]]]:
    """Yield the rows that are not empty, with their cells up to the last one: None if empty, else JSON values.

    Before them stand the sheet if there are several, the number of rows before it, and the row's over all sheets.
    """
    import python_calamine

    first = 0
    try:
        with python_calamine.CalamineWorkbook.from_path(path) as workbook:
            names = workbook.sheet_names
            for name in names:
                number = 0
                for number, row in enumerate(workbook.get_sheet_by_name(name).iter_rows(), 1):
                    # One cell far to the right makes all rows as long as its own.
                    filled = deque(compress(count(1), map(ne, row, repeat(""))), 1)
                    if filled:
                        yield name * (len(names) > 1), first, first + number, list(map(_value, row[: filled[0]]))
                first += number
    except python_calamine.PasswordError:
        raise UnreadableFileError("password-protected") from None
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot be read as a spreadsheet ({said(error):.120})") from None


def _value(cell: Any) -> Any:
    """Return a cell as a JSON value: whole numbers as integers, times as ISO 8601, durations as text, empty as None."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return int(cell)
    if isinstance(cell, date | time):
        return cell.isoformat()
    return cell if isinstance(cell, bool | int | float) else str(cell) or None


def answer(path: str, megabytes: int) -> Iterator[str]:
    """Yield the texts or rows of a file as JSON, then the warnings, or the reason why there are no more."""
    last: dict[str, Any] = {"reason": None, "counted": False, "spent": False, "warnings": []}
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", WrongBytesWarning)
            for found in rows_of(path) if format_of(path).rows == SPREADSHEET else map(asdict, extract(path)):
                yield json.dumps(found, default=str)
        last["warnings"] = [str(warning.message) for warning in raised if warning.category is WrongBytesWarning]
    except UnreadableFileError as error:
        last |= {"reason": str(error), "counted": error.counted}
    except MemoryError:
        # Some of the memory that the file took is never freed, so the next file needs a new process.
        last |= {"reason": f"needs more than {megabytes} MB of memory", "spent": True}
    except RecursionError:
        last["reason"] = "nested too deeply"
    except Exception as error:
        # Libraries raise all kinds of errors for broken files.
        last["reason"] = f"cannot be read ({': '.join(filter(None, (type(error).__name__, f'{said(error):.120}')))})"
    yield json.dumps(last)


def main() -> None:
    """Extract each file that the input names, until the input ends."""
    megabytes = int(sys.argv[1])
    # Ctrl-C reaches all processes of a terminal; this one ends when its parent closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    # Libraries may print; their output must not mix with the answers.
    output = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1 << 16)
    os.dup2(2, 1)
    with suppress(ImportError):  # Windows cannot limit memory.
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    for line in sys.stdin:
        for written in answer(PathInside(*json.loads(line)), megabytes):
            print(written, file=output)
        output.flush()


if __name__ == "__main__":
    main()
