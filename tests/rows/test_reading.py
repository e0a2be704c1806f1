from __future__ import annotations

import datetime
import decimal
import gzip
import io
import json
import os
import re
import struct
import subprocess
import sys
from threading import Event

import psutil
import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed.errors import InputError
from ctx_embed.rows.encodings import WrongBytesWarning
from ctx_embed.rows.opening import expanded
from ctx_embed.rows.reading import arriving, estimated_count, in_blocks, read_documents, read_labelled, read_lines
from ctx_embed.texts import Document


@pytest.fixture
def file(tmp_path):
    def write(content: bytes, name: str = "a.txt"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def standard_input(monkeypatch):
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def lines(source) -> list[str]:
    return [line for _, line in read_lines(source)]


def error(read, *arguments) -> str:
    """The message of the one error that reading gives."""
    with pytest.raises(InputError) as caught:
        list(read(*arguments))
    return str(caught.value)


# Lines


def test_lines_are_numbered_from_one(file):
    assert list(read_lines(file(b"first\n\nthird"))) == [(1, "first"), (2, ""), (3, "third")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n".encode(), ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"]),
        (b"nul \x00 byte\n", ["nul \x00 byte"]),
        ("día\n".encode(), ["día"]),
    ],
    ids=["empty", "blank", "crlf", "cr", "bom", "second-bom", "separators", "nul", "utf8"],
)
def test_only_a_line_feed_ends_a_line(file, standard_input, content, expected):
    assert lines(file(content)) == expected
    assert lines(file(gzip.compress(content), "a.gz")) == expected
    standard_input(content)
    assert lines("-") == expected
    standard_input(gzip.compress(content))
    assert lines("-") == expected


def test_gzip_is_known_by_its_bytes_and_not_by_its_name(file):
    assert lines(file(gzip.compress(b"packed\n"), "packed.txt")) == ["packed"]
    assert lines(file(b"plain\n", "plain.gz")) == ["plain"]
    assert lines(file(gzip.compress(b"one\n") + gzip.compress(b"two\n"), "joined.gz")) == ["one", "two"]


def test_a_file_is_closed_when_its_reader_stops_early(file):
    path = file(b"a\nb\n")

    def is_open() -> bool:
        return str(path) in {opened.path for opened in psutil.Process().open_files()}

    reader = read_lines(path)
    next(reader)
    assert is_open()
    reader.close()
    assert not is_open()


def test_a_source_that_cannot_be_opened(tmp_path, file):
    missing = tmp_path / "missing.txt"
    assert error(read_lines, missing) == f"{missing}: no such file"
    assert error(read_lines, tmp_path) == f"{tmp_path}: must be a file, got a folder"
    inside = file(b"x") / "y"
    assert error(read_lines, inside) == f"{inside}: cannot be read (Not a directory)"
    assert error(read_lines, "n" * 5000) == f"{'n' * 5000}: cannot be read (File name too long)"
    assert error(read_lines, "a\0b") == "a\0b: cannot be read (embedded null byte)"


def test_a_source_that_fails_in_the_middle(monkeypatch):
    class Failing(io.RawIOBase):
        served = False

        def readable(self):
            return True

        def readinto(self, buffer):
            if self.served:
                raise OSError(5, "Input/output error")
            self.served = True
            buffer[:4] = b"a\nb\n"
            return 4

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Failing())))
    assert error(read_lines, "-") == "standard input: cannot be read after line 2 (Input/output error)"


def test_a_closed_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert error(read_lines, "-") == "standard input is closed"


def test_bytes_that_are_not_utf8(file, standard_input):
    advice = "convert the file or name its encoding"
    path = file("fiñe\n".encode() + b"caf\xe9\n")
    assert error(read_lines, path, "utf-8") == f"{path}, line 2: must be UTF-8 (see byte 4 of the line); {advice}"
    standard_input(b"nothing\xff\0 but bytes")
    assert error(read_lines, "-") == f"standard input, line 1: must be UTF-8 (see byte 8 of the line); {advice}"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.csv", "a.jsonl", "-"])
