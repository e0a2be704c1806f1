"""Saved results of an evaluation, read without importing torch or scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError

FORMAT_VERSION = 2
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
    "curves",
    "failures",
)


def read_results(path: Path) -> dict[str, Any]:
    """Return results saved from :func:`ctx_embed.eval.reports.results.as_json`: a file or a folder's ``results.json``.

    Raises:
        InputError: the file does not exist or holds something else.
    """
    file = path / "results.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); eval run -o DIR writes such a file") from None
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error})") from None
    found = report.get("format_version") if isinstance(report, dict) else None
    if found != FORMAT_VERSION:
        raise InputError(f"{file}: the format must be {FORMAT_VERSION}, got {found}; run eval run again")
    if absent := [key for key in KEYS if key not in report]:
        raise InputError(f"{file}: must be a result of eval run, lacks {', '.join(absent)}")
    return report
