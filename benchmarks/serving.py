"""The HTTP server under load: embeddings and search over loopback, server and client on the same two cores.

    python benchmarks/serving.py --data DIR [--index INDEX] [--workers N] [--seconds 20] [--url URL] [--json FILE]

The load comes from wrk (Debian's package) or, where it is missing, from this program. INDEX is any index of the default
model; without it, an index of --documents lines of the corpus is built. Processor milliseconds per request are those of
the server's processes: a busy machine changes them less than requests per second. --url measures another server, which
has OpenAI's API or, with --txtai, that of txtai.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
from common import report

CORES = 2
# Number of different requests that a load cycles through.
REQUESTS = 512
SCRIPT = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local requests, at = {}, 0
init = function()
  for place, body in ipairs(bodies) do
    requests[place] = wrk.format("POST", nil, {["Content-Type"] = "application/json"}, body)
  end
  at = math.random(#requests)
end
request = function()
  at = at %% #requests + 1
  return requests[at]
end
"""


@dataclass(frozen=True)
class Load:
    """One kind of request, sent over a number of connections at a time."""

    name: str
    path: str
    connections: int
    texts: int
    bodies: list[str]


def lines(data: Path, count: int) -> list[str]:
    """Return the first lines of the corpus."""

    def every() -> Iterator[str]:
        for path in sorted((data / "corpus").glob("*.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                yield from (line.strip() for line in file if line.strip())

    found = list(islice(every(), count))
    if len(found) < count:
        raise SystemExit(f"{data}: the corpus has {len(found):,} lines, {count:,} are needed")
    return found


def loads(texts: list[str], index: str | None, txtai: bool) -> list[Load]:
    """Return the loads: one text a request, 64 texts a request, and searches."""

    def embedding(given: Any, **options: str) -> str:
        return json.dumps(given if txtai else {"input": given, "model": "default", **options})

    path = "/batchtransform" if txtai else "/v1/embeddings"
    batches = [texts[start : start + 64] for start in range(0, len(texts) - 63, 64)]
    single = [embedding([text] if txtai else text) for text in texts[:REQUESTS]]
    found = [
        Load("one text", path, 32, 1, single),
        Load("64 texts", path, 8, 64, [embedding(batch) for batch in batches]),
    ]
    if not txtai:
        # The openai package requests base64 by default.
        encoded = [embedding(batch, encoding_format="base64") for batch in batches]
        found.append(Load("64 texts, base64", path, 8, 64, encoded))
    if index:
        searches = [json.dumps({"query": text[:100], "k": 10}) for text in texts[-REQUESTS:]]
        found.append(Load("search", f"/v1/indexes/{index}/search", 16, 1, searches))
    return found


@contextmanager
def server(index: Path | None, workers: int) -> Iterator[tuple[str, int]]:
    """Run `ctx-embed serve` and yield its address and process."""
    command = [sys.executable, "-m", "ctx_embed", "serve", "--port", "0", "--workers", str(workers)]
    command += [str(index)] if index else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait()


def family(process: int) -> list[int]:
    """Return a process and all processes below it."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(member for child in children for member in family(int(child)))]


def processor_seconds(process: int) -> float:
    """Return the processor seconds used so far by a process and those below it."""
    ticks = 0
    for member in family(process):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """Return the memory in MB of a process and those below it."""
    pages = sum(int(Path(f"/proc/{member}/statm").read_text().split()[1]) for member in family(process))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def by_wrk(url: str, load: Load, seconds: float) -> tuple[float, list[float]]:
    """Return requests a second, and the 50th and 99th percentiles of their milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        bodies, script = Path(name) / "bodies", Path(name) / "load.lua"
        bodies.write_text("".join(f"{body}\n" for body in load.bodies))
        script.write_text(SCRIPT % bodies)
        command = ["wrk", "-t", "1", "-c", str(load.connections), "-d", f"{seconds:g}s", "--latency", "--timeout", "60"]
        done = subprocess.run(
            [*command, "-s", str(script), url + load.path], capture_output=True, text=True, check=True
        )
    if "Non-2xx" in done.stdout:
        raise SystemExit(f"{load.name}: {done.stdout}")
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    quantiles = {
        share: float(value) * units[unit]
        for share, value, unit in re.findall(r"^\s+(\d+)%\s+([\d.]+)(us|ms|s)\s*$", done.stdout, re.M)
    }
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    assert rate is not None
    return float(rate[1]), [quantiles["50"], quantiles["99"]]


def by_hand(url: str, load: Load, seconds: float) -> tuple[float, list[float]]:
    """Return the same as :func:`by_wrk`, measured by this process."""
    host, _, port = url.removeprefix("http://").partition(":")
    head = f"POST {load.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "
    requests = cycle([f"{head}{len(body.encode())}\r\n\r\n{body}".encode() for body in load.bodies])
    took: list[float] = []

    async def ask(end: float) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while (begin := time.perf_counter()) < end:
            writer.write(next(requests))
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = re.search(rb"content-length: (\d+)", answer, re.I)
            assert length is not None
            await reader.readexactly(int(length[1]))
            took.append(1000 * (time.perf_counter() - begin))
        writer.close()

    async def all_connections() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(ask(end) for _ in range(load.connections)))

    begin = time.perf_counter()
    asyncio.run(all_connections())
    spent = time.perf_counter() - begin
    quantiles = statistics.quantiles(took, n=100)
    return len(took) / spent, [quantiles[49], quantiles[98]]


def by(url: str, load: Load, seconds: float) -> tuple[float, list[float]]:
    """Return the result of :func:`by_wrk` if wrk is installed, else of :func:`by_hand`."""
    return (by_wrk if shutil.which("wrk") else by_hand)(url, load, seconds)


def measured(url: str, load: Load, seconds: float, process: int | None) -> dict[str, Any]:
    """Return rates and latencies of a load after a warm-up, and the server's cost of a request."""
    by(url, load, min(3.0, seconds))
    before = processor_seconds(process) if process else 0.0
    rate, (median, late) = by(url, load, seconds)
    row = {"load": load.name, "connections": load.connections, "requests/s": rate, "texts/s": rate * load.texts}
    row |= {"p50 ms": median, "p99 ms": late}
    if process:
        row["processor ms a request"] = 1000 * (processor_seconds(process) - before) / (rate * seconds)
    return row


def built_index(folder: Path, data: Path, documents: int) -> Path:
    """Return an index of the first lines of the corpus."""
    (folder / "texts.txt").write_text("".join(f"{line}\n" for line in lines(data, documents)), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "ctx_embed",
        "index",
        "build",
        str(folder / "texts.txt"),
        str(folder / "corpus.index"),
    ]
    subprocess.run(command, check=True)
    return folder / "corpus.index"


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", required=True, type=click.Path(path_type=Path))
@click.option("--index", type=click.Path(path_type=Path, exists=True))
@click.option("--documents", default=100_000, show_default=True, help="Of the index that is built.")
@click.option("--workers", default=1, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of each load.")
@click.option("--soak", default=0, help="Minutes under all loads in turn, with the memory after each.")
@click.option("--url", help="Measure this server instead.")
@click.option("--txtai", is_flag=True, help="The server of --url is txtai's.")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(
    data: Path,
    index: Path | None,
    documents: int,
    workers: int,
    seconds: float,
    soak: int,
    url: str | None,
    txtai: bool,
    json_path: Path | None,
) -> None:
    texts = lines(data, max(REQUESTS * 64, 20_000))
    with tempfile.TemporaryDirectory() as name:
        if url:
            rows = [measured(url, load, seconds, None) for load in loads(texts, None, txtai)]
            report(rows, json_path)
            return
        index = index or built_index(Path(name), data, documents)
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        with server(index, workers) as (address, process):
            kinds = loads(texts, index.name, False)
            rows = [measured(address, load, seconds, process) for load in kinds]
            details: dict[str, Any] = {"workers": workers, "MB after the loads": memory(process)}
            if soak:
                for minute in range(1, soak + 1):
                    for load in kinds:
                        by(address, load, 60 / len(kinds))
                    details[f"MB after {minute} minutes of all loads"] = memory(process)
        report(rows, json_path, **details)
        print(details)


if __name__ == "__main__":
    main()
