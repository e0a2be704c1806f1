"""What the benchmarks share: alternating timings, medians, and their JSON and Markdown."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm


def alternate(
    tasks: Mapping[str, Callable[[], Any]],
    runs: int = 5,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time tasks in turn, A B A B ..., so that changes of the machine's speed affect all of them equally.

    Returns:
        The seconds of each counted run by task.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for run in tqdm(range(warmups + runs), desc="runs", file=sys.stderr):
        for name, task in tasks.items():
            start = clock()
            task()
            if run >= warmups:
                seconds[name].append(clock() - start)
    return seconds


def summary(seconds: list[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "runs": len(seconds)}


def paired_ratio(slow: list[float], quick: list[float]) -> float:
    """Return the median of slow / quick over runs that were measured in pairs, one right after the other."""
    return statistics.median(a / b for a, b in zip(slow, quick, strict=True))


def best_batch_size(encode: Callable[[int], Any], sizes: tuple[int, ...]) -> int:
    """Return the fastest batch size; each counts by the faster of two runs."""

    def quickest(size: int) -> float:
        encode(size)
        start = time.perf_counter()
        encode(size)
        return time.perf_counter() - start

    return min(sizes, key=quickest)


def environment() -> dict[str, Any]:
    """Return the versions and the number of threads, which every result records."""
    packages = ("ctx-embed", "numpy", "torch", "sentence-transformers", "tokenizers")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))),
        **{name: version(name) for name in packages},
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table whose columns are the keys of the rows."""

    def cell(value: Any) -> str:
        return (
            f"{value:,.4g}"
            if isinstance(value, float) and abs(value) < 1000
            else f"{value:,.0f}"
            if isinstance(value, float)
            else str(value)
        )

    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def report(rows: list[dict[str, Any]], json_path: Path | None, **details: Any) -> None:
    """Print the table and write all measurements as JSON."""
    print(markdown(rows))
    if json_path is not None:
        content = {"environment": environment(), "rows": rows, **details}
        json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
