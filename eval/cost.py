"""The cost of an encoder: texts per second, parameters and peak memory, measured in its own process if it has a name.

``python -m ctx_embed.eval.cost NAME`` reads a JSON array of texts from standard input and prints the cost as JSON.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import Encoder, load_encoder
from ctx_embed.eval.tasks import TaskData
from ctx_embed.texts import length_batches, well_formed

SAMPLE_TEXTS = 4096
MAX_SECONDS = 10.0


@dataclass(frozen=True)
class Cost:
    """The cost of an encoder: its speed on a number of texts, its learned parameters, and its peak memory.

    The texts are a sample from all tasks, in batches of similar length; each is embedded, not read from a cache. The
    parameters are None if unknown; so is the memory if the process runs more than the encoder.
    """

    texts_per_second: float
    texts: int
    parameters: int | None
    peak_megabytes: float | None


def sample_of(data: Mapping[str, TaskData], limit: int = SAMPLE_TEXTS) -> list[str]:
    """Return at most ``limit`` texts, spread evenly over all tasks, the same for every encoder."""
    texts = [
        text
        for task in data.values()
        for name, rows in task.subsets.items()
        if name != "qrels"
        for row in rows
        for text in row[1:]
    ]
    step = max(1, -(-len(texts) // limit))
    return [well_formed(text) for text in texts[::step]]


def measure(encoder: Encoder, texts: Sequence[str], max_seconds: float = MAX_SECONDS) -> Cost:
    """Measure the cost of an encoder in this process, after one warm-up batch that is not counted.

    It stops at the first batch that ends after ``max_seconds``; short and long batches take turns.
    """
    batches = list(length_batches(texts))
    # Batches 0, 7, 14, ..., then 1, 8, 15, ..., so that a run cut short has seen texts of all lengths.
    mixed = [batch for start in range(7) for batch in batches[start::7]]
    encoder.encode([texts[place] for place in mixed[0]])
    done, start = 0, time.perf_counter()
    for batch in mixed:
        encoder.encode([texts[place] for place in batch])
        done += len(batch)
        if time.perf_counter() - start > max_seconds:
            break
    return Cost(done / (time.perf_counter() - start), done, encoder.model.parameters, None)


def cost_of(encoder: Encoder, texts: Sequence[str]) -> Cost:
    """Return the cost of an encoder, measured in a separate process if its name is enough to load it there."""
    if not encoder.by_name:
        return measure(encoder, texts)
    command = [sys.executable, "-m", "ctx_embed.eval.cost", encoder.name]
    worker = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, encoding="utf-8")
    if worker.returncode:
        raise InputError(f"encoder {encoder.name!r}: the cost could not be measured ({worker.stderr.strip()[-200:]})")
    return Cost(**json.loads(worker.stdout.splitlines()[-1]))


if __name__ == "__main__":
    measured = asdict(measure(load_encoder(sys.argv[1]), json.load(sys.stdin)))
    status = Path("/proc/self/status")
    # On Linux, getrusage would start from the parent's peak.
    if status.is_file() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        measured["peak_megabytes"] = int(found[1]) * 1024 / 1e6
    else:
        with suppress(ImportError):
            import resource

            # macOS, which has no /proc, reports bytes.
            measured["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps(measured))
