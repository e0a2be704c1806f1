"""What an encoder costs: texts a second, parameters, peak memory; measured in a process of its own where it has a name.

``python -m ctx_embed.eval.cost NAME`` reads a JSON array of texts from standard input and prints the cost as JSON.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ctx_embed.errors import InputError
from ctx_embed.eval.encoders.registry import Encoder, load_encoder
from ctx_embed.eval.tasks.data import TaskData
from ctx_embed.texts import length_batches, well_formed

SAMPLE_TEXTS = 4096
MOST_SECONDS = 10.0


@dataclass(frozen=True)
class Cost:
    """The cost of an encoder.

    Attributes:
        texts_per_second: over a sample of the tasks' texts, in batches of like length; never from a cache.
        texts: how many were encoded in that time.
        parameters: how many numbers it has learned; None where that is unknown.
        peak_megabytes: the most memory that a process held with nothing but the encoder in it; None where unknown.
    """

    texts_per_second: float
    texts: int
    parameters: int | None
    peak_megabytes: float | None


def sample_of(data: Mapping[str, TaskData], most: int = SAMPLE_TEXTS) -> list[str]:
    """Texts drawn evenly from all tasks, the same for every encoder."""
    texts = [
        text
        for task in data.values()
        for name, rows in task.subsets.items()
        if name != "qrels"
        for row in rows
        for text in row[1:]
    ]
    step = max(1, -(-len(texts) // most))
    return [well_formed(text) for text in texts[::step]]


def measure(encoder: Encoder, texts: Sequence[str], most_seconds: float = MOST_SECONDS) -> Cost:
    """The cost of an encoder in this process: the speed after one batch that is not counted.

    Args:
        encoder: any.
        texts: at least one.
        most_seconds: stop after the batch in which so much time has passed; batches come in a mixed order of lengths.
    """
    batches = list(length_batches(texts))
    # Every seventh batch, then the next ones, so that the texts of a part of the time are like those of all of it.
    mixed = [batch for start in range(7) for batch in batches[start::7]]
    encoder.encode([texts[place] for place in mixed[0]])
    done, start = 0, time.perf_counter()
    for batch in mixed:
        encoder.encode([texts[place] for place in batch])
        done += len(batch)
        if time.perf_counter() - start > most_seconds:
            break
    return Cost(done / (time.perf_counter() - start), done, encoder.parameters, None)


def cost_of(encoder: Encoder, texts: Sequence[str]) -> Cost:
    """The cost of an encoder, in a process of its own where it can be made from its name there."""
    if not encoder.by_name:
        return measure(encoder, texts)
    command = [sys.executable, "-m", "ctx_embed.eval.cost", encoder.name]
    worker = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, encoding="utf-8")
    if worker.returncode:
        raise InputError(f"encoder {encoder.name!r}: its cost could not be measured ({worker.stderr.strip()[-200:]})")
    return Cost(**json.loads(worker.stdout.splitlines()[-1]))


def _peak_megabytes() -> float | None:
    """The peak of this process: of Linux's own account, since that of getrusage begins with the parent's."""
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) / 1024
    try:
        import resource
    except ImportError:
        return None
    # Bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _main() -> None:
    texts = json.load(sys.stdin)
    cost = asdict(measure(load_encoder(sys.argv[1]), texts))
    print(json.dumps({**cost, "peak_megabytes": _peak_megabytes()}))


if __name__ == "__main__":
    _main()
