from __future__ import annotations

import gzip
import io
import json
import os

import pytest

from ctx_embed.errors import InputError
from ctx_embed.texts import (
    BATCH_CHARACTERS,
    BATCH_TEXTS,
    Document,
    length_batches,
    read_documents,
    read_labelled,
    read_lines,
    well_formed,
)


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


def test_a_file_is_closed_when_its_reader_stops_early(file, monkeypatch):
    opened = []
    plain = open

    def remembered(*arguments):
        opened.append(plain(*arguments))
        return opened[-1]

    monkeypatch.setattr("builtins.open", remembered)
    reader = read_lines(file(b"a\nb\n"))
    next(reader)
    reader.close()
    assert [item.closed for item in opened] == [True]


def test_a_source_that_cannot_be_opened(tmp_path, file):
    missing = tmp_path / "missing.txt"
    assert error(read_lines, missing) == f"{missing}: no such file"
    assert error(read_lines, tmp_path) == f"{tmp_path}: is a folder, a file is needed"
    inside = file(b"x") / "y"
    assert error(read_lines, inside) == f"{inside}: cannot be read (Not a directory)"
    assert error(read_lines, "n" * 5000) == f"{'n' * 5000}: cannot be read (File name too long)"
    assert error(read_lines, "a\0b") == "a\0b: cannot be read (embedded null byte)"


def test_a_source_without_permission(file, monkeypatch):
    path = file(b"x")

    def refuse(*arguments):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("builtins.open", refuse)
    assert error(read_lines, path) == f"{path}: cannot be read (Permission denied)"


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
    path = file(b"fine\ncaf\xe9\n")
    assert error(read_lines, path) == f"{path}, line 2: not UTF-8 (byte 4 of the line), convert it first"
    path = file(b"\xef\xbb\xbfab\xff\n")
    assert error(read_lines, path) == f"{path}, line 1: not UTF-8 (byte 6 of the line), convert it first"
    standard_input("utf-16\n".encode("utf-16"))
    assert error(read_lines, "-") == "standard input, line 1: not UTF-8 (byte 1 of the line), convert it first"


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


def test_another_field(file):
    path = file(b'{"body": "b", "text": "t"}\n', "a.jsonl")
    assert list(read_documents(path, "body")) == [Document("b", None, {"text": "t"})]


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
        (b"[1]", "a JSON list, an object with the field 'text' is needed"),
        (b"7", "a JSON int, an object with the field 'text' is needed"),
        (b"null", "a JSON NoneType, an object with the field 'text' is needed"),
        (b'{"body": 1, "n": 2}', "no field 'text' (fields: 'body', 'n'), name the right one with --field"),
        (b"{}", "no field 'text' (fields: none), name the right one with --field"),
        (b'{"text": 5}', "field 'text' is a int, a string is needed"),
        (b'{"text": null}', "field 'text' is a NoneType, a string is needed"),
        (b'{"text": "x", "id": 1.5}', "the id is a float, a string or an integer is needed"),
        (b'{"text": "x", "id": true}', "the id is a bool, a string or an integer is needed"),
        (b'{"text": "x", "_id": []}', "the id is a list, a string or an integer is needed"),
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
    assert error(read_labelled, path) == f"{path}: no rows, lines of label<TAB>text are needed"
    standard_input(b"")
    assert error(read_labelled, "-") == "standard input: no rows, lines of label<TAB>text are needed"


def test_well_formed():
    assert well_formed("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert well_formed("\ud83d\ude00") == "😀"
    text = "nothing to do 😀 \0"
    assert well_formed(text) is text


def test_batches_hold_every_text_once_within_their_bounds():
    texts = ["x" * length for length in [5, BATCH_CHARACTERS * 2, 0, *range(600), BATCH_CHARACTERS // 3]]
    found = list(length_batches(texts))
    assert sorted(place for batch in found for place in batch) == list(range(len(texts)))
    for batch in found:
        padded = len(batch) * max(len(texts[place]) for place in batch)
        assert len(batch) <= BATCH_TEXTS
        assert padded <= BATCH_CHARACTERS or len(batch) == 1
    assert list(length_batches([])) == []
