"""Explanations into a file, in the format that its name ends in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_file, require_file

if TYPE_CHECKING:
    from ctx_embed.explanations.explanation import Explanation


# Imported when called: a name is checked before anything slow is.
def _html(explanations: Sequence[Explanation], model: str | None) -> bytes:
    from ctx_embed.explanations.page import html

    return html(explanations, model)


def _png(explanations: Sequence[Explanation], model: str | None) -> bytes:
    from ctx_embed.explanations.plot import png

    return png(explanations, model)


FORMATS: dict[str, Callable[[Sequence[Explanation], str | None], bytes]] = {".html": _html, ".png": _png}


def require_format(path: Path) -> None:
    """Refuse a file that cannot be written, or whose name ends in no known format.

    Raises:
        InputError: saying which.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: {unknown_name('format', path.suffix, FORMATS)}")
    require_file(path)


def write(explanations: Sequence[Explanation], path: str | Path, model: str | None = None) -> None:
    """Write explanations into one file, whole or not at all.

    Args:
        explanations: at least one.
        path: ending in a name of :data:`FORMATS`: .html (self-contained) or .png (extra ``plots``).
        model: the name that is shown for the model.

    Raises:
        InputError: no explanations, another ending, or a file that cannot be written.
    """
    path = Path(path)
    require_format(path)
    if not explanations:
        raise InputError("there are no explanations to write")
    content = FORMATS[path.suffix.lower()](explanations, model)
    with replaced_file(path) as beside:
        beside.write_bytes(content)
