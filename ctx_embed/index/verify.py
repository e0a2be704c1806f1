"""Checks of an index for damage: checksums, counts, words, and vectors against documents."""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import numpy as np

from ctx_embed.errors import BusyError, InputError, OtherModelError, UnwritableError, examples
from ctx_embed.index.database import NEXT, READERS_PATIENCE, SCHEMA, WORDS, Database, expanded
from ctx_embed.index.faiss_file import crc32_of
from ctx_embed.index.folder import View
from ctx_embed.index.vectors import schema, spread
from ctx_embed.index.words import totals, with_vocabulary
from ctx_embed.model import Model
from ctx_embed.text.normalisation import indexed

# Number of passages that are embedded again and compared with their stored vectors.
SAMPLED_PASSAGES = 64
# The largest accepted distance of a new embedding from the stored one, as batches and machines round differently.
LARGEST_DISTANCE = 0.02
# At most this number of lines or rows is reported.
MOST_LINES = 20
# The number of passages whose word lists are made at a time.
PASSAGES_AT_ONCE = 8192
_SUMS = 'SELECT CAST(term AS BLOB), count(*), sum(doc), sum("offset"), sum(doc * "offset") FROM {} GROUP BY term'
_MODULUS = 2**64


class Problems(list[str]):
    """A line for each problem of an index, and for what could not be checked; without problems it is intact."""

    def __init__(self) -> None:
        super().__init__()
        self.unchecked: list[str] = []


def verify(folder: Path, model: Callable[[], Model] | None = None) -> Problems:
    """Return the problems of an index, read in one transaction, so that changes by others meanwhile are none.

    ``model`` returns its model, to embed some passages again; None skips that check.
    """
    problems = Problems()
    with closing(Database(folder)) as store, store.reading():
        for check in (_tables, _vectors, _words, _faiss):
            # Keep what a check found before it failed.
            found: list[str] = []
            try:
                found.extend(check(store))
            except InputError as error:
                found.append(str(error))
            problems += [line for line in found if line not in problems]
        # SQLite can check the tables of full text only inside a writing transaction.
        try:
            with closing(Database(store.folder)) as other, other.writing(READERS_PATIENCE):
                other.run("INSERT INTO words (words) VALUES ('integrity-check')")
        except (BusyError, UnwritableError) as error:
            problems.unchecked.append(f"the lookup tables of the word lists: {error}")
        except InputError as error:
            problems.append(str(error))
        try:
            if model is not None:
                problems += list(_vectors_of_texts(store, model()))
        except OtherModelError as error:
            problems.unchecked.append(f"whether vectors belong to their texts: {error}")
    return problems


def _tables(store: Database) -> Iterator[str]:
    """Yield problems that SQLite finds, documents with wrong checksums, and tables that others have defined."""
    # SQLite puts several lines into one row, below one that names the database.
    rows = store.run("PRAGMA integrity_check")
    lines = [line for (row,) in rows for line in str(row).splitlines() if not line.startswith("***")]
    if lines != ["ok"]:
        yield from (f"{store.path}: {line}" for line in lines[:MOST_LINES])
    select = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(f"{SCHEMA};{WORDS};{';'.join(schema(store.present().table))}")
        expected = dict(new.execute(select))
    found = dict(store.run(select))
    for name, sql in expected.items():
        if found.get(name) != sql:
            yield f"{store.path}: the definition of {name} is damaged"
    if damaged := store.damaged_rows():
        named = ", ".join(map(str, damaged[:MOST_LINES]))
        yield f"{store.path}: documents with wrong checksums: {len(damaged)}, in the rows {named}"
    if "origins" in found:
        # A document may be deleted while the record of its file stays; that does no harm.
        lost = store.run(
            "SELECT id FROM origins WHERE id IN (SELECT id FROM documents) "
            "AND file NOT IN (SELECT file FROM files WHERE folder IN (SELECT folder FROM folders))"
        )
        if lost:
            named = examples((identifier for (identifier,) in lost), len(lost))
            yield f"{store.path}: {len(lost)} documents of followed folders have lost their file ({named})"
    store.require_all_rows()


