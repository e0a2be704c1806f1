from __future__ import annotations

import pyarrow
from pyarrow import parquet

from ctx_embed.index.building.build import read_sources
from tests.helpers.errors import error


def read(*files, **options):
    return list(read_sources(files, **options))


def table(tmp_path, name="a.parquet", **columns):
    path = tmp_path / name
    parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_embeddings_come_from_a_field(tmp_path):
    path = table(tmp_path, text=["a", "b"], vector=[[1.0, 2.0], None], n=[3, 4])
    document = next(iter(read_sources([path], embedding_field="vector")))
    assert (document.text, document.metadata, document.embedding) == ("a", {"n": 3}, [1.0, 2.0])
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a", "vector": [1]}\n{"text": "b", "vector": null}\n')
    for source, field, message in (
        (path, "nothing", "document 1: no field 'nothing' for the embedding (fields: 'vector', 'n')"),
        (path, "vector", "document 2: no field 'vector' for the embedding (fields: 'n')"),
        (str(lines), "vector", "document 2: null in the field 'vector' for the embedding (fields: 'vector')"),
    ):
        assert error(read, source, embedding_field=field) == f"{source}, {message}"


def test_metadata_of_an_export_stand_in_one_field(tmp_path):
    rows = [
        ('"metadata": {"n": 1}', {"n": 1}),
        ('"metadata": "{\\"n\\": 2}"', {"n": 2}),
        ('"metadata": {"n": 1}, "m": 2', {"n": 1, "m": 2}),
        ('"metadata": "[1]"', {"metadata": "[1]"}),
        ('"metadata": {"n": 1}, "n": 2', {"metadata": {"n": 1}, "n": 2}),
    ]
    path = tmp_path / "a.json"
    path.write_text("".join(f'{{"text": "a", {row}}}\n' for row, _ in rows))
    assert [document.metadata for document in read(str(path))] == [metadata for _, metadata in rows]
