"""Readers and writers of one index in threads, processes and servers that are killed; every answer is checked."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from ctx_embed import SearchIndex
from ctx_embed.errors import BusyError
from tests.serving.server import Server, serving
from tests.soak.child import ChildIndex
from tests.soak.ledger import MEMBERS, Ledger, text_of, version_of
from tests.soak.remote import Remote

MODES = ("words", "dense", "hybrid", "get")
SAMPLES = 120


class Soak:
    """One run.

    Args:
        path: the index, which is created.
        groups: the number of groups of documents.
        seconds: the duration.
        pause: the mean of the seconds between two kills.
    """

    def __init__(self, path: Path, groups: int, seconds: float, pause: float) -> None:
        self.path, self.groups, self.seconds, self.pause = path, groups, seconds, pause
        self.ledger = Ledger(groups)
        self.done: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.samples: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._over = threading.Event()
        self._killed_server: Server
        self._writer: ChildIndex

    def run(self) -> None:
        """Run for the given time, and check at the end that all that was acknowledged is found.

        Raises:
            AssertionError: something was lost, or an answer was wrong.
        """
        SearchIndex.create(self.path).close()
        with ExitStack() as stack:
            steady = stack.enter_context(serving(self.path))
            servers = stack.enter_context(ExitStack())
            self._killed_server = servers.enter_context(serving(self.path, "--workers", 2))
            self._writer = ChildIndex(self.path)
            shared = stack.enter_context(SearchIndex.open(self.path))
            reader = ChildIndex(self.path)
            stack.callback(reader.close)
            stack.callback(lambda: self._writer.close())
            indexes: list[Callable[[], Any]] = [
                lambda: shared,
                lambda: Remote(steady.url),
                lambda: self._writer,
                self._remote_of_killed,
            ]
            works: list[tuple[Callable[..., None], ...]] = [
                *((self._write, index_of, place, len(indexes)) for place, index_of in enumerate(indexes)),
                *(
                    (self._read, index_of, place)
                    for place, index_of in enumerate([*indexes, lambda: shared, lambda: reader])
                ),
                (self._kill, servers),
                (self._sample, {"server": steady.process.pid, "reader": reader.process.pid, "threads": None}),
            ]
            threads = [threading.Thread(target=self._guarded, args=work) for work in works]
            for thread in threads:
                thread.start()
            self._over.wait(self.seconds)
            self._over.set()
            for thread in threads:
                thread.join()
            if self.failures:
                raise self.failures[0]
            self._check_all(shared)
            self._check_all(reader)
        with SearchIndex.open(self.path) as index:
            assert index.verify() == []
            self._check_all(index)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.failures.append(error)
            self._over.set()

    def _remote_of_killed(self) -> Remote:
        return Remote(self._killed_server.url)

    def _write(self, index_of: Callable[[], Any], place: int, writers: int) -> None:
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

    def _read(self, index_of: Callable[[], Any], place: int) -> None:
        """Ask and check until the time is over."""
        generator = random.Random(-1 - place)
        self._repeat(
            index_of, lambda index: self._ask(index, generator.randrange(self.groups), generator.choice(MODES))
        )

    def _repeat(self, index_of: Callable[[], Any], work: Callable[[Any], None]) -> None:
        """Call a function with an index until the time is over, with another index when a kill has cut it off."""
        index = None
        while not self._over.wait(0.005):
            with self._refusals():
                index = index or index_of()
                work(index)
                continue
            if isinstance(index, Remote):
                index.close()
            index = None
        if isinstance(index, Remote):
            index.close()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except BusyError:
            self.done["refused: busy"] += 1
        except ConnectionError:
            self.done["cut off"] += 1

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
            of, number = version_of(hit.id, hit.text)
            found[of].append(number)
            self.ledger.check(of, number, began, ended)
        numbers = found[group]
        assert len(set(numbers)) <= 1, f"group {group} in two states: {numbers}"
        if mode in ("words", "hybrid"):
            assert len(numbers) in (0, MEMBERS), f"a part of group {group}: {numbers}"
        if mode != "dense":
            self.ledger.check(group, numbers[0] if numbers else None, began, ended)
        elif newest not in numbers:
            self.ledger.check_other(group, newest, began, ended)
        self.done[f"asked ({mode})"] += 1

    def _check_all(self, index: Any) -> None:
        """Check that each group is found in all ways, or in none."""
        for group in range(self.groups):
            for mode in MODES:
                self._ask(index, group, mode)

    def _kill(self, servers: ExitStack) -> None:
        """Kill workers, the whole server and the writing process until the time is over."""
        generator = random.Random(0)
        while not self._over.wait(generator.uniform(0.5, 1.5) * self.pause):
            kind = generator.choice(["worker", "worker", "server", "writer"])
            self.done[f"kills of a {kind}"] += 1
            if kind == "writer":
                self._writer.close()
                self._writer = ChildIndex(self.path)
                continue
            process = psutil.Process(self._killed_server.process.pid)
            workers = list(filter(_is_worker, process.children()))
            if kind == "worker":
                with suppress(psutil.NoSuchProcess, IndexError):
                    generator.choice(workers).kill()
                continue
            process.kill()
            left = psutil.wait_procs(workers, timeout=30)[1]
            for worker in left:
                worker.kill()
            assert not left, f"{len(left)} workers outlived their server"
            self._killed_server = servers.enter_context(serving(self.path, "--workers", 2))

    def _sample(self, processes: dict[str, int | None]) -> None:
        """Note memory (in MB) and open files of processes, evenly over time."""
        while not self._over.wait(self.seconds / SAMPLES):
            for name, pid in processes.items():
                process = psutil.Process(pid)
                self.samples[name].append((process.memory_info().rss >> 20, process.num_fds()))

    def thirds(self) -> dict[str, tuple[float, ...]]:
        """Return for each process its memory in the first and in the last third, and its open files in both."""
        found = {}
        for name, samples in self.samples.items():
            third = len(samples) // 3
            parts = [samples[:third], samples[-third:]]
            found[name] = tuple(median(sample[what] for sample in part) for what in (0, 1) for part in parts)
        return found


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has been killed
        return False
