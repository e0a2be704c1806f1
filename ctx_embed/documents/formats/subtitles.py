"""Subtitles: the spoken lines, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ctx_embed.documents.decoding import decode, read_bytes
from ctx_embed.documents.extracted import Extracted, UnreadableFileError

_MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
# Milliseconds of silence that separate paragraphs.
_PAUSE = 3000


def subtitles(path: str) -> Iterator[Extracted]:
    """Yield the spoken lines of subtitles; a pause of three seconds begins a paragraph."""
    from pysubs2 import SSAFile
    from pysubs2.exceptions import Pysubs2Error

    try:
        found = SSAFile.from_string(decode(read_bytes(path)))
    except (Pysubs2Error, ValueError) as error:
        raise UnreadableFileError(f"not subtitles ({error})") from None
    parts: list[str] = []
    end = 0
    for event in sorted(found.events):
        said = " ".join(_MARKUP.sub("", event.text.replace("\\N", " ").replace("\\n", " ").replace("\\h", " ")).split())
        if said and not event.is_comment:
            parts.append(("\n\n" if event.start - end > _PAUSE else "\n") + said)
            end = event.end
    yield Extracted("".join(parts).strip())
