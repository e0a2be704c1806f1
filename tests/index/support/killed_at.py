"""Kill a process in the middle of an operation, before chosen lines of our code."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import ctx_embed

OURS = str(Path(ctx_embed.__file__).parent)


def kills(base: Path, work: Path, stride: int, prepared: Callable[[Path], Callable[[], Any]]) -> Iterator[Path]:
    """Kill operations on copies of a folder, before every ``stride``-th of our lines; yield each copy.

    The last one is that of an operation that ended. ``prepared`` returns the operation on a folder.
    """
    for line in count(1, stride):
        folder = work / f"killed-at-{line}"
        shutil.copytree(base, folder)
        child = os.fork()
        if child == 0:
            _run_and_die(prepared(folder), line)
        _, status = os.waitpid(child, 0)
        yield folder
        shutil.rmtree(folder)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return


def _run_and_die(operation: Callable[[], Any], line: int) -> None:
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
