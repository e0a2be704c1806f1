"""Read files: plain text in this process, risky formats in worker processes with limits on time and memory.

A worker is started with ``python -m ctx_embed.reading.workers MEGABYTES``. For each path on its input, with the
folder in which the file must lie, it writes the texts to its output, as lines of JSON. It ends when its input does.
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
from queue import SimpleQueue
from typing import Any, TypeVar

from ctx_embed.files import PathInside
from ctx_embed.reading.decoding import MEGABYTES, SECONDS, Extracted, UnreadableFileError
from ctx_embed.reading.encodings import WrongBytesWarning
from ctx_embed.reading.formats import extract, format_of

Item = TypeVar("Item")

MOST_WORKERS = 4
# Number of files that each worker reads ahead.
_AHEAD = 8


class _Worker:
    """A process that reads one file at a time; it starts at the first file, and again after :meth:`end`."""

    def __init__(self, seconds: float, megabytes: int) -> None:
        self.seconds = seconds
        self.megabytes = megabytes
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def read(self, path: str) -> list[Extracted]:
        """Return the texts of a file; too much time or memory is an :class:`UnreadableFileError`, too."""
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
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.seconds, stop)
        timer.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps([path, getattr(path, "folder", "")]).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self.end()
            said = f"takes longer than {self.seconds:g} s" if late.is_set() else "ends the process that reads it"
            raise UnreadableFileError(said)
        found: dict[str, Any] = json.loads(line)
        if "reason" in found:
            if found.get("spent"):
                self.end()
            raise UnreadableFileError(found["reason"], counted=found.get("counted", False))
        for said in found["warnings"]:
            warnings.warn(WrongBytesWarning(said), stacklevel=2)
        return [Extracted(**fields) for fields in found["texts"]]

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
        """End the process for good; a waiting :meth:`read` raises an error."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()


class Extraction(AbstractContextManager["Extraction"]):
    """Reads files in order, in worker processes (None: one for each core, at most four) that read ahead."""

    def __init__(self, workers: int | None = None, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> None:
        self.count = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        self._workers = [_Worker(seconds, megabytes) for _ in range(self.count)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
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
        apart = 0
        for item, path in files:
            future = None
            if path is not None and format_of(path).apart and format_of(path).installed:
                future = self._threads.submit(in_worker, path)
                apart += 1
            waiting.append((item, path, future))
            while waiting and (apart == 0 or apart >= _AHEAD * self.count or len(waiting) > 64 * _AHEAD):
                apart -= waiting[0][2] is not None
                yield result()
        while waiting:
            yield result()


def answer(path: str, megabytes: int) -> dict[str, object]:
    """Return the texts of a file, or the reason why there are none."""
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", WrongBytesWarning)
            texts = [asdict(extracted) for extracted in extract(path)]
        warned = [str(warning.message) for warning in raised if issubclass(warning.category, WrongBytesWarning)]
        return {"texts": texts, "warnings": warned}
    except UnreadableFileError as error:
        return {"reason": str(error), "counted": error.counted}
    except MemoryError:
        # Some of the memory that the file took is never freed, so the next file needs a new process.
        return {"reason": f"needs more than {megabytes} MB of memory", "spent": True}
    except RecursionError:
        return {"reason": "nested too deeply"}
    except Exception as error:
        # Libraries raise all kinds of errors for broken files.
        said = " ".join(str(error).split())
        return {"reason": f"cannot be read ({type(error).__name__}{': ' if said else ''}{said:.120})"}


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
        written = json.dumps(answer(PathInside(*json.loads(line)), megabytes), default=str)
        print(written, file=output, flush=True)


if __name__ == "__main__":
    main()
