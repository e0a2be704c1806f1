"""The log of a training, a JSON object per line, which a resumed run continues; and its plot."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError, missing_extra
from ctx_embed.files import replaced_file
from ctx_embed.rows import read_lines

# Mark the points on a line if there are at most this many.
FEW_POINTS = 20


class TrainingLog:
    """Appends entries, each with its ``step``, to a file of JSON lines.

    Args:
        path: file to append to; the first entry makes its folder. None keeps no log.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def resume(self, step: int) -> None:
        """Remove the entries after ``step``, from which the run resumes, and those that were not written whole."""
        if self.path is None or not self.path.exists():
            return
        *lines, _cut_off = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        kept = []
        for line in lines:
            with suppress(ValueError, LookupError, TypeError):
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        with replaced_file(self.path) as beside:
            beside.write_text("".join(kept), encoding="utf-8")

    def add(self, step: int, **figures: Any) -> None:
        """Append an entry."""
        if self.path is not None:
            self.path.parent.mkdir(exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **figures}) + "\n")


def require_matplotlib() -> None:
    """Raise an error if matplotlib is missing.

    Raises:
        InputError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise missing_extra("a plot", "plots")


def plot_log(log: Path, output: Path) -> None:
    """Plot a log: the loss by step, and each metric measured after an epoch in a panel of its own.

    Args:
        log: a file written by :class:`TrainingLog`.
        output: an image; its suffix, such as ``.png``, is its format.

    Raises:
        InputError: not such a log, or matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    try:
        entries: list[dict[str, Any]] = [json.loads(line) for _, line in read_lines(log)]
        steps = [entry["step"] for entry in entries]
    except (ValueError, KeyError, TypeError):
        raise InputError(f'{log}: not the log of a training, lines of JSON with a "step"') from None
    measured = [entry for entry in entries if "epoch" in entry]
    panels = [
        *["loss"] * any("loss" in entry for entry in entries),
        *sorted({name for entry in measured for name in entry} - {"step", "epoch"}),
    ]
    figure = Figure(figsize=(8, 2.2 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axis, name in zip(axes[:, 0], panels, strict=True):
        points = [(step, entry[name]) for step, entry in zip(steps, entries, strict=True) if name in entry]
        axis.plot(*zip(*points, strict=True), marker="" if len(points) > FEW_POINTS else "o")
        axis.set_ylabel(name.replace("_", " "))
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel("step")
    figure.tight_layout()
    with replaced_file(output) as beside:
        figure.savefig(beside, format=output.suffix.removeprefix(".") or "png", dpi=120)
