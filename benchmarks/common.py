"""What the benchmarks share: data, alternating timings, medians, and their JSON and Markdown."""

import gzip
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

COLLECTIONS = ("cranfield", "cisi", "cacm", "npl")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
FOLDER = click.Path(path_type=Path)
data_option = click.option("--data", required=True, type=FOLDER, envvar="CTX_EMBED_DATA")
work_option = click.option("--work", required=True, type=FOLDER, help="A folder for what is made; some of it is kept.")
json_option = click.option("--json", "json_path", type=click.Path(path_type=Path))


def alternate(
    tasks: Mapping[str, Callable[[], Any]],
    runs: int = 5,
    warmups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each counted run by task, timed in turn, so that changes of speed meet all."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for run in tqdm(range(warmups + runs), desc="runs", file=sys.stderr):
        for name, task in tasks.items():
            start = clock()
            task()
            if run >= warmups:
                seconds[name].append(clock() - start)
    return seconds


def environment() -> dict[str, Any]:
    """Return the versions and the number of threads, which every result records."""
    packages = ("ctx-embed", "numpy", "torch", "sentence-transformers", "tokenizers")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))),
        **{name: version(name) for name in packages},
    }


@cache
def processor() -> str:
    """Return the processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@cache
def commit() -> str | None:
    """Return the commit of this source, with a plus if files differ from it; None outside a clone."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def rounded(value: float) -> str:
    """Return three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def stored(path: Path) -> list[dict[str, Any]]:
    """Return the stored rows; none if there is no such file."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def store(path: Path, kept: list[dict[str, Any]], measured: list[dict[str, Any]]) -> None:
    """Write the rows to keep and the measured ones, with where and with what these were measured; a line for each."""
    at = {"commit": commit(), "processor": processor(), **environment()}
    at.pop("threads")  # a row has its own, if they matter
    lines = [json.dumps(row, ensure_ascii=False) for row in [*kept, *({**row, **at} for row in measured)]]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table whose columns are the keys of the rows."""

    def cell(value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"

    names = list(rows[0])
    return table(names, [[cell(row[name]) for name in names] for row in rows], "---")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], ruler: str = "---|--:") -> str:
    """Return a table; columns beyond those of the ruler are as its last one."""
    names, marks = list(heads), ruler.split("|")
    marks += marks[-1:] * (len(names) - len(marks))
    head = f"| {' | '.join(names)} |".replace("|  |", "| |")
    return "\n".join([head, f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in rows)])


def report(rows: list[dict[str, Any]], json_path: Path | None, **details: Any) -> None:
    """Print the table and write all measurements as JSON."""
    print(markdown(rows))
    if json_path is not None:
        content = {"environment": environment(), "rows": rows, **details}
        json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file, plain or gzip, without their ends."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]


def corpus_sentences(data: Path, count: int) -> list[str]:
    """Return ``count`` sentences, sampled evenly from all files of the corpus, in random order."""
    lines = [line for path in sorted((data / "corpus").glob("*.gz")) for line in lines_of(path)]
    return random.Random(0).sample(lines, count)


def with_threads(count: int, *command: Any) -> str:
    """Run a Python script in a process with a number of threads, and return what it prints."""
    limits = {**dict.fromkeys(THREADS, str(count)), "TOKENIZERS_PARALLELISM": str(count > 1).lower()}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **limits}).stdout


def collection(data: Path, name: str) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    """Return the documents, the judged queries and the judgements of a collection."""
    from ctx_embed.eval.tasks import TASKS, DataReader

    subsets = DataReader(data).read(TASKS[name]).subsets
    judged: dict[str, dict[str, int]] = {}
    for query, document, grade in subsets["qrels"]:
        judged.setdefault(query, {})[document] = int(grade)
    queries = {query: text for query, text in subsets["queries"] if query in judged}
    return dict(subsets["corpus"]), queries, judged


def ndcg(found: list[str], grades: dict[str, int]) -> float:
    """Return nDCG@10 of the documents found, best first; 0 if none is relevant."""
    from ctx_embed.eval.scoring import ranking

    gains = [float(grades.get(document, 0)) for document in found]
    return ranking.ndcg(gains, [*map(float, grades.values())]) if max(grades.values()) > 0 else 0.0


@contextmanager
def drawn(output: Path, width: float = 7.5, columns: int = 1) -> Iterator[Any]:
    """Yield the axes of a figure, and write it; the same figure gives the same file."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = output.stem
    figure, axes = pyplot.subplots(1, columns, figsize=(width, 4.2), sharey=True)
    yield axes
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    figure.tight_layout()
    figure.savefig(output, metadata={"Date": None})
