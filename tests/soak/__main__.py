"""Read and write one index for some minutes while servers are killed: python -m tests.soak MINUTES."""

import sys
import tempfile
import traceback
from pathlib import Path

from tests.soak.soak import Soak


def main(minutes: float) -> int:
    """Print what was done, memory and open files, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder) / "soak.index", groups=300, seconds=60 * minutes, pause=5)
        failed = 0
        try:
            soak.run()
        except Exception:
            failed = 1
            traceback.print_exc()
    for name, number in sorted(soak.done.items()):
        print(f"{name}: {number:,}")
    print("medians of the first and of the last third:")
    for name, (memory, later, files, files_later) in soak.thirds().items():
        print(f"{name}: {memory:.0f} and {later:.0f} MB, {files:.0f} and {files_later:.0f} open files")
    return failed


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
