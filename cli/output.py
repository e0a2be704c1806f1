"""Readable output of the commands: counts, single lines, and tables of hits."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ctx_embed.index import Hit
    from ctx_embed.index.following.location import Location

# The most characters of a text that the table of hits shows, and the fewest in a narrow terminal.
SHOWN_CHARACTERS, FEWEST_CHARACTERS = 160, 40
ID_CHARACTERS, CELL_CHARACTERS = 40, 24
SHOWN_FIELDS = 4
CONTEXT_CHARACTERS = 600
# The column of sources says what these metadata fields say.
_SOURCE_FIELDS = ("source", "line", "page", "modified")
# Marks around the words of the query in a snippet, later replaced by colours; printed text never contains them.
_OPENING, _CLOSING = "\x02", "\x03"


def counted(number: int, noun: str) -> str:
    """Return ``1 document``, ``2 documents``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def one_line(text: str, length: int) -> str:
    """Return the beginning of a text without control characters."""
    # Look only at the beginning: the text may be a whole book.
    words = "".join(c if c.isprintable() else " " for c in text[: 4 * length]).split()
    line = " ".join(words)
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"


def print_hits(query: str, hits: list[Hit], sources: Sequence[Location | None] = ()) -> None:
    """Print a table of hits under a header: scores, ids, sources, metadata fields, and text with the query's words.

    In a terminal these words are coloured, and sources link to their files; control characters are removed.

    Args:
        query: the text of the query.
        hits: at least one.
        sources: the source of each hit; a column shows them instead of the fields that they were made of.
    """
    scores = [name for name in ("fused", "reranked") if any(getattr(hit, name) is not None for hit in hits)]
    located = any(source is not None for source in sources)
    own = _SOURCE_FIELDS if located else ()
    shown = [{name: value for name, value in hit.metadata.items() if name not in own} for hit in hits]
    fields = list(dict.fromkeys(name for values in shown for name, value in values.items() if _is_shown(value)))
    names = [one_line(name, CELL_CHARACTERS) for name in fields]
    header = ["cosine", *scores, "id", *(["source"] if located else []), *names]
    del header[len(header) - len(fields) + SHOWN_FIELDS :]
    rows = [
        [
            f"{hit.score:.4f}",
            *(f"{getattr(hit, name) or 0:.4f}" for name in scores),
            one_line(str(hit.id), ID_CHARACTERS),
            *([one_line(source.label if source else "", ID_CHARACTERS)] if located else []),
            *(_cell(hit.metadata.get(name)) for name in fields[:SHOWN_FIELDS]),
        ]
        for hit, source in zip(hits, sources or [None] * len(hits), strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    numeric = 1 + len(scores)
    room = SHOWN_CHARACTERS
    if sys.stdout.isatty():
        left = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
        room = min(SHOWN_CHARACTERS, max(FEWEST_CHARACTERS, left))
    click.secho("  ".join([*_aligned(header, widths, numeric), "text"]), dim=True)
    for row, hit, source in zip(rows, hits, sources or [None] * len(hits), strict=True):
        cells = _aligned(row, widths, numeric)
        if source is not None and source.url is not None and sys.stdout.isatty():
            cells[numeric + 1] = _linked(cells[numeric + 1], source.url)
        click.echo("  ".join([*cells, _marked(query, hit.text, room)]))
        if hit.context not in (None, hit.text):
            click.secho(f"    {one_line(str(hit.context), CONTEXT_CHARACTERS)}", dim=True)


def _linked(text: str, url: str) -> str:
    """Return text as a terminal's link (OSC 8); terminals that know no links show the text alone."""
    return f"\x1b]8;;{url}\x1b\\{text}\x1b]8;;\x1b\\"


def _is_shown(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), CELL_CHARACTERS)


def _aligned(cells: list[str], widths: list[int], numeric: int) -> list[str]:
    """Return the cells padded to the widths of their columns, the first ``numeric`` ones aligned to the right."""
    pairs = enumerate(zip(cells, widths, strict=True))
    return [cell.rjust(width) if place < numeric else cell.ljust(width) for place, (cell, width) in pairs]


def _marked(query: str, text: str, length: int) -> str:
    """Return the snippet of a text with the words of the query in bold; click leaves styles out of a pipe."""
    from ctx_embed.index import snippet

    plain = text.replace(_OPENING, " ").replace(_CLOSING, " ")
    marked = snippet(query, plain, _OPENING, _CLOSING)
    shown, room = [], length
    for number, piece in enumerate(marked.replace(_CLOSING, _OPENING).split(_OPENING)):
        words = "".join(c if c.isprintable() else " " for c in piece)
        words = words if number else words.lstrip()
        # Runs of spaces become one space, also at the edges of a piece.
        inner = " ".join(words.split())
        words = f"{' ' * words[:1].isspace()}{inner}{' ' * (words[-1:].isspace() and bool(inner))}"
        if len(words) > room:
            shown.append(words[: max(room - 1, 0)] + "…")
            break
        room -= len(words)
        shown.append(click.style(words, bold=True, fg="yellow") if number % 2 else words)
    return "".join(shown).rstrip()
