"""Readers and writers of one index in threads, processes and servers that are killed; every answer is checked.

python -m tests.soak.soak MINUTES prints what was done, and how much memory and how many files were in use.
"""

import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import httpx
import psutil

from ctx_embed import SearchIndex
from ctx_embed.errors import BusyError
from tests.serving.server import Server, serving

MODES = ("words", "dense", "hybrid", "get")
SAMPLES = 120
MEMBERS = 3
# A reader may be so many versions behind when it reports what it has seen.
KEPT = 1000
FIRST, LAST = ["rain", "snow", "sun", "wind", "book", "play", "work", "sea"], ("", "fall", "flower", "mill", "shop")
WORDS = [first + last for first in FIRST for last in LAST]


def text_of(group: int, number: int, member: int) -> str:
    """Return the text of a document in a version; every text is another."""
    words = random.Random(f"{group} {number} {member}").sample(WORDS, 8)
    return f"{' '.join(words)} g{group} v{number}"


@dataclass
class Version:
    """A state of a group."""

    number: int | None  # None when it is deleted
    began: float
    done: float = inf  # when it was acknowledged or first seen


class Ledger:
    """What was written when: the versions of groups, each with one writer that changes all its documents at once."""

    def __init__(self, groups: int) -> None:
        self._lock = threading.Lock()
        self._versions = [[Version(None, -inf, -inf)] for _ in range(groups)]
        self._numbers = [0] * groups

    def begin(self, group: int, present: bool, now: float) -> Version:
        """Note that a version is being written: the next one, or the deletion of the group."""
        with self._lock:
            self._numbers[group] += present
            version = Version(self._numbers[group] if present else None, now)
            self._versions[group] = [*self._versions[group][-KEPT:], version]
            return version

    def newest(self, group: int) -> Version:
        """Return the version that was begun last."""
        return self._versions[group][-1]

    def check(self, group: int, number: int | None, began: float, ended: float, *, absent: bool = False) -> None:
        """Check an answer: it is a version that may be found then, which nobody may miss from now on.

        An answer where the version is ``absent`` may be one only if another may be found then.
        """
        with self._lock:
            versions = self._versions[group]
            base = max(place for place, version in enumerate(versions) if version.done < began)
            possible = [version for version in versions[base:] if version.began < ended]
            found = [version for version in possible if (version.number == number) is not absent]
            assert found, f"group {group}: {number}, {absent=}, from {began} to {ended}, but {possible}"
            if len(found) == 1 and not absent:
                found[0].done = min(found[0].done, ended)

    def refused(self, group: int) -> None:
        """Note that the version that was begun last has not been written."""
        with self._lock:
            self._versions[group].pop()


