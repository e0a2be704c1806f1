"""Read a file's bytes, members of an archive, or text: unpacked up to a maximum size, or refused with a reason."""

import re
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from ctx_embed.errors import InputError
from ctx_embed.reading.encodings import REPAIR, SAMPLE_BYTES, UTF_8, is_binary, marked, settled, warn_of_wrong_bytes
from ctx_embed.reading.opening import BROKEN_GZIP, opened, said, suffix_of, unpacked

# Maximum characters of a document: people do not read longer texts, and each step would need much memory for them.
MOST_CHARACTERS = 64_000_000
# Maximum bytes of an unpacked file.
MOST_BYTES = 256 << 20
# Maximum seconds and megabytes for reading a file.
SECONDS, MEGABYTES = 60.0, 2048
_BLOCK_BYTES = 1 << 20
# Suffixes of pictures, sound, films, fonts and programs, of which nobody expects text: reports only count them.
_NO_TEXT = re.compile(
    r"\.(png|jpe?g|gif|webp|bmp|tiff?|ico|heic|avif|psd|mp3|wav|flac|ogg|m4a|aac|mp4|m4v|mov|avi|mkv|webm|ttf|otf|woff2?"
    r"|eot|exe|dll|so|dylib|o|a|lib|pyc|class|jar|wasm)"
)
_NULS = re.compile("\0+")
# Encrypted office documents are not zip archives but files of an older container format, which begin with these bytes.
_ENCRYPTED = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


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
    # The structure of the text: a name in :data:`ctx_embed.reading.blocks.KINDS`.
    kind: str = "prose"
    title: str | None = None
    # The number of the text's first line in the file; None if the text's lines are not those of the file.
    line: int | None = None
    # Whether form feeds separate numbered pages.
    pages: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    # What its id adds to that of the file: ``/`` and the path within an archive, or a colon and a message's own id.
    part: str = ""


@contextmanager
def reasons(path: str) -> Iterator[None]:
    """Turn the errors of reading a file into :class:`UnreadableFileError`, whose message leaves out the path."""
    try:
        yield
    except BROKEN_GZIP as error:
        raise UnreadableFileError(f"broken gzip ({error})") from None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise UnreadableFileError("no such file" if missing else f"cannot be read ({said(error)})") from None
    except InputError as error:
        raise UnreadableFileError(str(error).removeprefix(path).lstrip(":, ")) from None


def read_bytes(path: str) -> bytes:
    """Return the bytes of a regular file, unpacked if it is gzip, within limits on their number and on the time."""
    blocks, size, end = [], 0, time.monotonic() + SECONDS
    with reasons(path), opened(path) as file:
        stream = unpacked(file)
        while size <= MOST_BYTES and (block := stream.read(_BLOCK_BYTES)):
            blocks.append(block)
            size += len(block)
            if time.monotonic() > end:
                raise UnreadableFileError(f"takes longer than {SECONDS:g} s")
    if size > MOST_BYTES:
        raise UnreadableFileError(f"larger than {MOST_BYTES >> 20} MB")
    return b"".join(blocks)


def read_text(path: str, encoding: str | None = None) -> str:
    """Return the text of a regular file, see :func:`read_bytes`."""
    return decode(read_bytes(path), encoding, path)


def decode(raw: bytes, encoding: str | None = None, name: str | None = None) -> str:
    r"""Return bytes as text with ``\n`` as line ends; without ``encoding``, try a byte order mark, UTF-8, detection.

    A few bytes that are not UTF-8 cost one character each, and so do NUL bytes; a warning gives the file's ``name``.
    """
    given, encoding = encoding, encoding or marked(raw)
    if encoding is None and is_binary(raw):
        raise UnreadableFileError("binary", counted=name is None or bool(_NO_TEXT.fullmatch(suffix_of(name))))
    try:
        text = raw.decode(encoding or UTF_8)
    except UnicodeDecodeError as error:
        if given:
            raise UnreadableFileError(f"is not {given}; name its encoding") from None
        chosen = encoding or settled(raw[max(0, error.start - SAMPLE_BYTES) : error.start + SAMPLE_BYTES])
        text = raw.decode(chosen, REPAIR if chosen == UTF_8 else "replace")
        if chosen == UTF_8 and name is not None:
            warn_of_wrong_bytes(name, raw, error.start)
    if "\0" in text:
        if name is not None:
            warn_of_wrong_bytes(name, raw, max(0, raw.find(b"\0")))
        text = _NULS.sub(" ", text)
    text = text.removeprefix("\ufeff")
    return re.sub("\r\n?", "\n", text) if "\r" in text else text


@contextmanager
def opened_archive(path: str, name: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, neither encrypted nor too large when unpacked; ``name`` names its format in errors."""
    try:
        with opened(path) as file:
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
    """Return the bytes of a member; raise an error if it is missing."""
    try:
        # No more is read than the size that the archive states.
        return archive.read(name)
    except KeyError:
        raise UnreadableFileError(f"broken: it has no {name}") from None


def parsed(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    """Return the root of a member in XML; raise an error if it is missing."""
    try:
        return ElementTree.fromstring(member(archive, name))
    except ElementTree.ParseError as error:
        raise UnreadableFileError(f"broken: {name} is not XML ({error})") from None