def test_wrong_bytes_cost_themselves_and_one_warning(file, standard_input, name):
    said = ["Le garçon a mangé.", "It\x92s here.", "a\xff gap", "fin"]
    rows = {"a.csv": ["text", *said], "a.jsonl": [f'{{"text": "{text}"}}' for text in said]}.get(name, said)
    wrong = {"\x92": b"\x92", "\xff": b"\xff"}
    content = b"\n".join(b"".join(wrong.get(character, character.encode()) for character in row) for row in [*rows, ""])
    if name == "-":
        standard_input(content)
    path = name if name == "-" else file(gzip.compress(content) if name.endswith(".gz") else content, name)
    with pytest.warns(WrongBytesWarning) as warned:
        assert [document.text for document in read_documents(path)] == [said[0], "It\u2019s here.", "a� gap", "fin"]
    (message,) = (str(each.message) for each in warned)
    line, byte = (3, 3) if name == "a.csv" else (2, 3 + len('{"text": "') * (name == "a.jsonl"))
    assert f", line {line}: byte {byte} (0x92) is not UTF-8" in message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "cp1252", "utf-8-sig", "cp1251", "shift_jis"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.txt.gz"])
def test_an_encoding_is_detected(file, standard_input, encoding, name):
    said = {
        "cp1251": "Все люди рождаются свободными и равными в своём достоинстве и правах.",  # noqa: RUF001
        "shift_jis": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    }.get(encoding, "Schöne Grüße aus München: über den Wolken muss die Freiheit wohl grenzenlos sein.")
    lines = {"a.jsonl": [f'{{"text": "{said}"}}'], "a.csv": ["text", f'"{said}"']}.get(name, [said])
    content = "\n".join(["plain" if name.startswith("a.txt") else "", *lines, ""]).encode(encoding)
    path = file(gzip.compress(content) if name.endswith(".gz") else content, name)
    assert [document.text for document in read_documents(path)][-1] == said
    if not name.endswith(".csv"):
        standard_input(content)
        assert [document.text for document in read_documents("-")][-1] == said


def test_lines_arrive_one_by_one():
    """A pipe is read as it fills: the first line is there before the second is written."""
    script = (
        "from ctx_embed.rows.reading import read_documents\nfor d in read_documents('-'): print(d.text, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line in (b"first\n", "zwölf\n".encode()):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
        process.stdin.close()


def test_broken_gzip(file):
    packed = gzip.compress(b"a line of text\n" * 50, mtime=0)
    cut = file(packed[:-4])
    assert error(read_lines, cut) == (
        f"{cut}: broken gzip after line 50 (Compressed file ended before the end-of-stream marker was reached)"
    )
    wrong_sum = file(packed[:-8] + b"\0\0\0\0" + packed[-4:])
    assert error(read_lines, wrong_sum).startswith(f"{wrong_sum}: broken gzip after line 50 (CRC check failed")
    wrong_header = file(b"\x1f\x8b\x07" + packed[3:])
    assert error(read_lines, wrong_header) == f"{wrong_header}: broken gzip after line 0 (Unknown compression method)"
    wrong_block = file(packed[:10] + b"\xff" * 20)
    assert error(read_lines, wrong_block) == (
        f"{wrong_block}: broken gzip after line 0 (Error -3 while decompressing data: invalid block type)"
    )


# Documents


def test_documents_of_a_text_file(file):
    path = file(b' one \n\n \t \n{"text": "not read as JSON"}\n')
    assert list(read_documents(path)) == [Document(" one "), Document('{"text": "not read as JSON"}')]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz", "A.JSONL"])
def test_documents_of_a_jsonl_file(file, name):
    rows = [
        {"text": "first", "id": "a", "n": 1, "tags": ["x"]},
        {"text": "", "_id": 7},
        {"text": "null is no id", "id": None},
    ]
    content = "\n\n".join(map(json.dumps, rows)).encode()
    path = file(gzip.compress(content) if name.endswith(".gz") else content, name)
    assert list(read_documents(path)) == [
        Document("first", "a", {"n": 1, "tags": ["x"]}),
        Document("", 7),
        Document("null is no id"),
    ]


def test_standard_input_is_jsonl_where_it_begins_with_an_object(standard_input):
    standard_input(b'\n{"text": "a", "id": 1}\n{"text": "b"}\n')
    assert list(read_documents("-")) == [Document("a", 1), Document("b")]
    standard_input(gzip.compress(b'{"text": "a"}\n'))
    assert list(read_documents("-")) == [Document("a")]
    standard_input(b'"a string"\n{"text": "b"}\n')
    assert list(read_documents("-")) == [Document('"a string"'), Document('{"text": "b"}')]
    standard_input(b"[" * 100_000)
    assert list(read_documents("-")) == [Document("[" * 100_000)]
    standard_input(b'{"text": "a"}\nno object\n')
    assert error(read_documents, "-") == (
        "standard input, line 2: not JSON (Expecting value: line 1 column 1 (char 0))"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": ', "not JSON (Expecting value: line 1 column 10 (char 9))"),
        (b"[1]", "must be a JSON object with the field 'text', got a list"),
        (b"7", "must be a JSON object with the field 'text', got an int"),
        (b"null", "must be a JSON object with the field 'text', got null"),
        (b'{"body": 1, "n": 2}', "no field 'text' (fields: 'body', 'n'); name the right one with --field"),
        (b"{}", "no field 'text' (fields: none); name the right one with --field"),
        (b'{"text": 5}', "the field 'text' must be a string, got an int"),
        (b'{"text": null}', "the field 'text' must be a string, got null"),
        (b'{"text": "x", "id": 1.5}', "the id must be a string or an integer, got a float"),
        (b'{"text": "x", "id": true}', "the id must be a string or an integer, got a bool"),
        (b'{"text": "x", "_id": []}', "the id must be a string or an integer, got a list"),
    ],
)
def test_a_jsonl_line_that_cannot_be_used(file, line, message):
    path = file(b'{"text": "good"}\n\n' + line + b"\n", "a.jsonl")
    assert error(read_documents, path) == f"{path}, line 3: {message}"