class Elsewhere(BaseManager):
    """Another process, which starts when its index is first asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(ctx=get_context("spawn"))
        self._path, self._starting, self._index = path, threading.Lock(), None

    @property
    def index(self) -> Any:
        with self._starting:
            if self._index is None:
                self.start()
                self._index = self.open(self._path)
            return self._index

    def kill(self) -> None:
        """Kill the process, which has been asked for its index before."""
        self._process.kill()
        self._process.join()


Elsewhere.register("open", SearchIndex.open, exposed=("search", "get", "upsert", "delete"))


@dataclass(frozen=True)
class Remote:
    """An index that a server serves, by its address."""

    http: httpx.Client
    url: str

    def answer(self, route: str, **body: Any) -> dict[str, Any]:
        try:
            answer = self.http.post(f"{self.url}/{route}", json=body)
        except httpx.HTTPError as error:
            raise ConnectionError(str(error)) from None
        if answer.status_code in (429, 503):
            raise BusyError(answer.text)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def search(self, query: str, **options: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(**hit) for hit in self.answer("search", query=query, **options)["hits"]]

    def get(self, identifier: str) -> SimpleNamespace | None:
        (document,) = self.answer("get", ids=[identifier])["documents"]
        return document and SimpleNamespace(**document)

    def upsert(self, texts: list[str], ids: list[str]) -> None:
        self.answer("upsert", texts=texts, ids=ids)

    def delete(self, ids: list[str]) -> None:
        self.answer("delete", ids=ids)


class Soak:
    """One run of some seconds, with a mean pause between two kills; the index is created."""

    def __init__(self, path: Path, groups: int, seconds: float, pause: float) -> None:
        self.path, self.groups, self.seconds, self.pause = path, groups, seconds, pause
        self.ledger = Ledger(groups)
        self.done: Counter[str] = Counter()
        # Memory in MB and open files of each process, evenly over time.
        self.samples: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._over = threading.Event()
        self._killed_server: Server
        self._writer: Elsewhere

    def run(self) -> None:
        """Run for the given time, and check at the end that all that was acknowledged is found.

        Raises:
            AssertionError: something was lost, or an answer was wrong.
        """
        SearchIndex.create(self.path).close()
        with ExitStack() as stack:
            http = stack.enter_context(httpx.Client(timeout=60))
            steady = stack.enter_context(serving(self.path))
            servers = stack.enter_context(ExitStack())
            self._killed_server = servers.enter_context(serving(self.path, "--workers", 2))
            self._writer = Elsewhere(self.path)
            shared = stack.enter_context(SearchIndex.open(self.path))
            reader = Elsewhere(self.path)
            assert reader.index
            stack.callback(reader.kill)
            assert self._writer.index
            stack.callback(lambda: self._writer.index and self._writer.kill())
            route = f"/v1/indexes/{self.path.name}"
            indexes: list[Callable[[], Any]] = [
                lambda: shared,
                lambda: Remote(http, steady.url + route),
                lambda: self._writer.index,
                lambda: Remote(http, self._killed_server.url + route),
            ]
            readers = [*indexes, lambda: shared, lambda: reader.index]
            pids = {"server": steady.process.pid, "reader": reader._process.pid, "threads": None}
            with ThreadPoolExecutor(len(indexes) + len(readers) + 2) as pool:
                works = [pool.submit(self._write, *each, len(indexes)) for each in enumerate(indexes)]
                works += [pool.submit(self._read, *each) for each in enumerate(readers)]
                works += [pool.submit(self._kill, servers), pool.submit(self._sample, pids)]
                wait(works, self.seconds, FIRST_EXCEPTION)
                self._over.set()
            for work in works:
                work.result()
            self._check_all(shared)
            self._check_all(reader.index)
        with SearchIndex.open(self.path) as index:
            assert index.verify() == []
            self._check_all(index)

    def _write(self, place: int, index_of: Callable[[], Any], writers: int) -> None:
        """Change the groups of one writer until the time is over."""
        generator, present = random.Random(place), set()

        def write(index: Any) -> None:
            group = generator.randrange(place, self.groups, writers)
            delete = group in present and generator.random() < 0.3
            ids = [f"{group}-{member}" for member in range(MEMBERS)]
            if generator.random() < 0.01 and hasattr(index, "compact"):
                index.compact()
            version = self.ledger.begin(group, not delete, time.monotonic())
            try:
                if delete:
                    index.delete(ids)
                else:
                    index.upsert([text_of(group, version.number, member) for member in range(MEMBERS)], ids)
            except BusyError:
                self.ledger.refused(group)
                raise
            finally:
                (present.discard if delete else present.add)(group)
            version.done = time.monotonic()
            self.done["writes"] += 1

        self._repeat(index_of, write)

    def _read(self, place: int, index_of: Callable[[], Any]) -> None:
        """Ask and check until the time is over."""
        draw = random.Random(-1 - place)
        self._repeat(index_of, lambda index: self._ask(index, draw.randrange(self.groups), draw.choice(MODES)))

    def _repeat(self, index_of: Callable[[], Any], work: Callable[[Any], None]) -> None:
        """Call a function with an index until the time is over."""
        while not self._over.wait(0.005):
            with self._refusals():
                work(index_of())

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except BusyError:
            self.done["refused: busy"] += 1
        except (ConnectionError, EOFError, FileNotFoundError):
            self.done["cut off"] += 1
            # What was killed takes a moment to start again.
            self._over.wait(0.2)

    def _ask(self, index: Any, group: int, mode: str) -> None:
        """Ask for a group in one way, and check the answer."""
        newest = self.ledger.newest(group).number or 0
        member = newest % MEMBERS
        began = time.monotonic()
        if mode == "get":
            document = index.get(f"{group}-{member}")
            hits = [document] if document else []
        else:
            query = text_of(group, newest, member) if mode == "dense" else f"g{group}"
            hits = index.search(query, k=10, mode=mode)
        ended = time.monotonic()
        found = defaultdict(list)
        for hit in hits:
            of, member = map(int, hit.id.split("-"))
            written = re.search(r" v(\d+)$", hit.text)
            assert written, (hit.id, hit.text)
            number = int(written[1])
            assert hit.text == text_of(of, number, member), (hit.id, hit.text)
            found[of].append(number)
            self.ledger.check(of, number, began, ended)
        numbers = found[group]
        assert len(set(numbers)) <= 1, f"group {group} in two states: {numbers}"
        if mode in ("words", "hybrid"):
            assert len(numbers) in (0, MEMBERS), f"a part of group {group}: {numbers}"
        if mode != "dense":
            self.ledger.check(group, numbers[0] if numbers else None, began, ended)
        elif newest not in numbers:
            self.ledger.check(group, newest, began, ended, absent=True)
        self.done[f"asked ({mode})"] += 1

    def _check_all(self, index: Any) -> None:
        """Check that each group is found in all ways, or in none."""
        for group in range(self.groups):
            for mode in MODES:
                self._ask(index, group, mode)

    def _kill(self, servers: ExitStack) -> None:
        """Kill workers, the whole server and the writing process until the time is over."""
        generator = random.Random(45)  # a writer, a server and a worker come first
        while not self._over.wait(generator.uniform(0.5, 1.5) * self.pause):
            kind = generator.choice(["worker", "worker", "server", "writer"])
            self.done[f"kills of a {kind}"] += 1
            if kind == "writer":
                killed, self._writer = self._writer, Elsewhere(self.path)
                if killed.index:
                    killed.kill()
                continue
            process = psutil.Process(self._killed_server.process.pid)
            workers = list(filter(_is_worker, process.children()))
            if kind == "worker":
                with suppress(psutil.NoSuchProcess, IndexError):
                    generator.choice(workers).kill()
            else:
                process.kill()
                left = psutil.wait_procs(workers, timeout=30)[1]
                for worker in left:
                    worker.kill()
                assert not left, f"{len(left)} workers outlived their server"
                self._killed_server = servers.enter_context(serving(self.path, "--workers", 2))

    def _sample(self, processes: dict[str, int | None]) -> None:
        while not self._over.wait(self.seconds / SAMPLES):
            for name, pid in processes.items():
                process = psutil.Process(pid)
                self.samples[name].append((process.memory_info().rss >> 20, process.num_fds()))


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has been killed
        return False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder) / "soak.index", groups=300, seconds=60 * float(sys.argv[1]), pause=5)
        try:
            soak.run()
        finally:
            for name, number in sorted(soak.done.items()):
                print(f"{name}: {number:,}")
            for name, samples in soak.samples.items():
                third = len(samples) // 3
                (memory, files), (later, files_later) = (
                    map(median, zip(*part, strict=True)) for part in (samples[:third], samples[-third:])
                )
                print(f"{name}: {memory:.0f}, at the end {later:.0f} MB; {files:.0f} and {files_later:.0f} open files")
