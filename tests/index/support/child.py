"""Start the other scripts of this folder as processes that a test may kill."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def environment() -> dict[str, str]:
    """Return the environment of a process that a test starts."""
    set_to_1 = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONUNBUFFERED")
    return {**os.environ, **dict.fromkeys(set_to_1, "1"), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def child(script: str, *arguments: object, **options) -> subprocess.Popen:
    """Return a started process of ``tests/index/support/SCRIPT.py`` whose output is a pipe of text."""
    command = [sys.executable, "-m", f"tests.index.support.{script}", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), **options)
