"""An index in a process of its own, whose methods are called through pipes: child.py INDEX."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ctx_embed import SearchIndex
from ctx_embed.errors import BusyError
from ctx_embed.texts import Document
from tests.index.support.child import ENVIRONMENT


class ChildIndex:
    """The methods of an index that another process has open."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.soak.child", str(path)]
        self._lock = threading.Lock()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                with self._lock:
                    print(json.dumps([name, arguments, options]), file=self.process.stdin, flush=True)
                    line = self.process.stdout.readline()
            except (BrokenPipeError, ValueError):  # the pipe is closed
                line = ""
            if not line.endswith("\n"):
                raise ConnectionError("the process was killed")
            kind, answer = json.loads(line)
            if kind == "busy":
                raise BusyError(answer)
            return Document(**answer) if kind == "document" else [Document(**hit) for hit in answer]

        return call

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        with self._lock:
            self.process.communicate()


def answer(name: str, found: Any) -> tuple[str, Any]:
    """Return what is sent for a result of a method."""
    if name == "search":
        return "hits", [{"id": hit.id, "text": hit.text} for hit in found]
    return ("hits", []) if not isinstance(found, Document) else ("document", {"id": found.id, "text": found.text})


if __name__ == "__main__":
    with SearchIndex.open(sys.argv[1]) as index:
        for line in sys.stdin:
            name, arguments, options = json.loads(line)
            try:
                said = answer(name, getattr(index, name)(*arguments, **options))
            except BusyError as error:
                said = "busy", str(error)
            print(json.dumps(said), flush=True)
