"""Files of explanations: a page (.html) or a picture (.png)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.files import replaced_file, require_file

if TYPE_CHECKING:
    from ctx_embed.explanations.explanation import Explanation


# Imported when called, so that a wrong file name is reported at once.
def _html(explanations: Sequence[Explanation], model: str | None) -> bytes:
    from ctx_embed.explanations.page import html

    return html(explanations, model)


def _png(explanations: Sequence[Explanation], model: str | None) -> bytes:
    from ctx_embed.explanations.plot import png

    return png(explanations, model)


FORMATS: dict[str, Callable[[Sequence[Explanation], str | None], bytes]] = {".html": _html, ".png": _png}


def require_format(path: Path) -> None:
    """Refuse a file that cannot be written or has an unknown ending.

    Raises:
        InputError: naming the problem.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: {unknown_name('format', path.suffix, FORMATS)}")
    require_file(path)


def write(explanations: Sequence[Explanation], path: str | Path, model: str | None = None) -> None:
    """Write explanations into one file, atomically.

    Args:
        explanations: at least one.
        path: the file: .html (self-contained) or .png (extra ``plots``).
        model: the name to show for the model.

    Raises:
        InputError: there are no explanations, or the file has an unknown ending or cannot be written.
    """
    path = Path(path)
    require_format(path)
    if not explanations:
        raise InputError("explanations must not be empty, got none; give at least one")
    content = FORMATS[path.suffix.lower()](explanations, model)
    with replaced_file(path) as beside:
        beside.write_bytes(content)
