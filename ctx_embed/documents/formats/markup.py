"""reStructuredText and notebooks as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ctx_embed.documents.decoding import decode, read_bytes
from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.formats.plain import title_of

# docutils reads no other file, runs no raw code, and reports nothing: Sphinx's own directives are unknown to it.
_SETTINGS = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 5,
    "halt_level": 5,
    "syntax_highlight": "none",
    "line_length_limit": 1 << 20,
    "_disable_config": True,
}


def restructured_text(path: str) -> Iterator[Extracted]:
    """Yield the text of reStructuredText; unknown directives are shown as they are written."""
    from docutils.core import publish_doctree
    from docutils.nodes import title

    document = publish_doctree(decode(read_bytes(path)), settings_overrides=_SETTINGS)
    heading = next(iter(document.findall(title)), None)
    text = "\n\n".join(_markdown(document, 0))
    yield Extracted(text, "markdown", title=None if heading is None else heading.astext())


def _markdown(node: Any, depth: int) -> Iterator[str]:
    from docutils import nodes

    for child in node.children:
        if isinstance(child, nodes.title | nodes.subtitle):
            yield f"{'#' * max(1, min(depth, 6))} {' '.join(child.astext().split())}"
        elif isinstance(child, nodes.section):
            yield from _markdown(child, depth + 1 if depth else 2)
        elif isinstance(child, nodes.literal_block | nodes.doctest_block):
            yield f"```\n{child.astext()}\n```"
        elif isinstance(child, nodes.row):
            yield f"| {' | '.join(' '.join(entry.astext().split()) for entry in child.children)} |"
        elif isinstance(child, nodes.system_message):
            # Holds the source of a directive that is unknown.
            yield from (block.astext() for block in child.findall(nodes.literal_block))
        elif isinstance(child, nodes.comment | nodes.substitution_definition | nodes.target):
            continue
        elif isinstance(child, nodes.TextElement):
            if text := " ".join(child.astext().split()):
                yield text
        else:
            yield from _markdown(child, depth)


def notebook(path: str) -> Iterator[Extracted]:
    """Yield the cells of a notebook: text as it is, code in fences, outputs left out."""
    try:
        content = json.loads(decode(read_bytes(path)))
        cells = (
            content["cells"] if "cells" in content else [c for sheet in content["worksheets"] for c in sheet["cells"]]
        )
        language = str(content.get("metadata", {}).get("kernelspec", {}).get("language", ""))
        texts = [_cell(cell, language) for cell in cells]
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"not a notebook ({error})") from None
    except (KeyError, TypeError, AttributeError):
        raise UnreadableFileError("not a notebook") from None
    text = "\n\n".join(filter(None, texts))
    yield Extracted(text, "markdown", title=title_of(text))


def _cell(cell: dict[str, Any], language: str) -> str:
    source = cell.get("source", cell.get("input", ""))
    text = ("".join(source) if isinstance(source, list) else str(source)).strip()
    return f"```{language}\n{text}\n```" if text and cell["cell_type"] == "code" else text
