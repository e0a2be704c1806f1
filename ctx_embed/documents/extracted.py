"""Results of reading a file: its text with a title and metadata, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Maximum characters of a document: people do not read longer texts, and each step would need much memory for them.
MOST_CHARACTERS = 64_000_000
# Maximum bytes of an unpacked file.
MOST_BYTES = 256 << 20
# Maximum seconds and megabytes for reading a file.
SECONDS, MEGABYTES = 60.0, 2048


class UnreadableFileError(Exception):
    """A file has no text that can be read. The message is the reason, in a few words that follow the file's name.

    Reports only count files that are ``counted`` instead of naming each: binary and empty files are no mistakes.
    """

    def __init__(self, reason: str, *, counted: bool = False) -> None:
        super().__init__(reason)
        self.counted = counted


@dataclass(frozen=True)
class Extracted:
    """The text of a file, its title if it has one, and further fields."""

    text: str
    # Its structure, a name in :data:`ctx_embed.documents.blocks.KINDS`.
    kind: str = "prose"
    title: str | None = None
    # The number of the text's first line in the file; None if the text's lines are not those of the file.
    line: int | None = None
    # Whether form feeds separate numbered pages.
    pages: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
