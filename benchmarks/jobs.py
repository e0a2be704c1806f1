"""Whole jobs compared with the alternatives that users have, measured in turn: A B A B ...

    python benchmarks/jobs.py --data DIR [--threads N]... [--runs N] [--json FILE] [JOB]...

Each job runs in a process of its own with N threads (1 and 2 unless given). With one thread, calls are timed by the
processor's clock, which other programs change less. A ratio is the median of pairs measured one after the other, with
an interval that holds the true median with 95 % probability (the whole range below 6 runs); above 1 means that the
first contender is better. Needs the extra `peers`; model2vec gets the default model's token table.
"""

import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import click
from common import alternate, lines_of, markdown, rounded, store, stored, table as markdown_table, with_threads

SENTENCES, PASSAGES, SENTENCES_OF_PASSAGE, MANY = 20_000, 3_000, 6, 100_000
# all-MiniLM-L6-v2 embeds only every twentieth text.
MINILM_SHARE = 20
PERMISSIVE = "ctx-embed permissive"
SHORT_TEXTS = 200
BOOK_BYTES = 5_000_000
MILLION, FILES, QUERIES = 1_000_000, 50_000, 200

Row = dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """The inputs of every job: data sets, an empty folder, the threads of this process, and counted runs."""

    data: Path
    work: Path
    threads: int
    runs: int

    def reviews(self) -> list[str]:
        """Return the 10,662 texts of MR."""
        from ctx_embed.reading.rows import read_labelled

        return read_labelled(self.data / "senteval" / "MR.tsv")[1]

    def sentences(
        self, count: int, *, of_one: int = 1, genres: str = "wikipedia_en", overlapping: bool = False
    ) -> list[str]:
        """Return passages of ``of_one`` consecutive sentences from all over the corpus, in random order."""
        paths = sorted((self.data / "corpus").glob(f"{genres}.*.gz"))
        lines = [line.strip() for path in paths for line in lines_of(path)]
        starts = random.Random(0).sample(range(0, len(lines) - of_one, 1 if overlapping else of_one), count)
        return [" ".join(lines[start : start + of_one]) for start in starts]

    @property
    def clock(self) -> Callable[[], float]:
        """The clock: with one thread processor time, which other programs change less; with more, wall-clock time."""
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
    """Return an interval that holds the true median with at least 95 % probability (the range, if values are few)."""
    ordered, count = sorted(values), len(values)
    dropped = 0
    while 2 * sum(comb(count, k) for k in range(dropped + 2)) <= 0.05 * 2**count:
        dropped += 1
    return ordered[dropped], ordered[count - 1 - dropped]


def rows_of(measured: dict[str, list[float]], unit: str, shown: Callable[[float], float] = float) -> list[Row]:
    """Return a row for each contender with its median cost as ``shown`` makes it. The first is compared with all."""
    ours, *_ = measured.values()
    rows = []
    for name, costs in measured.items():
        ratios = [cost / our for cost, our in zip(costs, ours, strict=True)]
        low, high = median_interval(ratios)
        row = {"contender": name, "measured": shown(statistics.median(costs)), "unit": unit}
        rows.append({**row, "ratio": statistics.median(ratios), "low": low, "high": high})
    return rows