def test_json_too_deep_or_too_long_to_parse(file):
    path = file(b"[" * 100_000, "deep.jsonl")
    assert error(read_documents, path) == f"{path}, line 1: nested too deeply to be read"
    path = file(b'{"text": "x", "n": ' + b"9" * 5000 + b"}", "long.jsonl")
    assert error(read_documents, path).startswith(f"{path}, line 1: not JSON (Exceeds the limit")


# Labelled text


def test_labelled(file, standard_input):
    content = "pos\ta film\twith a tab \r\n\n très bien \tun film\nneg\t\n".encode()
    expected = (["pos", "très bien", "neg"], ["a film\twith a tab ", "un film", ""])
    assert read_labelled(file(content)) == expected
    standard_input(gzip.compress(content))
    assert read_labelled("-") == expected


@pytest.mark.parametrize("line", ["pos,a film", "\ta film", "  \ta film", "x" * 100])
def test_a_line_without_a_label(file, line):
    path = file(f"pos\tgood\n{line}\n".encode())
    assert error(read_labelled, path) == f"{path}, line 2: {line[:40]!r} is not label<TAB>text"


def test_no_rows(file, standard_input):
    path = file(b"\n \n")
    assert error(read_labelled, path) == f"{path}: no rows; give lines of label<TAB>text"
    standard_input(b"")
    assert error(read_labelled, "-") == "standard input: no rows; give lines of label<TAB>text"


# Tables


