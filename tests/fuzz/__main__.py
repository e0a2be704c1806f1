"""Fuzz every kind of input for some minutes in all: python -m tests.fuzz MINUTES [KIND ...]."""

import sys
import tempfile
import traceback
from pathlib import Path

from tests.fuzz.fuzzing import fuzz_for
from tests.fuzz.targets import TARGETS


def main(minutes: float, kinds: list[str]) -> int:
    """Print a line for each kind and return the number of kinds with a failure."""
    failed = 0
    for kind in kinds:
        with tempfile.TemporaryDirectory() as scratch:
            good = Path(scratch)
            TARGETS[kind].make(good)
            try:
                used, accepted = fuzz_for(TARGETS[kind], good, 60 * minutes / len(kinds))
                print(f"{kind}: {used:,} inputs, {accepted:,} accepted, {used - accepted:,} refused", flush=True)
            except Exception:
                failed += 1
                print(f"{kind}: FAILED", flush=True)
                traceback.print_exc()
    return failed


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:] or list(TARGETS)) > 0)
