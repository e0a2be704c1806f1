"""Fuzz a kind of input: damage a good one, use it, and judge what happens.

python -m tests.fuzz.fuzzing MINUTES [KIND ...] fuzzes each kind with new seeds, and exits with 1 if one fails.
"""

import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from tests.fuzz.targets import TARGETS, Target

HEADER = 8  # bytes before a safetensors header, with its length
DEEP = json.loads("[" * 400 + "]" * 400)
NUMBERS = [True, -1, 0, 3, 2**31, 2**63, 10**30, 1e308, float("nan"), float("-inf")]
STRINGS = ["", "\0", "\ud800", "a" * 5000, "../../etc/passwd", "/dev/zero", "1e999", "2262-13-40"]
VALUES = st.sampled_from([None, *NUMBERS, *STRINGS, [], {}, [[]], {"a": {}}, ["x"] * 100, DEEP]) | st.recursive(
    st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)
PIECES = [piece.encode() for piece in ["", "\0", "\n", "\r", '"', "\\", ",", "../", "%s", "-1", "nan", "1e999", "not "]]
PIECES += [b"[" * 50_000, b"{" * 200, b"(" * 200, b"<a>" * 200, b"*" * 50, b"9" * 400]
PIECES += [b"\xff\xfe", b"\xf0\x28", "\u202e\u0130\uffff".encode()]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return each object and array in JSON with each of its keys and places."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in inner for place in [(value, key), *_places(each)]]


def _with_other_value(draw: Any, value: Any) -> Any:
    """Return JSON in which one value is another one, missing, or under an unknown name."""
    holder, key = draw(st.sampled_from([(None, None), *_places(value)]))
    how = draw(st.integers(0, 5))
    if holder is None:
        return draw(VALUES)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder["unknown"] = holder.pop(key)
    else:
        holder[key] = draw(VALUES)
    return value


def _json(draw: Any, content: bytes) -> bytes | None:
    """Return JSON, or safetensors with a header, in which one value is another; None if the content is neither."""
    is_safetensors = content[HEADER : HEADER + 1] == b"{"
    start, stop = (HEADER, HEADER + int.from_bytes(content[:HEADER], "little")) if is_safetensors else (0, None)
    try:
        changed = json.dumps(_with_other_value(draw, json.loads(content[start:stop]))).encode()
    except (ValueError, RecursionError):
        return None
    return len(changed).to_bytes(HEADER, "little") + changed + content[stop:] if is_safetensors else changed


def _edited(draw: Any, content: bytes) -> bytes:
    """Return the bytes after one edit: a cut, a flipped bit, a copy or removal of a part, or another piece."""
    begin = draw(st.integers(0, len(content)))
    how = draw(st.integers(0, 4))
    if how == 0:
        return content[:begin]
    if how == 1 and begin < len(content):
        return content[:begin] + bytes([content[begin] ^ (1 << draw(st.integers(0, 7)))]) + content[begin + 1 :]
    end = begin + draw(st.integers(0, 64))
    if how == 2:
        return content[:begin] + content[begin:end] * draw(st.sampled_from([0, 2, 50])) + content[end:]
    piece = draw(st.sampled_from(PIECES) | st.binary(max_size=8))
    return content[:begin] + piece + content[begin if how == 3 else end :]


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """Return ``content`` after one or two edits."""
    for _ in range(draw(st.integers(1, 2))):
        changed = _json(draw, content) if draw(st.booleans()) else None
        content = _edited(draw, content) if changed is None else changed
    return content


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
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
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


def main(minutes: float, kinds: list[str]) -> int:
    """Print a line for each kind and return the number of kinds with a failure."""
    failed = 0
    for kind in kinds:
        end, used, accepted = time.monotonic() + 60 * minutes / len(kinds), 0, 0
        with tempfile.TemporaryDirectory() as good:
            TARGETS[kind].make(Path(good))
            try:
                while time.monotonic() < end:
                    more, sound = fuzz(TARGETS[kind], Path(good), 100, number=time.time_ns())
                    used, accepted = used + more, accepted + sound
                print(f"{kind}: {used:,} inputs, {accepted:,} accepted, {used - accepted:,} refused", flush=True)
            except Exception:
                failed += 1
                print(f"{kind}: FAILED", flush=True)
                traceback.print_exc()
    return failed


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:] or list(TARGETS)) > 0)
