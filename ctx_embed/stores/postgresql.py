"""A table of PostgreSQL with pgvector: ``postgresql://USER@HOST/DATABASE#TABLE``."""

import decimal
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from ctx_embed.errors import InputError, missing_extra, quoted, without_secrets
from ctx_embed.index.filters import Contains, Filter, IsNull
from ctx_embed.stores.store import COLLECTION, NOTES, Batch, Collection, Condition, Database, Floats, Row, translated
from ctx_embed.texts import well_formed

# pgvector cannot index vectors of more dimensions than this.
MOST_INDEXED_DIMENSIONS = 2000
# pgvector's hnsw.ef_search, the number of candidates that a search tracks (the default, 40, misses one hit in twelve),
# and its maximum.
EF_SEARCH, MOST_EF_SEARCH = 100, 1000

# An SQL expression and its parameters.
Sql = tuple[str, list[Any]]


class PostgreSQL(Database):
    """A table, perhaps ``SCHEMA.TABLE``, with the columns ``id``, ``text``, ``metadata`` and ``embedding``."""

    def __init__(self, address: str, table: str) -> None:
        super().__init__(address, table)
        names = table.split(".", 1)
        if not table.isprintable() or '"' in table or not all(0 < len(name.encode()) <= 63 for name in names):
            raise InputError(
                f"{self.name}: a table must have a printable name of at most 63 bytes, as TABLE or SCHEMA.TABLE, "
                f"got {quoted(table)}"
            )
        self.address = address
        self._quoted = ".".join(f'"{name}"' for name in names)

    @cached_property
    def _opened(self) -> Any:
        try:
            import psycopg
            from pgvector.psycopg import register_vector
        except ImportError:
            raise missing_extra("PostgreSQL", "pgvector") from None
        with self._reporting_errors():
            connection = psycopg.connect(self.address, autocommit=True)
        try:
            connection.execute("SET client_min_messages = warning")
            # Another process may create the extension at the same moment.
            with suppress(psycopg.errors.UniqueViolation):
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(connection)
        except psycopg.Error as error:
            connection.close()
            reason = without_secrets(str(error).strip().split("\n")[0])
            raise InputError(f"{self.name}: pgvector must be installed on the server ({reason})") from None
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Yield the connection inside a transaction; report the server's errors in one line."""
        with self._reporting_errors(), self._opened.transaction():
            yield self._opened

    def _has(self, name: str) -> bool:
        table = self._quoted if name == self.collection_name else f'"{name}"'
        with self._transaction() as connection:
            return bool(connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone()[0])

    def _create(self, collection: Collection) -> None:
        with self._transaction() as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._quoted} (id text PRIMARY KEY, text text NOT NULL, "
                f"metadata jsonb NOT NULL, embedding vector({collection.dimension}) NOT NULL)"
            )

    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the notes whose names begin with ``prefix``, from the table ``_ctx_embed``."""
        if not self._has(NOTES):
            return {}
        with self._transaction() as connection:
            rows = connection.execute(
                f'SELECT name, note FROM "{NOTES}" WHERE collection = %s AND starts_with(name, %s) '
                'ORDER BY name COLLATE "C"',
                [self.collection_name, prefix],
            ).fetchall()
        return dict(rows)

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Store a note in the table ``_ctx_embed``."""
        with self._transaction() as connection:
            if name == COLLECTION:
                connection.execute(
                    f'CREATE TABLE IF NOT EXISTS "{NOTES}" (collection text, name text, note jsonb NOT NULL, '
                    "PRIMARY KEY (collection, name))"
                )
            connection.execute(
                f'INSERT INTO "{NOTES}" VALUES (%s, %s, %s::jsonb) '
                "ON CONFLICT (collection, name) DO UPDATE SET note = EXCLUDED.note",
                [self.collection_name, name, _json(note)],
            )

    def _put(self, rows: Batch) -> None:
        """Copy the rows to a temporary table, and from there into the table."""
        from pgvector import Vector
        from psycopg.types.json import Jsonb

        with self._transaction() as connection:
            connection.execute(
                f"CREATE TEMPORARY TABLE arriving ON COMMIT DROP AS SELECT * FROM {self._quoted} WITH NO DATA"
            )
            with connection.cursor().copy(
                "COPY arriving (id, text, metadata, embedding) FROM STDIN WITH (FORMAT BINARY)"
            ) as copy:
                copy.set_types(["text", "text", "jsonb", "vector"])
                columns = (rows.ids, rows.texts, rows.metadata, rows.vectors)
                for identifier, text, metadata, vector in zip(*columns, strict=True):
                    # NUL is the one character that PostgreSQL cannot store.
                    plain = identifier.replace("\0", "\ufffd"), text.replace("\0", "\ufffd")
                    copy.write_row((*plain, Jsonb(_json(metadata), dumps=str), Vector(vector)))
            # Sorted, so that processes that store the same ids wait for each other instead of deadlocking.
            connection.execute(
                f"INSERT INTO {self._quoted} SELECT * FROM arriving ORDER BY id ON CONFLICT (id) DO UPDATE SET "
                "text = EXCLUDED.text, metadata = EXCLUDED.metadata, embedding = EXCLUDED.embedding"
            )

    def count(self) -> int:
        """Return the number of rows."""
        self.require_collection()
        with self._transaction() as connection:
            return int(connection.execute(f"SELECT count(*) FROM {self._quoted}").fetchone()[0])

    def finish(self, *, unique: bool = False) -> None:
        """Build pgvector's HNSW index of the embeddings if there is none, and update the planner's statistics."""
        if self.require_collection().dimension <= MOST_INDEXED_DIMENSIONS:
            with self._transaction() as connection:
                name = f"{self.collection_name.rpartition('.')[2][:40]}_embedding_hnsw"
                connection.execute(
                    f'CREATE INDEX IF NOT EXISTS "{name}" ON {self._quoted} USING hnsw (embedding vector_cosine_ops)'
                )
        with self._transaction() as connection:
            connection.execute(f"ANALYZE {self._quoted}")

    def _nearest(self, queries: Floats, k: int, tree: Filter | None, exact: bool) -> Iterator[list[Row]]:
        from pgvector import Vector

        where, values = ("true", []) if tree is None else condition(tree)
        statement = (
            f"SELECT id, 1 - (embedding <=> %s), text, metadata FROM {self._quoted} WHERE {where} "
            "ORDER BY embedding <=> %s LIMIT %s"
        )
        with self._transaction() as connection:
            if exact:
                connection.execute("SET LOCAL enable_indexscan = off")
            else:
                connection.execute(f"SET LOCAL hnsw.ef_search = {min(max(k, EF_SEARCH), MOST_EF_SEARCH)}")
                # With a filter, search on until k rows match.
                connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            for query in queries:
                vector = Vector(query)
                yield connection.execute(statement, [vector, *values, vector, k]).fetchall()


