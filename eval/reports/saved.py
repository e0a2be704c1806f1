"""The results of an evaluation that was saved, read without what measures: no torch, no scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError

FORMAT_VERSION = 2
# What the reports are made of.
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
    """Return what :func:`ctx_embed.eval.reports.results.as_json` gave, from a file or a folder's ``results.json``.

    Raises:
        InputError: no such file, or one that holds something else.
    """
    file = path / "results.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}), eval run --out DIR writes it") from None
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error})") from None
    found = report.get("format_version") if isinstance(report, dict) else None
    if found != FORMAT_VERSION:
        raise InputError(f"{file}: results of format {found}, this version reads {FORMAT_VERSION}; run eval run anew")
    if absent := [key for key in KEYS if key not in report]:
        raise InputError(f"{file}: no {', '.join(absent)} in it, this is no result of eval run")
    return report
