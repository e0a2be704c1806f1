"""The files of an evaluation: results.json, results.md and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError
from ctx_embed.eval.evaluation import Evaluation
from ctx_embed.eval.reports.markdown import as_markdown
from ctx_embed.eval.reports.plots import plots
from ctx_embed.files import replaced_file


def write_report(
    evaluation: Evaluation | dict[str, Any], folder: str | Path, tell: Callable[[str], None] = lambda line: None
) -> None:
    """Write results.json, results.md and, with the extra ``plots``, the plots into a folder.

    Args:
        evaluation: or its :attr:`~ctx_embed.eval.evaluation.Evaluation.report`.
        folder: created if missing; its parent must exist.
        tell: called with a line if plots cannot be drawn.

    Raises:
        InputError: a file cannot be written.
    """
    report = evaluation.report if isinstance(evaluation, Evaluation) else evaluation
    folder = Path(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder}: {error.strerror}") from None
    images = drawn_plots(report, tell)
    files = {
        "results.json": json.dumps(report, indent=2, ensure_ascii=False) + "\n",
        "results.md": as_markdown(report, list(images)),
        **images,
    }
    write_files(folder, files)


def drawn_plots(report: dict[str, Any], tell: Callable[[str], None]) -> dict[str, str]:
    """Return the plots of a report as SVG by file name; without the extra ``plots`` none, and ``tell`` is called."""
    try:
        return plots(report)
    except InputError as error:
        tell(str(error))
        return {}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by file name, each file atomically."""
    for name, content in files.items():
        with replaced_file(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
