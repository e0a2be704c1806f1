"""Files of explanations: one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file, require_file

if TYPE_CHECKING:
    from ctx_embed.explanations.explanation import Explanation


def require_page(path: Path) -> None:
    """Refuse a file that cannot be written or does not end in .html.

    Raises:
        InputError: the file cannot be written, or has another ending.
    """
    if path.suffix.lower() != ".html":
        raise InputError(f"{path}: explanations are written as a page, got the ending {path.suffix!r}; name FILE.html")
    require_file(path)


def write(
    explanations: Sequence[Explanation], path: str | Path, model: str | None = None, *, contexts: bool = False
) -> None:
    """Write explanations into one page, atomically.

    Args:
        explanations: at least one.
        path: the file, which ends in .html; it needs no other file.
        model: the name to show for the model.
        contexts: whether to show the path of a Contextualizer's context, too.

    Raises:
        InputError: there are no explanations, or the file has another ending or cannot be written.
    """
    path = Path(path)
    require_page(path)
    if not explanations:
        raise InputError("explanations must not be empty, got none; give at least one")
    # Imported after the checks, so that a wrong file name is reported at once.
    from ctx_embed.explanations.page import html

    content = html(explanations, model, contexts=contexts)
    with replaced_file(path) as beside:
        beside.write_bytes(content)
