from __future__ import annotations

import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed import InputError
from ctx_embed.index.building.build import read_sources


def written(tmp_path, name: str, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read(*files, **options):
    return list(read_sources(files, **options))


def table(tmp_path, name="a.parquet", **columns):
    path = tmp_path / name
    parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_embeddings_come_from_a_field(tmp_path):
    path = table(tmp_path, text=["a"], vector=[[1.0, 2.0]], n=[3])
    (document,) = read(path, embedding_field="vector")
    assert (document.text, document.metadata, document.embedding) == ("a", {"n": 3}, [1.0, 2.0])
    with pytest.raises(InputError) as caught:
        read(path, embedding_field="nothing")
    assert str(caught.value) == f"{path}, document 1: no field 'nothing' for the embedding (fields: 'vector', 'n')"


def test_rows_without_an_embedding(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"text": "a", "vector": [1]}\n{"text": "b", "vector": null}\n')
    with pytest.raises(InputError) as caught:
        read(path, embedding_field="vector")
    assert str(caught.value) == f"{path}, document 2: null in the field 'vector' for the embedding (fields: 'vector')"
    path = table(tmp_path, text=["a", "b"], vector=[[1.0], None])
    with pytest.raises(InputError) as caught:
        read(path, embedding_field="vector")
    assert str(caught.value) == f"{path}, document 2: no field 'vector' for the embedding (fields: none)"


def test_metadata_of_an_export_stand_in_one_field(tmp_path):
    rows = ['{"text": "a", "metadata": {"n": 1}}', '{"text": "b", "metadata": "{\\"n\\": 2}"}']
    rows += ['{"text": "c", "metadata": {"n": 1}, "m": 2}', '{"text": "d", "metadata": "[1]"}']
    rows += ['{"text": "e", "metadata": {"n": 1}, "n": 2}']
    path = written(tmp_path, "a.json", "\n".join(rows))
    assert [document.metadata for document in read(path)] == [
        {"n": 1},
        {"n": 2},
        {"n": 1, "m": 2},
        {"metadata": "[1]"},
        {"metadata": {"n": 1}, "n": 2},
    ]
