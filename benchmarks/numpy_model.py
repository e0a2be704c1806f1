"""The runtime without torch: start, memory, texts a second, and a query of an index, next to torch and model2vec.

    python benchmarks/runtime.py --data DIR [--index INDEX] [--json FILE]

Fresh processes are run in turn; the table has the best wall clock, and the processor seconds, which a busy machine
changes less. INDEX is any index of the default model; without it one of --documents lines of the corpus is built.
Needs the extra `peers`.
"""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
from common import alternate, paired_ratio, report, summary
from model2vec import StaticModel
from tqdm import tqdm

import ctx_embed
from ctx_embed.numpy_model import Embedder
from ctx_embed.rows import read_labelled

NUMPY = "from ctx_embed.numpy_model import Embedder; Embedder.load().encode(['a text'])"
TORCH = "import ctx_embed; ctx_embed.load().encode(['a text'])"
MODEL2VEC = "import sys; from model2vec import StaticModel; StaticModel.from_pretrained(sys.argv[1]).encode(['a text'])"
# From /proc: getrusage of a child includes its parent's memory.
PEAK = "; print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024)"


def processes(commands: dict[str, list[str]], runs: int) -> list[dict[str, Any]]:
    """Run commands in turn; return their best wall clock and processor seconds."""
    walls: dict[str, list[float]] = {name: [] for name in commands}
    busy: dict[str, list[float]] = {name: [] for name in commands}
    for _ in tqdm(range(runs + 1), desc="processes", file=sys.stderr):
        for name, command in commands.items():
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            walls[name].append(time.perf_counter() - start)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            busy[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # The first run fills the disk's cache.
    return [{"what": name, "wall s": min(walls[name][1:]), "processor s": min(busy[name][1:])} for name in commands]


def static_model(folder: Path) -> None:
    """Write the default model's single entries as a model2vec model of the same size."""
    embedder = Embedder.load()
    rows = embedder.contextualizer.table.rows(slice(0, embedder.tokenizer.get_vocab_size()))
    StaticModel(rows, embedder.tokenizer, normalize=True, max_length=None).save_pretrained(folder)


def built_index(folder: Path, data: Path, documents: int) -> Path:
    """Build an index of the first lines of the corpus."""
    source = folder / "texts.txt"
    with gzip.open(sorted((data / "corpus").glob("wikipedia*.gz"))[0], "rt", encoding="utf-8") as lines:
        source.write_text("".join(islice((line for line in lines if line.strip()), documents)), encoding="utf-8")
    subprocess.run(["ctx-embed", "index", "build", str(source), str(folder / "index")], check=True)
    return folder / "index"


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", required=True, type=click.Path(path_type=Path))
@click.option("--index", "index", type=click.Path(path_type=Path, exists=True))
@click.option("--documents", default=100_000, show_default=True, help="Of the index that is built.")
@click.option("--runs", default=5, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(data: Path, index: Path | None, documents: int, runs: int, json_path: Path | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        static_model(folder / "static")
        index = index or built_index(folder, data, documents)
        python = [sys.executable, "-c"]
        starts = {
            "first vector": [*python, NUMPY],
            "first vector, torch": [*python, TORCH],
            "first vector, model2vec": [*python, MODEL2VEC, str(folder / "static")],
            "index query": ["ctx-embed", "index", "query", str(index), "history of the roman empire", "-k", "3"],
        }
        rows = processes(starts, runs)
        for row, command in zip(rows[:3], list(starts.values())[:3], strict=True):
            command[2] += PEAK
            row["peak MB"] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows[3]["peak MB"] = "-"
        report(rows, json_path)

        _, texts = read_labelled(data / "senteval" / "MR.tsv")
        embedder, model = Embedder.load(), ctx_embed.load(device="cpu")
        static = StaticModel.from_pretrained(folder / "static")
        tasks: dict[str, Callable[[], Any]] = {
            "numpy": lambda: embedder.encode(texts),
            "torch": lambda: model.encode(texts, batch_size=2048, show_progress_bar=False),
            "model2vec": lambda: static.encode(texts),
        }
        seconds = alternate(tasks, runs)
        report(
            [
                {
                    "MR, threads": torch.get_num_threads(),
                    "contender": name,
                    "texts/s": len(texts) / summary(times)["min"],
                    "numpy's speed / its speed": paired_ratio(times, seconds["numpy"]),
                }
                for name, times in seconds.items()
            ],
            None if json_path is None else json_path.with_suffix(".speed.json"),
        )


if __name__ == "__main__":
    main()
