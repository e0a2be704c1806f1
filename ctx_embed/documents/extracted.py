"""What a reader returns: the text of a file and what is known of it, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Characters of one document. More is not a text that people read, and would need much memory everywhere.
MOST_CHARACTERS = 64_000_000
# Bytes read from one file, unpacked.
MOST_BYTES = 256 << 20
# What reading a single file may take.
SECONDS, MEGABYTES = 60.0, 2048


class UnreadableFileError(Exception):
    """A file has no text that can be read; the message is the reason, a few words that follow the file's name.

    Args:
        reason: what is wrong with it.
        counted: whether such files are counted rather than named: binary and empty ones are no mistakes.
    """

    def __init__(self, reason: str, *, counted: bool = False) -> None:
        super().__init__(reason)
        self.counted = counted


@dataclass(frozen=True)
class Extracted:
    """The text of a file.

    Args:
        text: the text.
        kind: its structure, a name in :data:`ctx_embed.documents.blocks.KINDS`.
        title: the title, if it has one.
        line: the number of its first line in the file; None if lines of the text are not lines of the file.
        pages: whether form feeds separate numbered pages.
        metadata: what else is known.
    """

    text: str
    kind: str = "prose"
    title: str | None = None
    line: int | None = None
    pages: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
