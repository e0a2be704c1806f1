"""Rows of spreadsheets: Excel and OpenDocument, read by python-calamine in a process with limits on time and memory.

The library is native code and the file may come from anywhere. The process is started with ``python -m
ctx_embed.reading.spreadsheets MEGABYTES``, gets the file as its input, and writes each row that is not empty as a line
of JSON: its sheet if there are several, its number over all sheets, and its cells. A line with a string is an error.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, time
from importlib.util import find_spec
from io import BufferedReader
from threading import Event, Timer
from typing import Any

from ctx_embed.errors import InputError, missing_extra

SPREADSHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
LIBRARY = "python_calamine"
# Maximum seconds and megabytes for reading a file.
SECONDS, MEGABYTES = 60.0, 2048

Row = tuple[str, int, list[Any]]


@contextmanager
def read_sheets(name: str, stream: BufferedReader) -> Iterator[Iterator[Row]]:
    """Yield the rows of a spreadsheet: sheet, number and cells, which are JSON values, None if they are empty."""
    if find_spec(LIBRARY) is None:
        raise missing_extra(f"{name}: a spreadsheet", "documents")
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(stream, file)
        file.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(MEGABYTES)],
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    late = Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = Timer(SECONDS, stop)
    timer.start()
    assert process.stdout is not None

    def rows() -> Iterator[Row]:
        line = b""
        for line in process.stdout or ():
            row = json.loads(line)
            if isinstance(row, str):
                raise InputError(f"{name}: {row}")
            if row is None:
                return
            yield row
        said = f"takes longer than {SECONDS:g} s" if late.is_set() else "ends the process that reads it"
        raise InputError(f"{name}: {said}")

    try:
        yield rows()
    finally:
        timer.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


def _value(cell: Any) -> Any:
    """Return a cell as a JSON value: whole numbers as integers, times as ISO 8601, durations as text, empty as None."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return int(cell)
    if isinstance(cell, date | time):
        return cell.isoformat()
    return cell if isinstance(cell, bool | int | float) else str(cell) or None


def main() -> None:
    """Write the rows of the spreadsheet on standard input, then null; or a reason why it cannot be read."""
    with suppress(ImportError):  # Windows cannot limit memory.
        import resource

        limit = int(sys.argv[1]) << 20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import python_calamine

    first = 0
    try:
        with python_calamine.CalamineWorkbook.from_object(sys.stdin.buffer) as workbook:
            for name in workbook.sheet_names:
                number = 0
                for number, row in enumerate(workbook.get_sheet_by_name(name).iter_rows(), 1):
                    cells = [_value(cell) for cell in row]
                    if any(cell is not None for cell in cells):
                        print(json.dumps([name * (len(workbook.sheet_names) > 1), first + number, cells]))
                first += number
        print("null")
    except python_calamine.PasswordError:
        print(json.dumps("password-protected"))
    except (python_calamine.CalamineError, OSError, MemoryError, ValueError) as error:
        print(json.dumps(f"cannot be read as a spreadsheet ({' '.join(str(error).split()):.120})"))


if __name__ == "__main__":
    main()
