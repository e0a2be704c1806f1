"""Readable output of the commands: counts, single lines, and tables of hits."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ctx_embed.index import Hit
    from ctx_embed.index.following.records import Location

# Maximum characters to show of a hit's passage, and minimum characters per line, however narrow the terminal.
SHOWN_CHARACTERS, FEWEST_CHARACTERS = 240, 20
ID_CHARACTERS, PLACE_CHARACTERS, CELL_CHARACTERS = 40, 80, 24
INDENT = "    "
SHOWN_FIELDS = 4
CONTEXT_CHARACTERS = 600
# Metadata fields that are not shown, because the place of a hit says the same.
_SOURCE_FIELDS = ("source", "line", "page", "modified")
# Marks around the query's words in a snippet, to be replaced by colours; printed text never contains these characters.
_OPENING, _CLOSING = "\x02", "\x03"


def counted(number: int, noun: str) -> str:
    """Return ``1 document``, ``2 documents``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return a text whose line ends, escape sequences and other control characters are replaced by ``?``."""
    return "".join(character if character.isprintable() else "?" for character in text)


def one_line(text: str, length: int) -> str:
    """Return the beginning of a text without control characters."""
    # Read only the beginning: the text may be a whole book.
    words = "".join(c if c.isprintable() else " " for c in text[: 4 * length]).split()
    line = " ".join(words)
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"


def print_hits(query: str, hits: list[Hit], sources: Sequence[Location | None] = ()) -> None:
    """Print hits: scores, id, place and metadata on one line, and below it the part of the passage that fits the query.

    Hits of one document are printed together, at the rank of the best one. In a terminal the query's words are
    coloured, places link to their files, and passages are wrapped to its width. Control characters are removed.

    Args:
        query: the text of the query.
        hits: at least one.
        sources: the source of each hit, if it has one.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    together: dict[str | int, list[tuple[Hit, Location | None]]] = {}
    for hit, source in zip(hits, sources or [None] * len(hits), strict=True):
        together.setdefault(hit.id, []).append((hit, source))
    for hit, source in (pair for pairs in together.values() for pair in pairs):
        click.echo(_heading(hit, source))
        # The snippet, or the highlight: in a terminal between the dimmed text around it.
        start, stop = hit.highlight or (0, len(hit.text))
        answer, room = _marked(query, hit.text[start:stop]), SHOWN_CHARACTERS - (stop - start)
        if width is not None and hit.highlight is not None and room >= FEWEST_CHARACTERS:
            before, after = hit.text[:start], hit.text[stop:]
            if len(before) > room // 3:
                before = "… " + before[-(room // 3) :].partition(" ")[2]
            around = [one_line(before, room), one_line(after, room - len(before))]
            first, last = (click.style(text, dim=True) if text else "" for text in around)
            answer = " ".join(part for part in (first, answer, last) if part)
        for line in _wrapped(answer, width):
            click.echo(f"{INDENT}{line}")
        if hit.context not in (None, hit.text):
            for line in _wrapped(one_line(str(hit.context), CONTEXT_CHARACTERS), width):
                click.secho(f"{INDENT}{line}", dim=True)


def _heading(hit: Hit, source: Location | None) -> str:
    """Return the scores, the id, the place and the first metadata fields of a hit."""
    from ctx_embed.index.searching.hits import rounded_down

    shown = [f"{hit.score:.4f}"]
    # The score that orders the hits, if that is not the cosine.
    ordering = "fused" if hit.reranked is None else "reranked"
    if (value := getattr(hit, ordering)) is not None:
        shown.append(f"{ordering} {value:.4f}")
    if hit.relevance is not None:
        shown.append(f"relevance {rounded_down(hit.relevance):.2f}")
    # Leave out the id of a file, which is its name: the place shows it too.
    if source is None or not source.label.startswith(str(hit.id)):
        shown.append(click.style(one_line(str(hit.id), ID_CHARACTERS), bold=True))
    if source is not None:
        place = one_line(source.label, PLACE_CHARACTERS)
        if source.url is not None and sys.stdout.isatty():
            # A link in a terminal (OSC 8); terminals without links show only the text.
            place = f"\x1b]8;;{source.url}\x1b\\{place}\x1b]8;;\x1b\\"
        shown.append(place)
    own = () if source is None else _SOURCE_FIELDS
    fields = {name: value for name, value in hit.metadata.items() if isinstance(value, str | int | float)}
    named = [(name, value) for name, value in fields.items() if name not in own and value != ""][:SHOWN_FIELDS]
    for name, value in named:
        cell = value if isinstance(value, str) else json.dumps(value)
        shown.append(f"{one_line(name, CELL_CHARACTERS)}: {one_line(cell, CELL_CHARACTERS)}")
    return "  ".join(shown)


def _wrapped(text: str, width: int | None) -> list[str]:
    """Return text in lines of at most ``width`` characters, counting the indent but no escape sequences."""
    if width is None:
        return [text]
    lines, room = [""], 0
    for word in text.split():
        length = len(click.unstyle(word))
        if room < length + 1:
            lines.append("")
            room = max(width - len(INDENT), FEWEST_CHARACTERS)
        lines[-1] += f" {word}" if lines[-1] else word
        room -= length + 1
    return lines[1:]


def _marked(query: str, text: str) -> str:
    """Return the snippet of a text with the words of the query in bold; click leaves styles out of a pipe."""
    from ctx_embed.index.searching.hits import snippet

    plain = text.replace(_OPENING, " ").replace(_CLOSING, " ")
    found = snippet(query, plain, _OPENING, _CLOSING)
    marked = " ".join("".join(c if c.isprintable() or c in (_OPENING, _CLOSING) else " " for c in found).split())
    shown, room = [], SHOWN_CHARACTERS
    for number, words in enumerate(marked.replace(_CLOSING, _OPENING).split(_OPENING)):
        if len(words) > room:
            shown.append(words[: max(room - 1, 0)] + "…")
            break
        room -= len(words)
        shown.append(click.style(words, bold=True, fg="yellow") if number % 2 else words)
    return "".join(shown).rstrip()
