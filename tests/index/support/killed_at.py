"""Die in the middle of an operation: the process is killed before a chosen line of our code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import ctx_embed

OURS = str(Path(ctx_embed.__file__).parent)


def run_and_die(operation: Callable[[], Any], line: int) -> NoReturn:
    """Run an operation and be killed at the ``line``-th line of ours that it reaches; exit code 0 if never."""
    lines = set()

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    operation()
    os._exit(0)