def written(tmp_path, name: str, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read(*files, **options):
    return [document for file in files for document in read_documents(file, **options)]


def table(tmp_path, name="a.parquet", **columns):
    path = tmp_path / name
    parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_a_column_of_csv_has_one_type(tmp_path):
    path = written(
        tmp_path,
        "a.csv",
        'id,text,year,code,score,empty\nx,"two\nlines, and ""quotes""",2020,007,4.5,\n'
        "7,plain,-3,15,0.5,y\n,last,0,-0,1e-05,\n",
    )
    assert read(path) == [
        Document('two\nlines, and "quotes"', "x", {"year": 2020, "code": "007", "score": 4.5}),
        Document("plain", "7", {"year": -3, "code": "15", "score": 0.5, "empty": "y"}),
        Document("last", None, {"year": 0, "code": "-0", "score": 1e-05}),
    ]


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


def test_nan_in_parquet_is_a_missing_number(tmp_path):
    nan = float("nan")
    path = table(tmp_path, text=["a", "b"], n=[nan, 1.0], list=[[nan, 1.0], []])
    assert read(path) == [Document("a", None, {"list": [None, 1.0]}), Document("b", None, {"n": 1.0, "list": []})]


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


def test_a_folder_is_left_by_no_link(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("in/a.txt", "secret.txt"):
        written(tmp_path, name, "x\n")
    (tmp_path / "in" / "b.txt").symlink_to("a.txt")
    (tmp_path / "in" / "c.txt").symlink_to("../secret.txt")
    (tmp_path / "in" / "d.txt").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "in" / "e.txt")
    assert expanded([tmp_path / "in"]) == [str(tmp_path / "in" / name) for name in ("a.txt", "b.txt")]


def test_a_line_without_an_end_is_refused():
    with pytest.raises(InputError, match=r"^/dev/zero: a line has more than 256 MB; break it up$"):
        next(read_lines("/dev/zero"))


def test_another_encoding(file, standard_input):
    path = file("caf\u00e9\nna\u00efve\n".encode("latin-1"))
    assert [document.text for document in read_documents(path, encoding="latin-1")] == ["caf\u00e9", "na\u00efve"]
    path = file("\u00e9\r\nb\n".encode("utf-16"))
    assert list(read_lines(path, "utf-16")) == [(1, "\u00e9"), (2, "b")]
    assert (
        error(lambda source: list(read_lines(source, "ascii")), path)
        == f"{path}, line 1: must be ascii; give the right encoding"
    )
    for name, message in (
        ("ascii", f"{path}, line 1: must be ascii; give"),
        ("nonsense", "unknown encoding 'nonsense'; Python"),
    ):
        with pytest.raises(InputError) as caught:
            list(read_lines(path, name))
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "{path}: must begin with a header with the field 'text', got an empty file"),
        ("a.csv", "body,n\nx,1\n", "{path}: no field 'text' (fields: 'body', 'n'); name the right one with --field"),
        ("a.csv", "text,n,n\nx,1,2\n", "{path}: the header names the field 'n' twice"),
        ("a.csv", "text,n\nx,1\ny\n", "{path}, line 3: 1 field, but the header has 2"),
        ("a.csv", "text,n\nx,1,2\n", "{path}, line 2: 3 fields, but the header has 2"),
        ("a.csv", 'text\n"open\n', "{path}, line 2: cannot be read (unexpected end of data)"),
        ("a.csv", 'text\n"a"b\n', "{path}, line 2: cannot be read (',' expected after '\"')"),
        ("a.tsv", "text\tn\nx\n", "{path}, line 2: 1 field, but the header has 2"),
        ("a.tsv", "n\n1\n", "{path}: no field 'text' (fields: 'n'); name the right one with --field"),
        ("a.json", '[{"text": "a"}, 7]', "{path}, row 2: must be a JSON object with the field 'text', got an int"),
        ("a.json", '[{"text": "a"}, {"n": 7}]', "{path}, row 2: no field 'text' (fields: 'n'); name the right one"),
        (
            "a.json",
            '{\n"text": "a"\n}\n',
            "{path}, line 1: not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
            "give an object on each line, or one array of objects",
        ),
        ("a.json", '[{"text": "a"},', "{path}, row 2: not JSON, or cut short (ends with '')"),
        ("a.json", '[{"text": "a"}, {"text"', "{path}, row 2: not JSON, or cut short (ends with "),
        ("a.parquet", b"PAR1 nothing", "{path}: cannot be read as Parquet ("),
        ("a.parquet", b"", "{path}: cannot be read as Parquet ("),
        ("a.parquet.gz", gzip.compress(b"PAR1" * 99, mtime=0)[:-4], "{path}: cannot be read as Parquet ("),
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
        ({"body": ["x"]}, "no field 'text' (fields: 'body'); name the right one with --field"),
        ({"text": [1]}, ", row 1: the field 'text' must be a string, got an int"),
        ({"text": ["a", None]}, ", row 2: the field 'text' must be a string, got null"),
        ({"text": ["a"], "id": [1.5]}, ", row 1: the id must be a string or an integer, got a float"),
    ]
    for columns, message in cases:
        path = table(tmp_path, **columns)
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(caught.value) in (f"{path}{message}", f"{path}: {message}")


def test_values_of_parquet_that_python_cannot_hold(tmp_path):
    ends = pyarrow.py_buffer(struct.pack("<2i", 0, 2))
    not_utf8 = pyarrow.StringArray.from_buffers(1, ends, pyarrow.py_buffer(b"\xa0\xff"))
    for column in (not_utf8, pyarrow.array([2**60], pyarrow.timestamp("us")), pyarrow.array([2**30], pyarrow.date32())):
        path = table(tmp_path, text=["a"], more=column)
        with pytest.raises(InputError, match=rf"^{re.escape(path)}: cannot be read as Parquet \("):
            read(path)


