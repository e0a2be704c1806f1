"""The files of an evaluation: results.json and results.md; importing this module needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import DamagedError, InputError
from ctx_embed.eval.reports.tables import as_markdown
from ctx_embed.files import replaced_file

if TYPE_CHECKING:
    from ctx_embed.eval.results import Evaluation

FORMAT_VERSION = 1
# The keys that reports need.
KEYS = (
    "protocol",
    "protocol_title",
    "seeds",
    "folds",
    "versions",
    "encoders",
    "tasks",
    "published_sources",
    "results",
    "failures",
)


def read_results(path: Path) -> dict[str, Any]:
    """Return results saved from :func:`ctx_embed.eval.results.as_json`: a file or a folder's ``results.json``.

    Raises:
        InputError: the file does not exist or holds something else.
    """
    file = path / "results.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); eval run -o DIR writes such a file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON ({error})") from None
    found = report.get("format_version") if isinstance(report, dict) else None
    if found != FORMAT_VERSION:
        raise InputError(f"{file}: the format must be {FORMAT_VERSION}, got {found}; run `ctx-embed eval run` again")
    if absent := [key for key in KEYS if key not in report]:
        raise InputError(f"{file}: must be a result of eval run, lacks {', '.join(absent)}")
    return report


@contextmanager
def damage_named(*names: object) -> Iterator[None]:
    """Turn errors that damaged results cause in the context into one line that names their files.

    Raises:
        DamagedError: a value is missing, or is of another type.
    """
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise DamagedError(
            f"{' or '.join(map(str, names))}: must be an unchanged result of eval run ({said:.100}); run it again"
        ) from error


def write_report(evaluation: Evaluation | dict[str, Any], folder: str | Path) -> None:
    """Write results.json and results.md into a folder.

    Args:
        evaluation: an evaluation, or its :attr:`~ctx_embed.eval.results.Evaluation.report`.
        folder: created if missing; its parent must exist.

    Raises:
        InputError: a file cannot be written.
    """
    report = evaluation if isinstance(evaluation, dict) else evaluation.report
    folder = Path(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder}: {error.strerror}") from None
    files = {
        "results.json": json.dumps(report, indent=2, ensure_ascii=False) + "\n",
        "results.md": as_markdown(report),
    }
    for name, content in files.items():
        with replaced_file(folder / name) as temporary:
            # Names may hold halves of surrogate pairs, which no file can; they become question marks.
            temporary.write_text(content, encoding="utf-8", errors="replace")
