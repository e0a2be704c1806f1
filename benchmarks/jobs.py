"""Whole jobs beside what users would take instead, measured in turn: A B A B ...

    python benchmarks/jobs.py --data DIR [--threads N]... [--runs N] [--json FILE] [JOB]...

Each job runs in a process of its own with N threads (1 and 2 unless given). With one thread, calls are timed by the
processor's clock, which other programs change less. A ratio is the median of pairs measured one after the other, with
an interval that holds the true median with 95 % probability (the whole range below 6 runs); above 1 means that the
first contender is better. Needs the extra `peers`; model2vec gets the default model's token table.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import click
from common import alternate, environment, markdown

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
SENTENCES, PASSAGES, SENTENCES_OF_PASSAGE, MANY = 20_000, 3_000, 6, 100_000
# all-MiniLM-L6-v2 reads every twentieth text.
MINILM_SHARE = 20
SHORT_TEXTS = 200
BOOK_BYTES = 5_000_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """What every job gets.

    Attributes:
        data: the folder of data sets.
        work: an empty folder.
        threads: of this process.
        runs: counted runs of each contender.
    """

    data: Path
    work: Path
    threads: int
    runs: int

    def reviews(self) -> list[str]:
        """Return the 10,662 texts of MR."""
        from ctx_embed.rows import read_labelled

        return read_labelled(self.data / "senteval" / "MR.tsv")[1]

    def sentences(self, count: int, *, of_one: int = 1) -> list[str]:
        """Return passages of ``of_one`` consecutive sentences from all over the Wikipedia corpus, in random order."""
        lines: list[str] = []
        for path in sorted((self.data / "corpus").glob("wikipedia_en.*.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                lines += [line.strip() for line in file]
        starts = random.Random(0).sample(range(0, len(lines) - of_one, of_one), count)
        return [" ".join(lines[start : start + of_one]) for start in starts]

    @property
    def clock(self) -> Callable[[], float]:
        """The processor's clock for one thread, which other programs change less; else the clock on the wall."""
        return time.process_time if self.threads == 1 else time.perf_counter

    def static(self) -> Path:
        """Write the default model's single entries as a model of model2vec, and return its folder."""
        from model2vec import StaticModel

        from ctx_embed.numpy_model import Embedder

        embedder = Embedder.load()
        rows = embedder.contextualizer.table.rows(slice(0, embedder.tokenizer.get_vocab_size()))
        StaticModel(rows, embedder.tokenizer, normalize=True, max_length=None).save_pretrained(self.work / "static")
        return self.work / "static"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics that hold the true median with at least 95 % probability; few values: their range."""
    ordered, count = sorted(values), len(values)
    dropped = 0
    while 2 * sum(comb(count, k) for k in range(dropped + 2)) <= 0.05 * 2**count:
        dropped += 1
    return ordered[dropped], ordered[count - 1 - dropped]


def rows_of(measured: dict[str, list[float]], unit: str, shown: Callable[[float], float] = float) -> list[Row]:
    """Return a row for each contender; the first one is compared with all.

    Args:
        measured: seconds, or another cost, of each run by contender.
        unit: of what is shown.
        shown: what a median cost is shown as.
    """
    ours, *_ = measured.values()
    rows = []
    for name, costs in measured.items():
        ratios = [cost / our for cost, our in zip(costs, ours, strict=True)]
        low, high = median_interval(ratios)
        rows.append(
            {
                "contender": name,
                "measured": shown(statistics.median(costs)),
                "unit": unit,
                "ratio": statistics.median(ratios),
                "low": low,
                "high": high,
            }
        )
    return rows


def of_processes(commands: dict[str, list[str]], runs: int) -> list[Row]:
    """Run commands in turn; return their wall clock, processor seconds (with their children's), and peak memory."""
    costs: dict[str, dict[str, list[float]]] = {unit: {name: [] for name in commands} for unit in ("s", "cpu s", "MB")}
    for run in range(runs + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            if status:
                raise RuntimeError(f"{' '.join(command)} failed")
            # The first run fills the disk's cache.
            if run:
                costs["s"][name].append(seconds)
                costs["cpu s"][name].append(usage.ru_utime + usage.ru_stime)
                costs["MB"][name].append(usage.ru_maxrss / 1024)
    return [row for unit, measured in costs.items() for row in rows_of(measured, unit)]


def python(script: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


def encoding(inputs: Inputs, texts: list[str]) -> list[Row]:
    """Return how many texts a second each contender embeds in one call, in processes that have embedded them before."""
    from model2vec import StaticModel

    import ctx_embed
    from ctx_embed.numpy_model import Embedder

    ours, torch_model, static = (
        Embedder.load(),
        ctx_embed.load(device="cpu"),
        StaticModel.from_pretrained(inputs.static()),
    )
    seconds = alternate(
        {
            "NumPy": lambda: ours.encode(texts),
            "SentenceTransformer": lambda: torch_model.encode(texts, batch_size=2048, show_progress_bar=False),
            "model2vec": lambda: static.encode(texts, use_multiprocessing=inputs.threads > 1),
        },
        inputs.runs,
        clock=inputs.clock,
    )
    return rows_of(seconds, "texts/s", lambda median: len(texts) / median)


def reviews(inputs: Inputs) -> list[Row]:
    """MR: 10,662 reviews of 19 words."""
    return encoding(inputs, inputs.reviews())


def sentences(inputs: Inputs) -> list[Row]:
    """20,000 sentences of Wikipedia of 21 words."""
    return encoding(inputs, inputs.sentences(SENTENCES))


def passages(inputs: Inputs) -> list[Row]:
    """3,000 passages of six such sentences."""
    return encoding(inputs, inputs.sentences(PASSAGES, of_one=SENTENCES_OF_PASSAGE))


NUMPY_COLD = """
import sys
from ctx_embed.numpy_model import Embedder
Embedder.load().encode(open(sys.argv[1], encoding="utf-8").read().split("\\n"))
"""
MODEL2VEC_COLD = """
import sys
from model2vec import StaticModel
texts = open(sys.argv[1], encoding="utf-8").read().split("\\n")
StaticModel.from_pretrained(sys.argv[2]).encode(texts, use_multiprocessing=sys.argv[3] != "1")
"""


def cold(inputs: Inputs) -> list[Row]:
    """100,000 sentences of Wikipedia, once, from the start of a process to its end."""
    source = inputs.work / "sentences.txt"
    source.write_text("\n".join(inputs.sentences(MANY)), encoding="utf-8")
    return of_processes(
        {
            "NumPy": python(NUMPY_COLD, source),
            "model2vec": python(MODEL2VEC_COLD, source, inputs.static(), inputs.threads),
        },
        inputs.runs,
    )


def one_text(inputs: Inputs) -> list[Row]:
    """One short text at a time."""
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    import ctx_embed
    from ctx_embed.numpy_model import Embedder

    texts = inputs.reviews()[:: len(inputs.reviews()) // SHORT_TEXTS]
    ours, torch_model, static = (
        Embedder.load(),
        ctx_embed.load(device="cpu"),
        StaticModel.from_pretrained(inputs.static()),
    )
    table = ours.contextualizer.table.rows(slice(0, ours.tokenizer.get_vocab_size()))
    embedding = SentenceTransformer(modules=[StaticEmbedding(ours.tokenizer, embedding_weights=table)], device="cpu")
    seconds = alternate(
        {
            "NumPy": lambda: [ours.encode(text) for text in texts],
            "SentenceTransformer": lambda: [torch_model.encode(text) for text in texts],
            "StaticEmbedding in SentenceTransformer": lambda: [embedding.encode(text) for text in texts],
            "model2vec": lambda: [static.encode(text) for text in texts],
        },
        inputs.runs,
        clock=inputs.clock,
    )
    return rows_of(seconds, "µs", lambda median: 1e6 * median / len(texts))


def minilm(inputs: Inputs) -> list[Row]:
    """Every twentieth text of MR, and all-MiniLM-L6-v2 at its best batch size."""
    import ctx_embed
    from ctx_embed.numpy_model import Embedder

    texts = inputs.reviews()[::MINILM_SHARE]
    ours, peer = Embedder.load(), ctx_embed.load("minilm", device="cpu")
    seconds = alternate(
        {
            "NumPy": lambda: ours.encode(texts),
            "all-MiniLM-L6-v2": lambda: peer.encode(texts, batch_size=16, show_progress_bar=False),
        },
        inputs.runs,
        clock=inputs.clock,
    )
    return rows_of(seconds, "texts/s", lambda median: len(texts) / median)


FIRST_VECTOR = {
    "NumPy": "from ctx_embed.numpy_model import Embedder; Embedder.load().encode('a text')",
    "SentenceTransformer": "import ctx_embed; ctx_embed.load().encode('a text')",
}
MODEL2VEC_FIRST = (
    "import sys; from model2vec import StaticModel; StaticModel.from_pretrained(sys.argv[1]).encode('a text')"
)


def first_vector(inputs: Inputs) -> list[Row]:
    """From the start of a process to its first vector."""
    commands = {name: python(script) for name, script in FIRST_VECTOR.items()}
    return of_processes({**commands, "model2vec": python(MODEL2VEC_FIRST, inputs.static())}, inputs.runs)


BOOK = "import sys; {}.encode(open(sys.argv[1], encoding='utf-8').read())"


def book(inputs: Inputs) -> list[Row]:
    """One text of 5 MB, in a fresh process."""
    source = inputs.work / "book.txt"
    source.write_text(" ".join(inputs.sentences(MANY))[:BOOK_BYTES], encoding="utf-8")
    return of_processes(
        {
            "NumPy": python(BOOK.format("from ctx_embed.numpy_model import Embedder; Embedder.load()"), source),
            "SentenceTransformer": python(BOOK.format("import ctx_embed; ctx_embed.load()"), source),
        },
        inputs.runs,
    )


def explain(inputs: Inputs) -> list[Row]:
    """`ctx-embed explain` of one sentence."""
    command = python("from ctx_embed.cli.main import main; main()", "explain", "a dull film without one good idea")
    return of_processes({"ctx-embed explain": command}, inputs.runs)


JOBS: dict[str, Callable[[Inputs], list[Row]]] = {
    "MR": reviews,
    "sentences": sentences,
    "passages": passages,
    "cold": cold,
    "one-text": one_text,
    "minilm": minilm,
    "first-vector": first_vector,
    "book": book,
    "explain": explain,
}


def processor() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def commit() -> str:
    """Return the commit of this source, with a plus if files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True).stdout.strip()


@click.command()
@click.argument("names", metavar="[JOB]...", nargs=-1, type=click.Choice(list(JOBS)))
@click.option("--data", envvar="CTX_EMBED_DATA", required=True, type=click.Path(path_type=Path))
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--runs", default=7, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Add the rows to this file.")
@click.option("--here", is_flag=True, help="Run one job in this process, and print its rows as JSON.")
def main(
    names: tuple[str, ...], data: Path, threads: tuple[int, ...], runs: int, json_path: Path | None, here: bool
) -> None:
    if here:
        with tempfile.TemporaryDirectory() as work:
            print(json.dumps(JOBS[names[0]](Inputs(data, Path(work), threads[0], runs))))
        return
    stored = json.loads(json_path.read_text()) if json_path and json_path.exists() else []
    at = {"commit": commit(), "processor": processor(), "runs": runs, **environment()}
    for name in names or JOBS:
        found: list[Row] = []
        for count in threads:
            command = [sys.executable, __file__, name, "--here", "--data", data, "--threads", count, "--runs", runs]
            limits = {**dict.fromkeys(THREADS, str(count)), "TOKENIZERS_PARALLELISM": str(count > 1).lower()}
            done = subprocess.run(
                list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **limits}
            )
            found += [{"job": name, "threads": count, **row} for row in json.loads(done.stdout)]
        print(f"{JOBS[name].__doc__}\n\n{markdown(found)}\n", flush=True)
        stored = [row for row in stored if row["job"] != name or row["threads"] not in threads] + [
            {**row, **at} for row in found
        ]
        if json_path:
            json_path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