def test_sources_that_cannot_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    for sources, message in [
        ([], "no input: give a file, a folder, a glob, a URI or - (standard input)"),
        (["-", "-"], "standard input is named twice, but can be read only once"),
        (
            [tmp_path / "empty"],
            f"{tmp_path / 'empty'}: a folder must hold a file ending in .txt, .jsonl, .ndjson, .csv, .tsv, .parquet",
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


# Fields


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'id,headline\n0,"oil, again"\n', [Document("oil, again", 0)]),
        (b"\nheadline\tyear\noil\t2003\n", [Document("oil", None, {"year": 2003})]),
        (b'{"headline": "oil", "id": "a"}\n', [Document("oil", "a")]),
    ],
)
def test_a_named_field_makes_a_table_of_standard_input(file, standard_input, content, expected):
    standard_input(content)
    assert list(read_documents("-", "headline")) == expected
    assert list(read_documents(file(content, "news"), "headline")) == expected


def test_a_named_field_of_lines_of_text(file, standard_input):
    path = file(b"first\nsecond\n")
    message = "lines of text have no field 'x'; give a CSV, TSV, JSONL or Parquet file, or leave --field out"
    assert error(read_documents, path, "x") == f"{path}: {message}"
    standard_input(b"first\n")
    assert error(read_documents, "-", "x") == f"standard input: {message}"
    assert list(read_documents(file(b""), "x")) == []


LABELLED = (["1", "true", "neg"], ["good, really", "fine", "bad"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b'id,label,text\n7,1,"good, really"\n8,true,fine\n9, neg ,bad\n'),
        ("a.tsv", b"label\ttext\n1\tgood, really\ntrue\tfine\nneg\tbad\n"),
        ("a", b"text\tlabel\ngood, really\t1\nfine\ttrue\nbad\tneg\n"),
        (
            "a.jsonl",
            b'{"text": "good, really", "label": 1.0}\n{"text": "fine", "label": true}\n{"text": "bad", "label": "neg"}',
        ),
    ],
)
def test_labelled_tables(file, standard_input, name, content):
    assert read_labelled(file(content, name)) == LABELLED
    assert read_labelled(file(gzip.compress(content), f"{name}.gz")) == LABELLED
    standard_input(content)
    assert read_labelled("-") == LABELLED
    renamed = content.replace(b"text", b"review").replace(b"label", b"stars")
    standard_input(renamed)
    assert read_labelled(file(renamed, name), "review", "stars") == LABELLED
    assert read_labelled("-", "review", "stars") == LABELLED


def test_labels_of_parquet(tmp_path):
    path = table(tmp_path, review=["a", "b"], stars=[1, 5], text=["x", "y"])
    assert read_labelled(path, label_field="stars") == (["1", "5"], ["x", "y"])
    assert read_labelled(path, "review", "stars") == (["1", "5"], ["a", "b"])


def test_labelled_tables_that_cannot_be_used(file):
    path = file(b"text,stars\ngood,1\n", "a.csv")
    assert error(read_labelled, path) == (
        f"{path}: no field 'label' (fields: 'text', 'stars'); name the right one with --label-field"
    )
    assert error(read_labelled, path, "stars", "stars") == "--field and --label-field must differ, got 'stars' twice"
    path = file(b"text,label\ngood,1\nbad, \n", "a.csv")
    assert error(read_labelled, path) == f"{path}, line 3: the label 'label' is empty"
    path = file(b'{"text": "good", "label": null}\n', "a.jsonl")
    assert error(read_labelled, path) == f"{path}, line 1: the label 'label' must be a string or a number, got null"
    path = file(b"1\tgood\n", "a.tsv")
    assert (
        error(read_labelled, path, "review")
        == f"{path}, line 1: '1\\tgood' does not name the columns 'label' and 'review'"
    )


# Blocks


def test_blocks():
    assert list(in_blocks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(in_blocks([], 2)) == []


def test_items_come_as_they_arrive():
    more = Event()

    def items():
        yield 0
        more.wait(10)
        yield from range(1, 100)

    found = arriving(items(), 10)
    assert next(found) == [0]
    more.set()
    blocks = list(found)
    assert [item for block in blocks for item in block] == list(range(1, 100))
    assert max(map(len, blocks)) <= 10


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 0
        raise ValueError("broken")

    found = arriving(items(), 10)
    assert next(found) == [0]
    with pytest.raises(ValueError, match="broken"):
        next(found)