# The peak memory of a process begins with that of the one that starts it, so a small one starts each command.
LAUNCHER = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
seconds = time.perf_counter() - start
print(json.dumps([status, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def run_once(command: list[str]) -> tuple[float, float, float]:
    """Return the wall clock, processor seconds (with its children's) and peak memory in MiB of a command."""
    done = subprocess.run(python(LAUNCHER, *command), check=True, stdout=subprocess.PIPE, text=True)
    status, seconds, processor_seconds, megabytes = json.loads(done.stdout)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed")
    return seconds, processor_seconds, megabytes


def of_processes(
    commands: dict[str, list[str]], runs: int, between: Callable[[], None] = lambda: None, warmups: int = 1
) -> list[Row]:
    """Run commands in turn; return the costs of each, see :func:`run_once`, but for warm-ups."""
    costs: dict[str, dict[str, list[float]]] = {unit: {name: [] for name in commands} for unit in ("s", "cpu s", "MiB")}
    for run in range(warmups + runs):
        for name, command in commands.items():
            between()
            found = run_once(command)
            if run >= warmups:
                for of_unit, cost in zip(costs.values(), found, strict=True):
                    of_unit[name].append(cost)
    return [row for unit, measured in costs.items() for row in rows_of(measured, unit)]


def python(script: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


def on_new_texts(
    inputs: Inputs, calls: dict[str, Callable[[list[str]], Any]], texts: list[str], size: int
) -> dict[str, list[float]]:
    """Return the seconds of each call in 1 + runs runs. Each run has ``size`` texts that are new to the process."""
    texts = random.Random(0).sample(texts, (inputs.runs + 1) * size)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(inputs.runs + 1):
        # In turn, so that a change of the machine's speed meets all contenders alike.
        for name in sorted(calls, key=list(calls).index, reverse=run % 2 == 1):
            start = inputs.clock()
            calls[name](texts[run * size : (run + 1) * size])
            seconds[name].append(inputs.clock() - start)
    return seconds


def encoding(inputs: Inputs, texts: list[str]) -> list[Row]:
    """Return how many texts per second each contender embeds in one call.

    The first pass, in which nothing is known yet, is a row of its own.
    """
    from model2vec import StaticModel

    import ctx_embed
    from ctx_embed.numpy_model import Embedder

    static = StaticModel.from_pretrained(inputs.static())
    calls: dict[str, Callable[[list[str]], Any]] = {
        "Embedder": Embedder.load().encode,
        "SentenceTransformer": ctx_embed.load(device="cpu").encode,
        "model2vec": partial(static.encode, use_multiprocessing=inputs.threads > 1),
    }
    size = len(texts) // (inputs.runs + 1)
    seconds = on_new_texts(inputs, calls, texts, size)
    first = {name: times[:1] for name, times in seconds.items()}
    later = {name: times[1:] for name, times in seconds.items()}
    return [
        *rows_of(later, "texts/s", lambda median: size / median),
        *rows_of(first, "texts/s, first pass", lambda median: size / median),
    ]


def reviews(inputs: Inputs) -> list[Row]:
    """MR: 10,662 reviews of 19 words."""
    return encoding(inputs, inputs.reviews())


def sentences(inputs: Inputs) -> list[Row]:
    """20,000 sentences of Wikipedia of 21 words."""
    return encoding(inputs, inputs.sentences(SENTENCES))


def passages(inputs: Inputs) -> list[Row]:
    """3,000 passages of six such sentences."""
    return encoding(inputs, inputs.sentences(PASSAGES, of_one=SENTENCES_OF_PASSAGE))


EMBEDDER_COLD = """
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
            "Embedder": python(EMBEDDER_COLD, source),
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

    ours = Embedder.load()
    table = ours.contextualizer.table.rows(slice(0, ours.tokenizer.get_vocab_size()))
    embedding = SentenceTransformer(modules=[StaticEmbedding(ours.tokenizer, embedding_weights=table)], device="cpu")
    encoders = {
        "Embedder": ours,
        "SentenceTransformer": ctx_embed.load(device="cpu"),
        "StaticEmbedding in SentenceTransformer": embedding,
        "model2vec": StaticModel.from_pretrained(inputs.static()),
    }

    def one_by_one(texts: list[str], encoder: Any) -> None:
        for text in texts:
            encoder.encode(text)

    calls = {name: partial(one_by_one, encoder=encoder) for name, encoder in encoders.items()}
    seconds = on_new_texts(inputs, calls, inputs.reviews(), SHORT_TEXTS)
    later = {name: times[1:] for name, times in seconds.items()}
    return rows_of(later, "µs", lambda median: 1e6 * median / SHORT_TEXTS)


def megabytes(files: Iterable[Path]) -> float:
    return sum(path.stat().st_size for path in files if path.is_file()) / 1e6


def minilm(inputs: Inputs) -> list[Row]:
    """MR; all-MiniLM-L6-v2 embeds every twentieth text, at its best batch size, in float32 and in bfloat16.

    The permissive model, of the default's shape, embeds all.
    """
    import ctx_embed_permissive

    import ctx_embed
    from ctx_embed.numpy_model import Embedder

    ours, permissive = Embedder.load(), Embedder.load("permissive")
    peer, rounded_peer = (ctx_embed.load("minilm", device="cpu") for _ in range(2))
    rounded_peer.bfloat16()

    def few(texts: list[str], model: Any) -> None:
        model.encode(texts[::MINILM_SHARE], batch_size=16, convert_to_tensor=True, show_progress_bar=False)

    calls: dict[str, Callable[[list[str]], Any]] = {
        "Embedder": ours.encode,
        "all-MiniLM-L6-v2": partial(few, model=peer),
        "all-MiniLM-L6-v2, bfloat16": partial(few, model=rounded_peer),
        PERMISSIVE: permissive.encode,
    }
    texts = inputs.reviews()
    size = len(texts) // (inputs.runs + 1)
    seconds = on_new_texts(inputs, calls, texts, size)
    counts = dict.fromkeys(calls, -(-size // MINILM_SHARE)) | {"Embedder": size, PERMISSIVE: size}
    of_a_text = {name: [time / counts[name] for time in times[1:]] for name, times in seconds.items()}
    rows = rows_of(of_a_text, "texts/s", lambda median: 1 / median)
    rows[-1]["MB"] = megabytes(Path(ctx_embed_permissive.__path__[0], "permissive").iterdir())
    return rows


FIRST_VECTOR = {
    "Embedder": "from ctx_embed.numpy_model import Embedder; Embedder.load().encode('a text')",
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
            "Embedder": python(BOOK.format("from ctx_embed.numpy_model import Embedder; Embedder.load()"), source),
            "SentenceTransformer": python(BOOK.format("import ctx_embed; ctx_embed.load()"), source),
        },
        inputs.runs,
    )


def explain(inputs: Inputs) -> list[Row]:
    """`ctx-embed explain` of one sentence."""
    command = python("from ctx_embed.cli.main import main; main()", "explain", "a dull film without one good idea")
    return of_processes({"ctx-embed explain": command}, inputs.runs)


def ctx_embed_command(*arguments: Any) -> list[str]:
    return python("from ctx_embed.cli.main import main; main()", *arguments)


# The script that a user would write instead: model2vec, FAISS, and SQLite with FTS5 and the same stemmer. FAISS gets
# lists of whole vectors, as its wiki advises, or the kind that ctx-embed takes.
PEER_BUILD = """
import sqlite3, sys
import faiss
from model2vec import StaticModel
source, model, threads, output, kind = sys.argv[1:]
texts = open(source, encoding="utf-8").read().splitlines()
vectors = StaticModel.from_pretrained(model).encode(texts, use_multiprocessing=threads != "1")
vectors = vectors.astype("float32")
faiss.normalize_L2(vectors)
index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
index.train(vectors)
index.add(vectors)
faiss.write_index(index, output + ".faiss")
database = sqlite3.connect(output + ".sqlite")
database.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, text TEXT)")
database.execute(
    "CREATE VIRTUAL TABLE words USING fts5"
    "(text, content='documents', content_rowid='id', tokenize='porter unicode61')"
)
with database:
    database.executemany("INSERT INTO documents VALUES (?, ?)", enumerate(texts))
    database.execute("INSERT INTO words (rowid, text) SELECT id, text FROM documents")
"""


def _lines(inputs: Inputs, count: int) -> Path:
    """Write ``count`` sentences, of all genres if Wikipedia has fewer, and return the file."""
    path = inputs.work / f"{count}.txt"
    genres = "wikipedia_en" if count <= MANY else "*"
    path.write_text("\n".join(inputs.sentences(count, genres=genres)), encoding="utf-8")
    return path


def index_build(inputs: Inputs) -> list[Row]:
    """`ctx-embed index build` of 100,000 sentences of Wikipedia, and a script of 25 lines for two kinds of index."""
    lines, model = _lines(inputs, MANY), inputs.static()
    kinds = {"script": "IVF1024,Flat", "script, same kind": "IVF256,PQ160x4fs"}
    peers = {
        name: python(PEER_BUILD, lines, model, inputs.threads, inputs.work / "peer", kind)
        for name, kind in kinds.items()
    }
    build = ctx_embed_command("index", "build", lines, inputs.work / "build.index", "--overwrite")

    def between() -> None:
        for path in inputs.work.glob("peer.*"):
            path.unlink()

    return of_processes({"ctx-embed": build, **peers}, inputs.runs, between)


def exact_or_lists(inputs: Inputs) -> list[Row]:
    """Build and search 12,500 to 100,000 sentences exactly and with lists, as `auto` does beyond its bound."""
    from ctx_embed.index import SearchIndex, faiss_file
    from ctx_embed.index.build import build_index

    lines = inputs.sentences(MANY)
    queries = [" ".join(text.split()[:6]) for text in lines[:: MANY // QUERIES]]
    faiss_file.EXACT_ROWS = 1000
    rows: list[Row] = []
    for count in (MANY // 8, MANY // 4, MANY // 2, MANY):
        source = inputs.work / "part.txt"
        source.write_text("\n".join(lines[:count]), encoding="utf-8")
        builds, searches = {}, {}
        for name, kind in ((f"{count:,} exact", "Flat"), (f"{count:,} lists", "auto")):
            began = time.process_time()
            build_index(source, inputs.work / "part.index", factory=kind, mode="overwrite")
            builds[name], seconds = [time.process_time() - began], []
            with SearchIndex.open(inputs.work / "part.index") as index:
                for query in queries:
                    began = time.process_time()
                    index.search(query, mode="dense")
                    seconds.append(time.process_time() - began)
            searches[name] = seconds[1:]
        rows += rows_of(builds, "cpu s") + rows_of(searches, "cpu ms", lambda median: 1000 * median)
    return rows


def index_million(inputs: Inputs) -> list[Row]:
    """`ctx-embed index build` of 1,000,000 sentences, once."""
    lines = _lines(inputs, MILLION)
    build = ctx_embed_command("index", "build", lines, inputs.work / "million.index", "--overwrite")
    return of_processes({"ctx-embed": build}, 1, warmups=0)


def index_folder(inputs: Inputs) -> list[Row]:
    """`ctx-embed index build` of a folder with 50,000 Markdown files of six sentences, once."""
    folder = inputs.work / "files"
    for number, text in enumerate(inputs.sentences(FILES, of_one=SENTENCES_OF_PASSAGE, overlapping=True)):
        path = folder / f"{number // 500}" / f"{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {text[:40]}\n\n{text}\n", encoding="utf-8")
    build = ctx_embed_command("index", "build", folder, inputs.work / "folder.index", "--overwrite")
    return of_processes({"ctx-embed": build}, 1, warmups=0)


def _index(inputs: Inputs) -> Path:
    """Build an index of 100,000 sentences with a number in their metadata, and return its folder."""
    lines, index = inputs.work / "many.jsonl", inputs.work / "many.index"
    with lines.open("w", encoding="utf-8") as file:
        for number, text in enumerate(inputs.sentences(MANY)):
            file.write(json.dumps({"text": text, "number": number}) + "\n")
    subprocess.run(ctx_embed_command("index", "build", lines, index), check=True, stdout=subprocess.DEVNULL)
    return index


def searches_100k(inputs: Inputs) -> list[Row]:
    """A search of 100,000 sentences with snippets, by mode, without and with a filter: hybrid beside dense."""
    from ctx_embed.index import SearchIndex

    queries = [" ".join(text.split()[:6]) for text in inputs.sentences(QUERIES)]
    rows: list[Row] = []
    with SearchIndex.open(_index(inputs)) as index:
        for where in (None, f"number < {MANY // 2}"):

            def search(mode: Any, where: str | None = where) -> None:
                for query in queries:
                    for hit in index.search(query, mode=mode, where=where):
                        hit.as_dict(query)

            measured = alternate(
                {mode: partial(search, mode) for mode in ("dense", "hybrid")}, inputs.runs, clock=time.process_time
            )
            named = {f"{mode}{', filtered' if where else ''}": seconds for mode, seconds in measured.items()}
            rows += rows_of(named, "cpu ms", lambda median: 1000 * median / len(queries))
        with _served(index.path) as (url, process):

            def post(mode: str) -> None:
                for query in queries:
                    body = json.dumps({"query": query, "mode": mode, "snippets": ["<b>", "</b>"]}).encode()
                    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
                    urllib.request.urlopen(request).read()

            measured = alternate(
                {f"{mode}, HTTP": partial(post, mode) for mode in ("dense", "hybrid")},
                inputs.runs,
                clock=partial(_processor_seconds, process.pid),
            )
            rows += rows_of(measured, "cpu ms", lambda median: 1000 * median / len(queries))
    return rows


@contextmanager
def _served(index: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve an index, and yield the address of its searches and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ctx_embed_command("serve", "--port", port, index), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz").read()
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1/indexes/{index.name}/search", process
    finally:
        process.terminate()
        process.wait()


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def index_query(inputs: Inputs) -> list[Row]:
    """`ctx-embed index query` of 100,000 sentences."""
    command = ctx_embed_command("index", "query", _index(inputs), "the history of the city", "-k", 5)
    return of_processes({"ctx-embed": command}, inputs.runs)


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
    "index-build": index_build,
    "exact-or-lists": exact_or_lists,
    "index-folder": index_folder,
    "index-query": index_query,
    "searches-100k": searches_100k,
    "index-million": index_million,
}
# These jobs run only if they are named: one takes many minutes, one stands in docs/lab/search.md.
LONG = ("index-million", "exact-or-lists")


def whole_jobs(rows: Sequence[Row]) -> str:
    """Return the table of docs/performance.md: a line for each contender that stands beside ctx-embed.

    Processor seconds are left out, as each of their rows stands beside one of seconds, and so is memory but for the
    first vector.
    """
    lines: dict[tuple[str, str], list[str]] = {}
    ours: Row = {}
    for row in rows:
        # The first contender of a comparison stands beside itself.
        if row["ratio"] == row["low"] == row["high"] == 1:
            ours = row
        if row["unit"] == "cpu s" or (row["unit"] == "MiB" and row["job"] != "first-vector"):
            continue
        title = f"{ours['job']}: {ours['contender']}, {ours['unit']}"
        line = lines.setdefault((title, "" if row is ours else row["contender"]), [""] * 4)
        place = 2 * ours["threads"] - 2
        if row is ours:
            line[place] = rounded(ours["measured"])
        else:
            interval = "" if row["low"] == row["high"] else f" ({row['low']:.2f} to {row['high']:.2f})"
            line[place] = f"{rounded(ours['measured'])} : {rounded(row['measured'])}"
            line[place + 1] = f"{row['ratio']:.2f}{interval}"
    compared = {title for title, contender in lines if contender}
    shown = [
        [title, contender, *cells] for (title, contender), cells in lines.items() if contender or title not in compared
    ]
    return markdown_table(["job", "beside it", "one thread", "ratio", "two threads", "ratio"], shown, "---|---|--:")


def claim(rows: Sequence[Row]) -> str:
    """Return README's sentence on speed."""
    of_minilm = [row for row in rows if row["job"] == "minilm" and row["threads"] == 2]
    ours, *peers = (row for row in of_minilm if row["contender"] != PERMISSIVE)
    peer = min(peers, key=lambda row: row["ratio"])
    passes: dict[str, list[str]] = {"": [], ", first pass": []}
    for unit, spans in passes.items():
        for threads in (1, 2):
            ratios = sorted(
                row["ratio"]
                for row in rows
                if row["job"] in ("MR", "sentences", "passages")
                and (row["unit"], row["contender"], row["threads"]) == (f"texts/s{unit}", "model2vec", threads)
            )
            spans.append(f"{ratios[0]:.2f} to {ratios[-1]:.2f}")
    (one, two), (first_one, first_two) = passes.values()
    texts, times = (float(f"{value:.2g}") for value in (ours["measured"], peer["ratio"]))
    return (
        f"about {texts:,.0f} short texts per second on two cores of an {ours['processor']}, "
        f"{times:.0f} times {peer['contender'].replace(',', ' in')}. Next to model2vec with the same token table it "
        f"embeds {one} times as many texts on one thread and {two} times as many on two. "
        f"In the first pass of a process, when all words are new, these ratios are {first_one} and {first_two}"
    )


def calls(rows: Sequence[Row]) -> str:
    """Return README's table of the two calls that embed: what each needs for the first vector, and its speed."""
    found = {(row["job"], row["unit"], row["threads"], row["contender"]): row["measured"] for row in rows}
    lines = []
    for title, job, unit, threads in (
        ("first vector of a process, s", "first-vector", "s", 1),
        ("its memory, MiB", "first-vector", "MiB", 1),
        ("short texts a second, one thread", "MR", "texts/s", 1),
        ("short texts a second, two threads", "MR", "texts/s", 2),
        ("one text, µs", "one-text", "µs", 1),
    ):
        cells = [found[job, unit, threads, contender] for contender in ("SentenceTransformer", "Embedder")]
        lines.append([title, *map(rounded, cells)])
    return markdown_table(["", "`ctx_embed.load()`", "`Embedder.load()`"], lines)


@click.command()
@click.argument("names", metavar="[JOB]...", nargs=-1, type=click.Choice(list(JOBS)))
@click.option("--data", envvar="CTX_EMBED_DATA", type=click.Path(path_type=Path))
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--runs", default=7, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Add the rows to this file.")
@click.option("--table", is_flag=True, help="Print the rows of the JSON file as a table, and measure nothing.")
@click.option("--claim", "claimed", is_flag=True, help="Print README's sentence on speed, likewise.")
@click.option("--calls", "called", is_flag=True, help="Print README's table of the two calls that embed, likewise.")
@click.option("--here", is_flag=True, help="Run one job in this process, and print its rows as JSON.")
def main(
    names: tuple[str, ...],
    data: Path | None,
    threads: tuple[int, ...],
    runs: int,
    json_path: Path | None,
    table: bool,
    claimed: bool,
    called: bool,
    here: bool,
) -> None:
    if (table or claimed or called) and json_path:
        shown = claim if claimed else calls if called else whole_jobs
        print(shown(json.loads(json_path.read_text(encoding="utf-8"))))
        return
    if data is None:
        raise click.UsageError("--data must name the folder of data sets")
    if here:
        with tempfile.TemporaryDirectory() as work:
            print(json.dumps(JOBS[names[0]](Inputs(data, Path(work), threads[0], runs))))
        return
    for name in names or [name for name in JOBS if name not in LONG]:
        found: list[Row] = []
        for count in threads:
            options = ["--here", "--data", data, "--threads", count, "--runs", runs]
            measured = json.loads(with_threads(count, __file__, name, *options))
            found += [{"job": name, "threads": count, "runs": runs, **row} for row in measured]
        print(f"{JOBS[name].__doc__}\n\n{markdown(found)}\n", flush=True)
        if json_path:
            others = [row for row in stored(json_path) if row["job"] != name or row["threads"] not in threads]
            store(json_path, others, found)


if __name__ == "__main__":
    main()
