"""The differences between the files of a folder and the files that an index has recorded of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from ctx_embed.documents.walking import File, Skipped, modified_of
from ctx_embed.index.following.records import RecordedFile
from ctx_embed.index.following.report import Synced
from ctx_embed.progress import Meter


class Change(NamedTuple):
    """A difference: a file to read (sets ``file``), to remove (only ``record``), or to mark as touched (``digest``)."""

    file: File | None
    record: RecordedFile | None
    digest: bytes | None = None


def changes(
    found: Iterator[File | Skipped], recorded: Iterator[RecordedFile], result: Synced, meter: Meter
) -> Iterator[Change]:
    """Yield the differences between a folder and its records in one pass, in bounded memory.

    Args:
        found: the files of the folder, sorted by source.
        recorded: the recorded files, sorted by source.
        result: counts the files that need no change, and those that are left out.
        meter: counts the files.
    """
    record = next(recorded, None)
    for entry in found:
        source = entry.source
        unlisted = isinstance(entry, Skipped) and entry.unreadable
        # A folder that cannot be listed may still have its files.
        while record is not None and record.source < (f"{source}/" if unlisted else source):
            yield Change(None, record)
            record = next(recorded, None)
        if isinstance(entry, Skipped):
            result.leave_out(source, entry.reason, named=entry.failed)
            while unlisted and record is not None and record.source.startswith(f"{source}/"):
                _unchanged(record, result)
                record = next(recorded, None)
            continue
        meter.update()
        same = None
        if record is not None and record.source == source:
            same, record = record, next(recorded, None)
        change = _change(entry, same)
        if change is None or change.digest is not None:
            assert same is not None
            _unchanged(same, result)
        if change is not None:
            yield change
    while record is not None:
        yield Change(None, record)
        record = next(recorded, None)


def _change(file: File, record: RecordedFile | None) -> Change | None:
    """Return the change that a file needs, or None if the index has its present contents."""
    if record is None:
        return Change(file, None)
    if (record.size, record.modified) == (file.size, file.modified):
        return None
    if record.size == file.size and record.hash:
        try:
            digest = content_hash(file)
        except OSError:
            return Change(file, record)
        return Change(file, record, digest if digest == record.hash else None)
    return Change(file, record)


def _unchanged(record: RecordedFile, result: Synced) -> None:
    if record.problem is None:
        result.unchanged += 1
    else:
        result.leave_out(record.source, record.problem, named=not record.counted)


def has_changed(file: File) -> bool:
    """Return whether a file has changed since it was listed."""
    try:
        found = os.stat(file.path)
    except OSError:
        return True
    return (found.st_size, modified_of(found)) != (file.size, file.modified)


def content_hash(file: File) -> bytes:
    """Return a BLAKE2 hash (16 bytes) of a file, of as many bytes as it had when it was listed.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    left = file.size
    with open(file.path, "rb") as content:
        while left and (part := content.read(min(left, 1 << 20))):
            digest.update(part)
            left -= len(part)
    return digest.digest()
