"""Check the word lists: they must be those of the stored texts."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from ctx_embed.errors import BusyError, InputError, UnwritableError
from ctx_embed.index.storage.database import WORDS
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.text.words import indexed

# The number of passages whose word lists are made at a time.
PASSAGES_AT_ONCE = 8192
_SUMS = 'SELECT CAST(term AS BLOB), count(*), sum(doc), sum("offset"), sum(doc * "offset") FROM {} GROUP BY term'
_MODULUS = 2**64


def word_problems(store: DocumentStore) -> Iterator[str]:
    """Yield a problem if the word lists are not those of the texts; call it inside :meth:`Database.reading`."""
    words = lengths = passages = total = 0
    texts = _passages(store)
    while part := list(islice(texts, PASSAGES_AT_ONCE)):
        with closing(sqlite3.connect(":memory:")) as again:
            again.execute(WORDS)
            again.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, instance)")
            again.executemany(
                "INSERT INTO words (rowid, text) VALUES (?, ?)", ((row, indexed(text)) for row, text in part)
            )
            words += _words_digest(again, "vocabulary")
            lengths += _lengths_digest(again)
            found = _totals(again)
            passages, total = passages + found[0], total + found[1]
    with store.reporting_errors():
        connection = store.connection
        # A temporary table, which is dropped with the transaction.
        connection.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, instance)")
        differ = [
            what
            for what, is_same in (
                ("words", (words - _words_digest(connection, "temp.vocabulary")) % _MODULUS == 0),
                ("lengths", (lengths - _lengths_digest(connection)) % _MODULUS == 0),
                ("totals", (passages, total) == _totals(connection)),
            )
            if not is_same
        ]
    if differ:
        yield f"{store.path}: the word lists are not those of the texts (their {', '.join(differ)} differ)"


def lookup_problem(store: DocumentStore) -> tuple[str, str]:
    """Return a problem in FTS5's own tables (or nothing), and the reason if they could not be checked.

    SQLite can check them only inside a writing transaction.
    """
    with closing(DocumentStore(store.path)) as other:
        try:
            with other.writing(), other.reporting_errors():
                other.connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        except (BusyError, UnwritableError) as error:
            return "", f"the lookup tables of the word lists: {error}"
        except InputError as error:
            return str(error), ""
    return "", ""


def _passages(store: DocumentStore) -> Iterator[tuple[int, str]]:
    for document in store.all():
        for row, (start, stop) in enumerate(document.spans, document.row):
            yield row, document.text[start:stop]


def _words_digest(connection: sqlite3.Connection, vocabulary: str) -> int:
    """Return a digest of all words with their places; the digests of parts add up to that of the whole."""
    digest = 0
    for term, *sums in connection.execute(_SUMS.format(vocabulary)):
        weights = hashlib.blake2b(term, digest_size=32).digest()
        for place, of in enumerate(sums):
            digest += of * int.from_bytes(weights[8 * place : 8 * place + 8], "little")
        digest %= _MODULUS
    return digest


def _lengths_digest(connection: sqlite3.Connection) -> int:
    """Return a digest of the recorded lengths of all passages; it adds up in the same way."""
    hashes = (
        hashlib.blake2b(repr(row).encode(), digest_size=8).digest()
        for row in connection.execute("SELECT id, sz FROM words_docsize")
    )
    return sum(int.from_bytes(digest, "little") for digest in hashes)


def _totals(connection: sqlite3.Connection) -> tuple[int, ...]:
    """Return the numbers of passages and of words that FTS5 records for BM25, from its variable-length format."""
    (block,) = connection.execute("SELECT block FROM words_data WHERE id = 1").fetchone() or (b"",)
    numbers = [0]
    for byte in block:
        numbers[-1] = numbers[-1] << 7 | byte & 127
        if byte < 128:
            numbers.append(0)
    return (*numbers[:-1], 0, 0)[:2]