def _vectors(store: Database) -> Iterator[str]:
    """Yield a problem for damaged vectors, for vectors without a passage, and for rows without exactly one document."""
    view, firsts = View(store), store.firsts()
    store.settings_named(NEXT)
    needed, passages = view.rows[view.live], firsts[:, 1]
    # Damaged numbers may be huge.
    fit = bool(((passages >= 1) & (passages <= len(view.rows))).all()) and int(passages.sum()) == len(needed)
    if not fit or (np.sort(expanded(firsts[:, 0], passages)) != needed).any():
        yield f"{store.path}: there are rows that belong to no document, or to several"
    if len(firsts) != view.state.documents:
        yield f"{store.path}: holds {len(firsts)} documents, but its count is {view.state.documents}"
    zeros = store.integers(f"SELECT row FROM vectors_{view.settings.table} WHERE code = x''")
    lengths, found = [], [np.array(zeros, np.int64).ravel()]
    with np.errstate(over="ignore", invalid="ignore"):
        for rows, vectors in view.vectors.blocks():
            found.append(rows)
            lengths.append(np.linalg.norm(vectors, axis=1))
    if not np.all(np.abs(np.concatenate([np.ones(1), *lengths]) - 1) < 1e-2):
        yield f"{store.path}: has vectors that are not of length 1"
    stored = np.sort(np.concatenate(found))
    if len(stored) != len(needed) or (stored != needed).any():
        yield f"{store.path}: has vectors of {len(stored)} passages, but {len(needed)} passages"


def _faiss(store: Database) -> Iterator[str]:
    record = store.record()
    # If somebody has removed the file, searches compare all vectors until it is written again.
    with suppress(OSError):
        if record is not None and crc32_of(path := record.path(store.folder)) != record.facts.get("crc32"):
            yield f"{path}: damaged (its checksum is wrong); remove it and run `ctx-embed index compact`"


def _words(store: Database) -> Iterator[str]:
    """Yield a problem if the word lists are not those of the texts."""
    expected = [0, 0, 0, 0]
    texts = ((row, indexed(text)) for document in store.all() for row, text in document.texts())
    while part := list(islice(texts, PASSAGES_AT_ONCE)):
        with closing(sqlite3.connect(":memory:")) as again:
            again.execute(WORDS)
            again.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, instance)")
            again.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", part)
            expected = [so_far + more for so_far, more in zip(expected, _digests(again, "vocabulary"), strict=True)]
    with_vocabulary(store, "vocabulary", "instance")
    with store.reporting_errors():
        found = _digests(store.connection, "temp.vocabulary")
    compared = zip(("words", "lengths", "totals", "totals"), expected, found, strict=True)
    if differ := dict.fromkeys(name for name, wanted, there in compared if (wanted - there) % _MODULUS):
        yield f"{store.path}: the word lists are not those of the texts (their {', '.join(differ)} differ)"


def _digests(connection: sqlite3.Connection, vocabulary: str) -> tuple[int, ...]:
    """Return digests, sums modulo 2^64, of the words with places and the lengths of passages, and how many of each."""
    words = 0
    for term, *sums in connection.execute(_SUMS.format(vocabulary)):
        weights = hashlib.blake2b(term, digest_size=32).digest()
        for place, number in enumerate(sums):
            words += number * int.from_bytes(weights[8 * place : 8 * place + 8], "little")
        words %= _MODULUS
    rows = connection.execute("SELECT id, sz FROM words_docsize")
    hashes = (hashlib.blake2b(repr(row).encode(), digest_size=8).digest() for row in rows)
    return words, sum(int.from_bytes(digest, "little") for digest in hashes), *totals(connection)


def _vectors_of_texts(store: Database, embedder: Model) -> Iterator[str]:
    """Yield a problem if some passages, embedded again, differ from their stored vectors."""
    try:
        view = View(store)
        live = view.rows[view.live]
        if not len(live):
            return
        rows = spread(live, SAMPLED_PASSAGES)
        passages = store.fetch(rows.tolist())
        stored = view.vectors.get(rows)
    except InputError:
        # The other checks report this.
        return
    titled = view.settings.titled
    again = embedder.documents([passage.embedded(titled)[row - passage.row] for row, (passage, *_) in passages.items()])
    with np.errstate(over="ignore", invalid="ignore"):
        differing = rows[~(np.linalg.norm(stored - again, axis=1) <= LARGEST_DISTANCE)].tolist()
    if differing:
        named = examples(dict.fromkeys(passages[row].document.id for row in differing), len(differing))
        said = f"{len(differing)} of {len(rows)} passages, embedded again, differ from their stored vectors"
        yield f"{store.folder}: {said} (of the documents {named})"