def _json(value: Any) -> str:
    return well_formed(json.dumps(value, ensure_ascii=False)).replace("\\u0000", "\ufffd")


def condition(tree: Filter) -> Sql:
    """Return a filter as SQL that is never null, over the column ``metadata``, with its parameters."""

    def one(tree: Condition) -> Sql:
        field, path = "(metadata" + " -> %s::text" * len(tree.path) + ")", list(tree.path)
        if isinstance(tree, IsNull):
            return f"(coalesce(jsonb_typeof({field}), 'null') = 'null')", path
        value = tree.value
        # CASE keeps PostgreSQL from casting a value before its type is checked.
        if isinstance(tree, Contains):
            sql, values = f"(CASE jsonb_typeof({field}) WHEN 'array' THEN {field} @> %s::jsonb", [json.dumps([value])]
            if isinstance(value, str):
                sql += f" WHEN 'string' THEN position(%s::text IN {field} #>> '{{}}') > 0"
                values += [value, *path]
            return f"{sql} ELSE false END)", [*path, *path, *values]
        given: Any = value
        if isinstance(value, bool):
            kind, cast, parameter = "boolean", "::boolean", "%s::boolean"
        elif isinstance(value, str):
            kind, cast, parameter = "string", ' COLLATE "C"', "%s::text"
        else:
            kind, cast, parameter, given = "number", "::numeric", "%s::numeric", decimal.Decimal(repr(value))
        compared = f"({field} #>> '{{}}'){cast} {tree.operator} {parameter}"
        return f"(CASE WHEN jsonb_typeof({field}) = '{kind}' THEN {compared} ELSE false END)", [*path, *path, given]

    def joined(word: str, parts: Sequence[Sql]) -> Sql:
        values = [value for _, values in parts for value in values]
        return f"({f' {word.upper()} '.join(sql for sql, _ in parts)})", values

    return translated(tree, one, joined, lambda part: (f"(NOT {part[0]})", part[1]))
