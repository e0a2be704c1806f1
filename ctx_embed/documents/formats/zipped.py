"""Documents that are zip archives: open them, and read members up to a maximum size."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

from ctx_embed.documents import decoding
from ctx_embed.documents.extracted import MOST_BYTES, UnreadableFileError

# Encrypted office documents are not zip archives but files of an older container format, which begin with these bytes.
_ENCRYPTED = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@contextmanager
def opened(path: str, name: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, neither encrypted nor too large when unpacked; ``name`` names its format in errors."""
    try:
        with decoding.opened(path) as file:
            if file.peek(8)[:8] == _ENCRYPTED:
                raise UnreadableFileError("password-protected, or of an old format")
            with zipfile.ZipFile(file) as archive:
                if any(info.flag_bits & 1 for info in archive.infolist()):
                    raise UnreadableFileError("password-protected")
                if sum(info.file_size for info in archive.infolist()) > MOST_BYTES:
                    raise UnreadableFileError(f"larger than {MOST_BYTES >> 20} MB when unpacked")
                yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise UnreadableFileError(f"not {name} ({error})") from None


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a member that must be there."""
    try:
        with archive.open(name) as file:
            # The size that the archive states may be wrong, so count what is read.
            raw = file.read(MOST_BYTES + 1)
    except KeyError:
        raise UnreadableFileError(f"broken: it has no {name}") from None
    if len(raw) > MOST_BYTES:
        raise UnreadableFileError(f"larger than {MOST_BYTES >> 20} MB when unpacked")
    return raw


def parsed(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    """Return the root of a member in XML that must be there."""
    try:
        return ElementTree.fromstring(member(archive, name))
    except ElementTree.ParseError as error:
        raise UnreadableFileError(f"broken: {name} is not XML ({error})") from None
