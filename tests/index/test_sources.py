from __future__ import annotations

import datetime
import decimal
import gzip

import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed import InputError
from ctx_embed.index.sources import estimated_count, expanded, read_sources
from ctx_embed.texts import Document


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


def test_csv_cells_are_strings_and_numbers(tmp_path):
    path = written(
        tmp_path,
        "a.csv",
        'id,text,year,code,score,empty\nx,"two\nlines, and ""quotes""",2020,007,4.50,\n'
        "7,plain,-3,1e5,0.5,y\n,last,0,-0,.5,\n",
    )
    assert read(path) == [
        Document('two\nlines, and "quotes"', "x", {"year": 2020, "code": "007", "score": 4.5}),
        Document("plain", 7, {"year": -3, "code": "1e5", "score": 0.5, "empty": "y"}),
        Document("last", None, {"year": 0, "code": "-0", "score": ".5"}),
    ]


def test_tsv_quotes_are_letters(tmp_path):
    path = written(tmp_path, "a.tsv", 'text\t_id\n"open\t1\n\nnext\t2\n')
    assert read(path) == [Document('"open', 1), Document("next", 2)]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.CSV.GZ", "a.csv"])
def test_gzip_is_seen_from_the_content(tmp_path, name):
    path = written(tmp_path, name, gzip.compress(b"text\nhello\n"))
    assert read(path) == [Document("hello")]


def test_parquet(tmp_path):
    path = table(
        tmp_path,
        id=["a", None],
        text=["first", "second"],
        day=[datetime.date(2020, 1, 2), None],
        price=[decimal.Decimal("1.50"), decimal.Decimal("2.00")],
        tags=[["x"], []],
    )
    expected = [
        Document("first", "a", {"day": "2020-01-02", "price": 1.5, "tags": ["x"]}),
        Document("second", None, {"price": 2.0, "tags": []}),
    ]
    assert read(path) == expected
    assert estimated_count([path]) == 2
    with open(path, "rb") as file:
        assert read(written(tmp_path, "b.parquet.gz", gzip.compress(file.read()))) == expected


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


def test_nan_in_parquet_is_a_missing_number(tmp_path):
    nan = float("nan")
    path = table(tmp_path, text=["a", "b"], n=[nan, 1.0], list=[[nan, 1.0], []])
    assert read(path) == [Document("a", None, {"list": [None, 1.0]}), Document("b", None, {"n": 1.0, "list": []})]


def test_metadata_of_an_export_stand_in_one_field(tmp_path):
    rows = ['{"text": "a", "metadata": {"n": 1}}', '{"text": "b", "metadata": "{\\"n\\": 2}"}']
    rows += ['{"text": "c", "metadata": {"n": 1}, "m": 2}', '{"text": "d", "metadata": "[1]"}']
    path = written(tmp_path, "a.json", "\n".join(rows))
    assert [document.metadata for document in read(path)] == [
        {"n": 1},
        {"n": 2},
        {"metadata": {"n": 1}, "m": 2},
        {"metadata": "[1]"},
    ]


def test_folders_are_read_by_name(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    written(tmp_path, ".hidden/d.txt", "d\n")
    for name, content in [("b.txt", "b\n"), ("deep/a.jsonl", '{"text": "a"}\n'), ("image.png", "x"), (".c.txt", "c\n")]:
        written(tmp_path, name, content)
    files = expanded([tmp_path])
    assert [document.text for document in read(*files)] == ["b", "a"]
    assert estimated_count(files) == 2
    assert estimated_count(["-"]) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "{path}: empty, a header with the field 'text' is needed"),
        ("a.csv", "body,n\nx,1\n", "{path}: no field 'text' (fields: 'body', 'n'), name the right one with --field"),
        ("a.csv", "text,n,n\nx,1,2\n", "{path}: the field 'n' stands twice in the header"),
        ("a.csv", "text,n\nx,1\ny\n", "{path}, line 3: 1 fields, the header has 2"),
        ("a.csv", "text,n\nx,1,2\n", "{path}, line 2: 3 fields, the header has 2"),
        ("a.csv", 'text\n"open\n', "{path}, line 2: cannot be read (unexpected end of data)"),
        ("a.csv", 'text\n"a"b\n', "{path}, line 2: cannot be read (',' expected after '\"')"),
        ("a.csv", b"text\n\xff\n", "{path}, line 2: not UTF-8 (byte 1 of the line), convert it first"),
        ("a.tsv", "text\tn\nx\n", "{path}, line 2: 1 fields, the header has 2"),
        ("a.tsv", "n\n1\n", "{path}: no field 'text' (fields: 'n'), name the right one with --field"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text"\n',
            "{path}, line 2: not JSON (Expecting ':' delimiter: line 1 column 8 (char 7))",
        ),
        ("a.jsonl", "[1]\n", "{path}, line 1: a JSON list, an object with the field 'text' is needed"),
        ("a.json", '[{"text": "a"}]', "{path}, line 1: a JSON list, an object with the field 'text' is needed"),
        ("a.ndjson", '{"text": null}\n', "{path}, line 1: field 'text' is a NoneType, a string is needed"),
        ("a.ndjson", '{"text": "a", "id": []}\n', "{path}, line 1: the id is a list, a string or an integer is needed"),
        ("a.txt.gz", gzip.compress(b"line\n" * 999)[:-12], "{path}: broken gzip after line"),
        ("a.parquet", b"PAR1 nothing", "{path}: cannot be read as Parquet ("),
        ("a.parquet", b"", "{path}: cannot be read as Parquet ("),
        ("a.parquet.gz", gzip.compress(b"PAR1" * 99)[:-4], "{path}: cannot be read as Parquet ("),
        ("a.txt", b"fine\n\xff\xfe\n", "{path}, line 2: not UTF-8 (byte 1 of the line), convert it first"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    path = written(tmp_path, name, content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(message.format(path=path))
    assert "\n" not in str(caught.value)


def test_tables_of_parquet_that_cannot_be_used(tmp_path):
    cases = [
        ({"body": ["x"]}, "no field 'text' (fields: 'body'), name the right one with --field"),
        ({"text": [1]}, ", row 1: field 'text' is a int, a string is needed"),
        ({"text": ["a", None]}, ", row 2: field 'text' is a NoneType, a string is needed"),
        ({"text": ["a"], "id": [1.5]}, ", row 1: the id is a float, a string or an integer is needed"),
    ]
    for columns, message in cases:
        path = table(tmp_path, **columns)
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(caught.value) in (f"{path}{message}", f"{path}: {message}")


def test_sources_that_cannot_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    for sources, message in [
        ([], "no source of documents, a file, a folder or - is needed"),
        (["-", "-"], "standard input is named twice, it can be read once"),
        (
            [tmp_path / "empty"],
            f"{tmp_path / 'empty'}: a folder without a file of .txt, .jsonl, .ndjson, .csv, .tsv, .parquet",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            expanded(sources)
        assert str(caught.value) == message
    missing = str(tmp_path / "missing")
    for name in ("", ".csv", ".jsonl", ".parquet"):
        with pytest.raises(InputError) as caught:
            read(missing + name)
        assert str(caught.value) == f"{missing + name}: no such file"
