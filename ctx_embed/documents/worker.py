"""A process that reads files: for each path on its input, with the folder in which the file must lie, it writes the
texts to its output, as lines of JSON.

It is started with ``python -m ctx_embed.documents.worker MEGABYTES`` and ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from contextlib import suppress
from dataclasses import asdict

from ctx_embed.documents.extracted import UnreadableFileError
from ctx_embed.documents.formats import extract
from ctx_embed.files import PathInside
from ctx_embed.rows.encodings import WrongBytesWarning


def answer(path: str, megabytes: int) -> dict[str, object]:
    """Return the texts of a file, or the reason why there are none."""
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", WrongBytesWarning)
            texts = [asdict(extracted) for extracted in extract(path)]
        warned = [str(warning.message) for warning in raised if issubclass(warning.category, WrongBytesWarning)]
        return {"texts": texts, "warnings": warned}
    except UnreadableFileError as error:
        return {"reason": str(error), "counted": error.counted}
    except MemoryError:
        # Some of the memory that the file took is never freed, so the next file needs a new process.
        return {"reason": f"needs more than {megabytes} MB of memory", "spent": True}
    except RecursionError:
        return {"reason": "nested too deeply"}
    except Exception as error:
        # Libraries raise all kinds of errors for broken files.
        said = " ".join(str(error).split())
        return {"reason": f"cannot be read ({type(error).__name__}{': ' if said else ''}{said:.120})"}


def main() -> None:
    """Answer until the input ends."""
    megabytes = int(sys.argv[1])
    # Ctrl-C reaches all processes of a terminal; this one ends when its parent closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    # Libraries may print; their output must not mix with the answers.
    output = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1 << 16)
    os.dup2(2, 1)
    with suppress(ImportError):  # Windows cannot limit memory.
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    for line in sys.stdin:
        written = json.dumps(answer(PathInside(*json.loads(line)), megabytes), default=str)
        print(written, file=output, flush=True)


if __name__ == "__main__":
    main()
