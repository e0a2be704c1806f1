"""Checksums of documents, so that a damaged text, id, metadata field or passage is an error rather than an answer.

A document's checksum covers its id, metadata, text and passages. Indexes of older versions get the table with their
next change, and checksums of all their documents when they are compacted or embedded again.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable
from typing import Any

# Older versions know no checksums. A document that they change loses its checksum rather than keep a wrong one.
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS checksums (row INTEGER PRIMARY KEY, checksum INTEGER NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS document_changed AFTER UPDATE ON documents "
    "BEGIN DELETE FROM checksums WHERE row IN (old.row, new.row); END",
    "CREATE TRIGGER IF NOT EXISTS document_deleted AFTER DELETE ON documents "
    "BEGIN DELETE FROM checksums WHERE row = old.row; END",
)
# The passages of a document as one text, and its checksum.
_SPANS = (
    "(SELECT group_concat(start || ' ' || stop) FROM passages AS p "
    "WHERE p.row >= documents.row AND p.row < documents.row + documents.passages)"
)
_CHECKSUM = "(SELECT checksum FROM checksums AS c WHERE c.row = documents.row)"
# SQL condition that selects documents without a checksum.
MISSING = "row NOT IN (SELECT row FROM checksums)"
# The columns of a document: without checksums, and with them.
COLUMNS = "documents.row, passages, id, metadata, text"
CHECKED_COLUMNS = f"{COLUMNS}, {_CHECKSUM}, {_SPANS}"


def prepare(connection: sqlite3.Connection) -> bool:
    """Return whether the index of a connection, which has the function ``checksum``, has checksums."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'checksums'").fetchone() is not None


def checksum(passages: Any, identifier: Any, metadata: Any, text: Any, spans: Any) -> int:
    """Return the CRC-32 of a document.

    Args:
        passages: the number of its passages.
        identifier: its id.
        metadata: its metadata, as JSON.
        text: its text.
        spans: the start and the stop of each passage, as one text; None if the document is its only passage.
    """
    # Formatting accepts values of any type, which a damaged database may hold.
    return zlib.crc32(f"{(passages, identifier, spans)!r}{metadata}{text}".encode("utf-8", "surrogatepass"))


def spans_text(spans: Iterable[tuple[int, int]]) -> str:
    """Return the spans of passages as SQLite joins them."""
    return ",".join(f"{start} {stop}" for start, stop in spans)


def add(connection: sqlite3.Connection, where: str, *values: Any) -> None:
    """Store the checksums of the documents that match an SQL condition, such as :data:`MISSING`."""
    connection.execute(
        f"INSERT OR REPLACE INTO checksums SELECT row, checksum(passages, id, metadata, text, {_SPANS}) "
        f"FROM documents WHERE {where}",
        values,
    )


def damaged(connection: sqlite3.Connection) -> list[int]:
    """Return the rows of the documents whose checksum is wrong."""
    rows = connection.execute(
        f"SELECT documents.row FROM documents JOIN checksums USING (row) "
        f"WHERE checksums.checksum IS NOT checksum(passages, id, metadata, text, {_SPANS})"
    ).fetchall()
    return [row for (row,) in rows]


def missing(connection: sqlite3.Connection) -> int:
    """Return the number of documents without a checksum."""
    where = MISSING if prepare(connection) else "1"
    return int(connection.execute(f"SELECT count(*) FROM documents WHERE {where}").fetchone()[0])
