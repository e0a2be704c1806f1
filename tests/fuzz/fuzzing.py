"""Fuzz one kind of input: damage a good one, use it, and judge what happens."""

import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.damage import damaged
from tests.fuzz.targets import Target

# Far more than any use of these small inputs takes.
SECONDS = 20
MEGABYTES = 300


class HangError(Exception):
    """A use took longer than SECONDS."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise HangError in the context after some seconds."""

    def stop(*_: object) -> None:
        raise HangError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> int:
    """Return the megabytes that this process has had at most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def judge(target: Target, good: Path, name: str, content: bytes, seconds: int = SECONDS) -> bool:
    """Use an input of which one file has another content, and return whether it was accepted.

    Raises:
        Exception: any other than those of the target, or an AssertionError or HangError of this function.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "input"
        shutil.copytree(good, folder)
        (folder / name).write_bytes(content)
        before = _contents(folder)
        _reset_peak()
        start = _peak()
        try:
            with limited(seconds), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target.use(folder, name)
            message = None
        except target.allowed as error:
            message = str(error)
        assert _peak() - start < MEGABYTES, f"{_peak() - start} MB"
        assert [path.name for path in Path(scratch).iterdir()] == ["input"]
        assert target.writes or _contents(folder) == before
        assert message is None or "\n" not in message, message
        return message is None


def fuzz(target: Target, good: Path, examples: int, number: int | None = None) -> tuple[int, int]:
    """Judge damaged copies of the good input in a folder and return how many were used, and how many accepted.

    Args:
        examples: the number of copies.
        number: the seed; None draws the same copies each time.
    """
    names = sorted(str(path.relative_to(good)) for path in good.glob(target.damages) if path.is_file())
    contents = {name: (good / name).read_bytes() for name in names}
    for name, content in contents.items():
        assert judge(target, good, name, content, seconds=600), f"{name}, which is not damaged, is refused"
    counts = [0, 0]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=number is None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: Any) -> None:
        name = data.draw(st.sampled_from(names))
        content = data.draw(damaged(contents[name]))
        counts[0] += 1
        counts[1] += judge(target, good, name, content)

    (run if number is None else seed(number)(run))()
    return counts[0], counts[1]


def fuzz_for(target: Target, good: Path, seconds: float) -> tuple[int, int]:
    """Fuzz for some seconds, with new seeds; the result is that of :func:`fuzz`."""
    end, used, accepted = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        more, sound = fuzz(target, good, 100, number=time.time_ns())
        used, accepted = used + more, accepted + sound
    return used, accepted
