"""A table of LanceDB: ``lancedb:FOLDER#TABLE``, on a disk or in an object store."""

import json
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ctx_embed.errors import InputError, listed_names, missing_extra, quoted
from ctx_embed.index.filters import Contains, Filter, IsNull, Value
from ctx_embed.stores.columns import EMBEDDING, ID, LIST, METADATA, TEXT, arrow_schema, arrow_table, metadata_of
from ctx_embed.stores.store import NOTES, Batch, Collection, Condition, Database, Floats, Row, translated

# A table with fewer rows gets no index: LanceDB compares a query with all of them in milliseconds.
LEAST_INDEXED = 20_000
# IVF_SQ stores one byte per dimension. Without refinement it finds 98.6 % of the ten nearest of 30,000 vectors;
# LanceDB's default, IVF_PQ, finds 57 %, and takes a minute to build instead of a second.
INDEX_TYPE = "IVF_SQ"
# A search compares the exact vectors of this many candidates from the index, at least LEAST_REFINED for each hit.
# This also helps tables that have LanceDB's default index.
CANDIDATES, LEAST_REFINED = 500, 10
# Small files are joined after this many commits.
OPTIMIZED = 256


class LanceDB(Database):
    """A table of LanceDB in a folder or at a URI. One process writes at a time, so that commits never conflict."""

    parallel = False

    def __init__(self, folder: str, table: str) -> None:
        super().__init__(f"lancedb:{folder}", table)
        self.folder = folder
        self._commits = 0

    @cached_property
    def _database(self) -> Any:
        try:
            import lancedb
        except ImportError:
            raise missing_extra("LanceDB", "lancedb") from None
        with self._reporting_errors():
            return lancedb.connect(self.folder)

    def _table(self, name: str) -> Any:
        """Return the table of this name, or None if it does not exist."""
        with self._reporting_errors():
            try:
                return self._database.open_table(name)
            except ValueError:
                return None

    def _has(self, name: str) -> bool:
        return self._table(name) is not None

    @cached_property
    def _rows(self) -> Any:
        self.require_collection()
        return self._table(self.collection_name)

    @cached_property
    def _notes(self) -> Any:
        import pyarrow as pa

        schema = pa.schema([(name, pa.string()) for name in ("collection", "name", "note")])
        with self._reporting_errors():
            return self._table(NOTES) or self._database.create_table(NOTES, schema=schema, exist_ok=True)

    def _create(self, collection: Collection) -> None:
        with self._reporting_errors():
            self._database.create_table(self.collection_name, schema=arrow_schema(collection), exist_ok=True)

    @cached_property
    def _known(self) -> Collection:
        return self.require_collection()

    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the notes whose names begin with ``prefix``, from the table ``_ctx_embed``."""
        if not self._has(NOTES):
            return {}
        literal_name = self.collection_name.replace("'", "''")
        where = f"collection = '{literal_name}' AND starts_with(name, '{prefix}')"
        with self._reporting_errors():
            rows = self._notes.search().where(where).limit(2**31 - 1).to_list()
        return {row["name"]: json.loads(row["note"]) for row in sorted(rows, key=lambda row: str(row["name"]))}

    def write_note(self, name: str, note: Mapping[str, Any]) -> None:
        """Store a note in the table ``_ctx_embed``."""
        import pyarrow as pa

        row = {"collection": [self.collection_name], "name": [name], "note": [json.dumps(note)]}
        with self._reporting_errors():
            merge = self._notes.merge_insert(["collection", "name"])
            merge.when_matched_update_all().when_not_matched_insert_all().execute(pa.table(row))

    def _put(self, rows: Batch) -> None:
        """Merge the rows by id, as one commit."""
        with self._reporting_errors():
            merge = self._rows.merge_insert(ID).when_matched_update_all().when_not_matched_insert_all()
            merge.execute(arrow_table(rows, self._known))
            self._commits += 1
            if self._commits % OPTIMIZED == 0:
                self._rows.optimize()

    def count(self) -> int:
        """Return the number of rows."""
        with self._reporting_errors():
            return int(self._rows.count_rows())

    def finish(self, *, unique: bool = False) -> None:
        """Build or extend an index of vectors, if the table is large, and join small files."""
        with self._reporting_errors(), warnings.catch_warnings():
            # Older versions of LanceDB have only the deprecated call.
            warnings.simplefilter("ignore", DeprecationWarning)
            if self.count() >= LEAST_INDEXED and not self._rows.list_indices():
                self._rows.create_index(metric="cosine", vector_column_name=EMBEDDING, index_type=INDEX_TYPE)
            self._rows.optimize()

    def _nearest(self, queries: Floats, k: int, tree: Filter | None, exact: bool) -> Iterator[list[Row]]:
        fields = self._known.fields
        for query in queries:
            search = self._rows.search(query, vector_column_name=EMBEDDING).distance_type("cosine").limit(k)
            search = search.select([ID, TEXT, METADATA, *fields, "_distance"])
            if exact:
                search = search.bypass_vector_index()
            else:
                search = search.refine_factor(max(LEAST_REFINED, -(-CANDIDATES // k)))
            if tree is not None:
                search = search.where(condition(self.name, tree, fields), prefilter=True)
            with self._reporting_errors():
                rows = search.to_list()
            yield [(row[ID], 1 - row["_distance"], row[TEXT], metadata_of(row, fields)) for row in rows]


def condition(name: str, tree: Filter, fields: Mapping[str, str]) -> str:
    """Return a filter as SQL that is never null, over a table's columns: ``fields``, with their types."""

    def literal(value: Value) -> str:
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)

    def one(tree: Condition) -> str:
        column, *inner = tree.path
        if inner or column not in fields:
            columns = listed_names(fields, repr)
            raise InputError(
                f"{name}: the field {quoted('.'.join(tree.path))} has no column to filter by "
                f"(columns: {columns}); choose one "
                "of them, or a store that filters JSON: PostgreSQL, Qdrant, a search index"
            )
        sql_name, kind, is_list = f"`{column}`", fields[column].removeprefix(LIST), fields[column].startswith(LIST)
        if isinstance(tree, IsNull):
            return f"({sql_name} IS NULL)"
        value: Any = tree.value
        kinds = {bool: ("bool",), str: ("string",)}.get(type(value), ("int", "float"))
        if kind not in kinds or (kind == "int" and is_list and value != int(value)):
            # Neither the column nor a list in it can hold the value.
            return "false"
        if isinstance(tree, Contains) and is_list:
            cast = {"int": int, "float": float}.get(kind, type(value))
            test = f"array_has({sql_name}, {literal(cast(value))})"
        elif isinstance(tree, Contains) and kind == "string":
            test = f"strpos({sql_name}, {literal(value)}) > 0"
        elif isinstance(tree, Contains) or is_list:
            return "false"
        elif kind == "float" or isinstance(value, float):
            test = f"CAST({sql_name} AS DOUBLE) {tree.operator} {float(value)!r}"
        elif kind == "bool":
            test = f"CAST({sql_name} AS BIGINT) {tree.operator} {int(value)}"
        else:
            test = f"{sql_name} {tree.operator} {literal(value)}"
        return f"({sql_name} IS NOT NULL AND {test})"

    return translated(
        tree, one, lambda word, parts: f"({f' {word.upper()} '.join(parts)})", lambda part: f"(NOT {part})"
    )
