"""The same table means the same, whoever wrote it and whatever reads it; a value comes back as it was written."""

import csv
import datetime
import decimal
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import numpy as np
import openpyxl
import pandas
import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from ctx_embed import dedupe
from ctx_embed.reading import opening, tables
from ctx_embed.reading.encodings import WrongBytesWarning, is_binary, settled
from ctx_embed.reading.rows import Fields, arriving, estimated_count, read_documents, read_labelled, read_lines
from ctx_embed.reading.sources import find_sources
from ctx_embed.reading.tables import ReadingWarning
from ctx_embed.texts import Document, well_formed
from ctx_embed.training.options import TrainingJob
from ctx_embed.training.supervised.job import _read
from ctx_embed.writing import write_embeddings
from tests.helpers.errors import error


@pytest.fixture
def standard_input(monkeypatch):
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.fixture
def sources(file, standard_input):
    """All ways to give a content: as a file and at standard input, plain and packed."""

    def each(content: bytes, name: str = "a.txt"):
        for written, suffix in ((content, ""), (gzip.compress(content), ".gz")):
            yield file(written, f"{name}{suffix}")
            standard_input(written)
            yield "-"

    return each


def read(source) -> list[Document]:
    return list(read_documents(source))


def test_only_a_line_feed_ends_a_line(sources):
    for content, expected in (
        (b"", []),
        (b"first\n\nthird", ["first", "", "third"]),
        (b"a\r\nb\rc\r\n", ["a", "b\rc"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n".encode(), ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"]),
    ):
        for source in sources(content):
            assert list(read_lines(source)) == list(enumerate(expected, 1))


def test_gzip_is_known_by_its_bytes_and_not_by_its_name(file):
    joined = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    for content, name in ((joined, "packed.txt"), (b"one\ntwo\n", "plain.gz")):
        assert list(read_lines(file(content, name))) == [(1, "one"), (2, "two")]
    packed = gzip.compress(b"a line of text\n" * 50, mtime=0)
    for content, line, why in [
        (packed[:-4], 50, "Compressed file ended before"),
        (packed[:-8] + b"\0\0\0\0" + packed[-4:], 50, "CRC check failed"),
        (packed[:10] + b"\xff" * 20, 0, "Error -3 while decompressing data: invalid block type"),
    ]:
        path = file(content)
        assert error(read_lines, path).startswith(f"{path}: broken gzip after line {line} ({why}")


def test_sources_that_cannot_be_opened_or_fail_in_the_middle(tmp_path, file, monkeypatch):
    for source, said in [
        *((f"{tmp_path}/missing{suffix}", "no such file") for suffix in ("", ".csv", ".jsonl", ".parquet")),
        (tmp_path, "must be a file, got a folder"),
        (file(b"x") / "y", "cannot be read (Not a directory)"),
        ("a\0b", "cannot be read (embedded null byte)"),
        ("/dev/zero", "a line has more than 256 MB; break it up"),
    ]:
        assert error(read_documents, source) == f"{source}: {said}"
    monkeypatch.setattr("sys.stdin", None)
    assert error(read_lines, "-") == "standard input is closed"

    class Failing(io.BytesIO):
        def readinto(self, buffer):
            found = super().readinto(buffer)
            if not found:
                raise OSError(5, "Input/output error")
            return found

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Failing(b"a\nb\n")))
    assert error(read_lines, "-") == "standard input: cannot be read after line 2 (Input/output error)"


def test_bytes_that_are_not_of_the_encoding_that_is_named(file, standard_input):
    path = file("\u00e9\r\nb\n".encode("utf-16"))
    assert list(read_lines(path, "utf-16")) == [(1, "\u00e9"), (2, "b")]
    assert error(read_lines, path, "ascii") == f"{path}, line 1: must be ascii; give the right encoding"
    assert error(read_lines, path, "nonsense").startswith("unknown encoding 'nonsense'; Python")
    advice = "convert the file or name its encoding"
    path = file("fiñe\n".encode() + b"caf\xe9\n")
    assert error(read_lines, path, "utf-8") == f"{path}, line 2: must be UTF-8 (see byte 4 of the line); {advice}"
    standard_input(b"nothing\xff\0 but bytes")
    assert error(read_lines, "-") == f"standard input, line 1: must be UTF-8 (see byte 8 of the line); {advice}"


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_wrong_bytes_cost_themselves_and_one_warning(sources, name):
    said = ["Le garçon a mangé.", "It\udc92s here.", "a\udcff gap", "fin"]
    of_csv, of_jsonl = ["text,n", *(f"{text},1" for text in said)], [f'{{"text": "{text}"}}' for text in said]
    rows = {"a.csv": of_csv, "a.jsonl": of_jsonl}.get(name, said)
    line, byte = {"a.csv": (3, 3), "a.jsonl": (2, 13)}.get(name, (2, 3))
    for source in sources("\n".join([*rows, ""]).encode("utf-8", "surrogateescape"), name):
        with pytest.warns(WrongBytesWarning) as warned:
            assert [document.text for document in read(source)] == [said[0], "It\u2019s here.", "a� gap", "fin"]
        (message,) = (str(each.message) for each in warned)
        assert f", line {line}: byte {byte} (0x92) is not UTF-8" in message


SAID = "Schöne Grüße aus München: über den Wolken muss die Freiheit wohl grenzenlos sein."
CYRILLIC = "Все люди рождаются свободными и равными в своём достоинстве и правах."  # noqa: RUF001
JAPANESE = "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "cp1252", "utf-8-sig", "cp1251", "shift_jis"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_an_encoding_is_detected(sources, encoding, name):
    said = {"cp1251": CYRILLIC, "shift_jis": JAPANESE}.get(encoding, SAID)
    lines = {"a.jsonl": [f'{{"text": "{said}"}}'], "a.csv": ["text,n", f'"{said}",1']}.get(name, ["plain", said])
    for source in sources("\n".join(["", *lines, ""]).encode(encoding), name):
        assert read(source)[-1].text == said


def test_how_many_bytes_may_be_wrong_and_what_a_word_or_two_are():
    wide, stray = "é".encode(), b"\xe9"
    # As many stray bytes as other letters are strays, more are another encoding; alone, one in a hundred bytes.
    assert [settled(stray * wrong + wide * 3, "latin-1") for wrong in (1, 3, 4)] == ["utf-8", "utf-8", "latin-1"]
    assert [settled((b"caf" + stray + b" two cafes" * 10)[:size]) for size in (100, 99)] == ["utf-8", "cp1252"]
    # A twentieth of text may be control characters.
    assert [is_binary(b"\1" + b"a" * others) for others in (19, 18)] == [False, True]
    # Some of these words fit Asian encodings, too.
    for text in ("São Paulo is big", "Köln", "Café", "El Niño returned", "30 °C and 5 µm", "Überprüfung"):
        assert settled(text.encode("cp1252")) == "cp1252", text


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.txt"])
def test_documents_of_lines_and_of_jsonl(sources, name):
    rows = [{"text": "a", "id": "a", "n": 1, "tags": ["x"]}, {"text": "", "_id": 7}, {"text": "c", "id": None}]
    for source in sources("\n\n".join(["", *map(json.dumps, rows)]).encode(), name):
        assert read(source) == [Document("a", "a", {"n": 1, "tags": ["x"]}), Document("", 7), Document("c")]


def test_lines_are_texts_unless_the_first_one_is_an_object(sources):
    for content in (b' one \n\n \t \n{"text": "b"}\n', b'"a string"\n{"text": "b"}\n', b"[" * 100_000):
        for source in sources(content):
            assert read(source) == [Document(line) for line in content.decode().split("\n") if line.strip()]


BAD_JSON = [
    ('{"text": ', "not JSON (Expecting value: line 1 column 10 (char 9))"),
    ('{"text": 5}', "the field 'text' must be a string, got an int"),
    ('{"text": "x", "id": 1.5}', "the id must be a string or an integer, got a float"),
    ('{"text": "x", "_id": true}', "the id must be a string or an integer, got a bool"),
    ("[" * 100_000, "nested too deeply to be read"),
    ('{"text": "x", "n": ' + "9" * 5000 + "}", "not JSON (Exceeds the limit"),
]


def test_labelled(sources, file):
    content = "pos\ta film\twith a tab \r\n\n très bien \tun film\nneg\t\n".encode()
    for source in sources(content):
        assert read_labelled(source) == (["pos", "très bien", "neg"], ["a film\twith a tab ", "un film", ""])
    path = file(f"pos\tgood\n{'x' * 100}\n")
    assert error(read_labelled, path) == f"{path}, line 2: {'x' * 40!r} is not label<TAB>text"
    path = file("pos\tgood\n\ta film\n  \tanother\n")
    assert error(read_labelled, path) == f"{path}, line 2: the label 'label' is empty"
    assert read_labelled(path, skipped=(skipped := [])) == (["pos"], ["good"])
    assert skipped == [f"{path}, line 2", f"{path}, line 3"]
    for source in sources(b"\n \n"):
        assert error(read_labelled, source).endswith(": no rows; give lines of label<TAB>text")


def table(**columns) -> bytes:
    parquet.write_table(pyarrow.table(columns), written := io.BytesIO())
    return written.getvalue()


def test_parquet(file):
    nan = float("nan")
    columns = {"day": [datetime.date(2020, 1, 2), None], "n": [nan, 1.0], "list": [[nan, 1.0], []]}
    content = table(id=["a", None], text=["first", "second"], **columns)
    path = file(content, "a.parquet")
    expected = [
        Document("first", "a", {"day": "2020-01-02", "list": [None, 1.0]}),
        Document("second", None, {"n": 1.0, "list": []}),
    ]
    assert read(path) == expected
    assert estimated_count([path]) == 2
    assert read(file(gzip.compress(content), "b.parquet.gz")) == expected
    # Decimals lose no digit.
    long, short = decimal.Decimal("12345678901234567890.10"), decimal.Decimal("2.50")
    wide = pyarrow.array([long, short], pyarrow.decimal128(38, 2))
    content = table(text=["a", "b"], long=wide, short=pyarrow.array([short, None], pyarrow.decimal128(9, 2)))
    found = [document.metadata for document in read(file(content, "a.parquet"))]
    assert found == [{"long": str(long), "short": 2.5}, {"long": "2.50"}]


def test_folders_globs_and_uris_name_files_and_are_left_by_no_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    for name in ("b.txt", "deep/a.jsonl", "image.png", ".c.txt", ".hidden/d.txt", "../secret.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "a"}\n' if name.endswith("jsonl") else "b\n")
    for name, target in (("e.txt", "b.txt"), ("f.txt", "../secret.txt"), ("g.txt", "/dev/zero")):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "h.txt")
    uri = folder.as_uri()
    for inputs, prefix, expected in (
        ([folder], folder, "b.txt deep/a.jsonl e.txt"),
        (["in/deep/*", "in/b.txt"], "in", "deep/a.jsonl b.txt"),
        ([f"{uri}/deep"], f"{uri}/deep", "a.jsonl"),
        ([f"{uri}/**/*.jsonl"], uri, "deep/a.jsonl"),
        ([f"{uri}/*.png"], uri, "image.png"),
    ):
        assert [source.name for source in find_sources(inputs)] == [f"{prefix}/{name}" for name in expected.split()]
    files = [source.name for source in find_sources([folder])]
    assert [document.text for file in files for document in read(file)] == ["b", "a", "b"]
    assert estimated_count(files) == 3
    assert f"{estimated_count(files):,}" == str(estimated_count(files)) == "about 3"
    assert estimated_count(["-"]) is None


def test_files_that_cannot_be_read(file):
    not_utf8, late = (
        pyarrow.array([b"\xa0\xff"]).view(pyarrow.string()),
        pyarrow.array([2**60], pyarrow.timestamp("us")),
    )
    # A suffix in capitals names the same format.
    for name, content, message in (
        *(("a.jsonl", f'{{"text": "good"}}\n\n{line}\n', f", line 3: {message}") for line, message in BAD_JSON),
        ("a.csv", "", ": must begin with a header with the field 'text', got an empty file"),
        ("A.CSV", "body,n\nx,1\n", ": no field 'text' (fields: 'body', 'n'); name the right one with --field"),
        ("A.CSV.GZ", "text,n,n\nx,1,2\n", ": the header names the field 'n' twice"),
        ("a.csv", 'text\n"open\n', ", line 2: cannot be read (unexpected end of data)"),
        ("a.json", '[{"text": "a"}, 7]', ", row 2: must be a JSON object with the field 'text', got an int"),
        ("a.json", '[{"text": "a"}, {"n": 7}]', ", row 2: no field 'text' (fields: 'n'); name the right one"),
        ("a.json", '{\n"text": "a"\n}\n', ", line 1: not JSON (Expecting property name"),
        ("a.json", '[{"text": "a"}, {"text"', ", row 2: not JSON, or cut short (ends with "),
        ("a.parquet", table(text=["a", None]), ", row 2: the field 'text' must be a string, got null"),
        ("a.parquet", table(text=["a"], more=not_utf8), ": cannot be read as Parquet ("),
        ("a.parquet", table(text=["a"], more=late), ": cannot be read as Parquet ("),
        ("a.parquet", "PAR1 nothing", ": cannot be read as Parquet ("),
        ("a.parquet.gz", gzip.compress(b"PAR1" * 99, mtime=0)[:-4], ": cannot be read as Parquet ("),
    ):
        path = file(gzip.compress(content.encode()) if name == "A.CSV.GZ" else content, name)
        said = error(read, path)
        assert said.startswith(f"{path}{message}")
        assert "\n" not in said
        if content[:2] == "{\n":
            assert said.endswith("; give an object on each line, or one array of objects")


def test_inputs_that_name_no_file(tmp_path):
    assert error(find_sources, [tmp_path]).startswith(f"{tmp_path}: a folder must hold a file ending in .txt, .jsonl,")
    for names, said in (
        ([], "no input: give a file, a folder, a glob, a URI or -"),
        (["-", "-"], "standard input is named twice, but can be read only once"),
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (["nowhere*.txt"], "nowhere*.txt: no such file, and nothing matches it"),
        (["file:///nowhere/at/all"], "file:///nowhere/at/all: no such file"),
        (["nosuch://x"], "nosuch://x: cannot be reached"),
    ):
        assert error(find_sources, names).startswith(said)


def test_a_named_field_makes_a_table_of_standard_input(file, sources, standard_input):
    for content, expected in (
        ('id,headline\n0,"oil, again"\n', Document("oil, again", 0)),
        ("\nheadline\tyear\noil\t2003\n", Document("oil", None, {"year": 2003})),
        ('{"headline": "oil", "id": "a"}\n', Document("oil", "a")),
    ):
        for source in sources(content.encode(), "news"):
            assert [*read_documents(source, "headline")] == [expected]
    standard_input(b"first\n")
    for source, name in ((file("first\nsecond\n"), None), ("-", "standard input")):
        assert error(read_documents, source, "x") == (
            f"{name or source}: lines of text have no field 'x'; give a table (CSV, TSV, JSONL, Parquet or a "
            "spreadsheet), or leave --field out"
        )
    assert list(read_documents(file(""), "x")) == []


JSON_ROWS = [(b"good, really", b"1.0"), (b"fine", b"true"), (b"bad", b'"neg"')]
LABELLED = (["1", "true", "neg"], ["good, really", "fine", "bad"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b'id,label,text\n7,1,"good, really"\n8,true,fine\n9, neg ,bad\n'),
        ("a.tsv", b"label\ttext\n1\tgood, really\ntrue\tfine\nneg\tbad\n"),
        ("a", b"text\tlabel\ngood, really\t1\nfine\ttrue\nbad\tneg\n"),
        ("a.jsonl", b"\n".join(b'{"text": "%s", "label": %s}' % row for row in JSON_ROWS)),
    ],
)
def test_labelled_tables(sources, name, content):
    renamed = content.replace(b"text", b"review").replace(b"label", b"stars")
    for written, fields in ((content, ()), (renamed, ("review", "stars"))):
        for source in sources(written, name):
            assert read_labelled(source, *fields) == LABELLED


def test_labelled_tables_that_cannot_be_used(file):
    lacking = "no field 'text', 'label' (fields: 'body', 'stars'); name the right ones with --field, --label-field"
    for name, content, message in [
        ("a.csv", "body,stars\ngood,1\n", f": {lacking}"),
        ("a.csv", "text,label\ngood,1\nbad, \n", ", line 3: the label 'label' is empty"),
        ("a.jsonl", '{"text": "x", "label": null}\n', ", line 1: the label 'label' is empty"),
    ]:
        path = file(content, name)
        assert error(read_labelled, path) == f"{path}{message}"
    path = file("1\tgood\n", "a.tsv")
    assert "does not name the columns 'label' and 'review'" in error(read_labelled, path, "review")


@pytest.mark.parametrize("wrong", [None, ValueError("broken")])
def test_items_come_as_they_arrive_and_an_error_after_them(wrong):
    more = Event()

    def items():
        yield 0
        more.wait(10)
        yield from range(1, 100)
        if wrong:
            raise wrong

    found, blocks = arriving(items(), 10), []
    assert next(found) == [0]
    more.set()
    with pytest.raises(ValueError, match="broken") if wrong else nullcontext():
        blocks.extend(found)
    assert [item for block in blocks for item in block] == list(range(1, 100))
    assert max(map(len, blocks)) <= 10


TYPES = {"94110  7": [94110, None, 7], "3.5 2 1e-05": [3.5, 2, 1e-05], f"{'9' * 18} 1": [int("9" * 18), 1]}
TYPES |= {cells: cells.split() for cells in ("02134 90210", "3.10 3.9", "1e5 2", "5 five", "nan inf")}


@pytest.mark.parametrize("mark", [",", "\t"])
def test_a_column_has_the_type_of_all_its_cells(file, mark):
    found = {}
    for cells in TYPES:
        rows = [f"text {number}{mark}{cell}" for number, cell in enumerate(cells.split(" "))]
        path = file("\n".join([f"text{mark}zip", *rows, ""]), "a.csv" if mark == "," else "a.tsv")
        found[cells] = [document.metadata.get("zip") for document in read(path)]
    assert found == TYPES
    path = file("text,n\n" + "".join(f"t{n},{n}\n" for n in range(5000)) + "last,007\n", "a.csv")
    assert {type(document.metadata["n"]) for document in read(path)} == {str}
    for content, ids in (("id,text\n1,a\n2,b\n", [1, 2]), ("_id,text\n1.5,a\n2,b\n", ["1.5", "2"])):
        assert [each.id for each in read(file(content, "a.csv"))] == ids


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a"])
def test_labelled_lines_are_known_everywhere(sources, name):
    labels, texts = ["pos", "neg", "pos"], ["great food", "cold soup", "lovely staff"]
    content = "".join(map("{}\t{}\n".format, labels, texts)).encode()
    for source in sources(content, name):
        assert [(each.metadata["label"], each.text) for each in read(source)] == [*zip(labels, texts, strict=True)]
    for source in sources(content, name):
        assert read_labelled(source) == (labels, texts)


def test_other_lines_with_tabs_stay_whole(file):
    for content in (
        "Go.\tVa !\nStop.\tArrête !\nGo on.\tContinue !\n",  # Translations: no label comes again.
        *("1. Fog\t3\n2. Sea\t9\n", "one\nno\ttab\nno\ttab\n", "a\tb\tc\na\tb\tc\n", "a\tb\na\t\n", "single\ttab\n"),
    ):
        assert [each.text for each in read(file(content))] == content.splitlines()


def test_a_header_is_no_label_and_dedupe_compares_the_texts_alone(tmp_path, file):
    lines = "kind\twords\npos\ta\npos\tb\nneg\tc\nneg\td\n"
    assert "no field 'text' (fields: 'kind', 'words')" in error(read, file(lines, "a.tsv"))
    assert len(read(file(lines, "a.txt"))) == 5
    named = lines.replace("kind", "label").replace("words", "text")
    for name in ("b.tsv", "b.txt"):
        assert [each.metadata["label"] for each in read(file(named, name))] == ["pos", "pos", "neg", "neg"]
    path = file("pos\tgreat food here\nneg\tcold soup today\nneg\tgreat food here\npos\tfine\n")
    assert dedupe(path, tmp_path / "b.tsv").kept == 3
    assert (tmp_path / "b.tsv").read_text() == "pos\tgreat food here\nneg\tcold soup today\npos\tfine\n"


CELLS = ['said "yes"', 'a "b" c, d', '"whole"', "tab\there", "two\nlines", '""', '"', "plain", "5\" and 6'", "é\nü"]


TABS, BARE = {"sep": "\t", "index": False}, {"columns": ["label", "text"], "header": False}
QUOTING = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)
WRITERS = [("pandas", {**TABS, **others, "quoting": quoting}) for quoting in QUOTING for others in ({}, BARE)]
WRITERS += [("polars", {"separator": "\t"}), ("duckdb", {"sep": "\t"})]


@pytest.mark.parametrize(("library", "options"), WRITERS)
def test_quotes_of_writers(tmp_path, library, options):
    table = pyarrow.table({"label": ["a", "b"] * 5, "text": CELLS, "n": range(10)})
    written = table.to_pandas() if library == "pandas" else pytest.importorskip(library).from_arrow(table)
    getattr(written, "to_csv" if library == "pandas" else "write_csv")(str(tmp_path / "a.tsv"), **options)
    assert [each.text for each in read(tmp_path / "a.tsv")] == CELLS
    assert read_labelled(tmp_path / "a.tsv") == (["a", "b"] * 5, CELLS)
    dedupe(tmp_path / "a.tsv", tmp_path / "b.tsv", threshold=1)
    assert {each.text for each in read(tmp_path / "b.tsv")} <= set(CELLS)


RAW = ['"Great," he said, "very."', '"whole"', 'say "yes"', '"open', '5" pipe', '""', "plain"]


@pytest.mark.parametrize("cell", RAW[:-1])
def test_quotation_marks_that_are_letters(tmp_path, file, cell):
    path = file(f"label\ttext\na\t{cell}\nb\tplain\n", "a.tsv")
    if cell != '""':
        assert [each.text for each in read(path)] == [cell, "plain"]
    path = file("".join(f"a\t{text}\n" for text in RAW), "b.tsv")
    assert read_labelled(path)[1] == RAW
    dedupe(path, tmp_path / "c.tsv", threshold=1)
    assert set((tmp_path / "c.tsv").read_text().splitlines()) <= set(path.read_text().splitlines())


# Any characters, halves of surrogate pairs too, which no file can hold.
ANY_TEXT = st.text(st.characters() | st.sampled_from("\ud83d\udc00"), min_size=1, max_size=8).filter(str.strip)
FIELDS = st.dictionaries(st.text("abc", min_size=1), ANY_TEXT | st.integers(-9, 9) | st.booleans(), max_size=2)


@pytest.mark.parametrize("suffix", ["npy", "jsonl", "csv", "parquet"])
@settings(max_examples=30)
@given(rows=st.lists(st.tuples(ANY_TEXT, FIELDS), min_size=1, max_size=4), named=st.booleans(), turned=st.booleans())
def test_embeddings_are_inputs(tmp_path_factory, suffix, rows, named, turned):
    path = tmp_path_factory.mktemp("embeddings") / f"a.{suffix}"
    documents = [Document(text, f"id {n}" if named else None, fields) for n, (text, fields) in enumerate(rows)]
    embeddings = np.random.default_rng(0).normal(size=(len(rows), 3)).astype(np.float32)
    write_embeddings(path, documents, np.asfortranarray(embeddings) if turned else embeddings)
    if suffix == "npy":
        assert (np.load(path) == embeddings).all()
        return
    for found, wanted, vector in zip(read(path), documents, embeddings, strict=True):
        numbers = [found.metadata.pop(key) for key in list(found.metadata) if key.startswith("embedding")]
        assert (np.array(numbers, np.float32).ravel() == vector).all()
        plain = {key: well_formed(value) if isinstance(value, str) else value for key, value in wanted.metadata.items()}
        assert found == Document(well_formed(wanted.text), wanted.id, plain)


@pytest.mark.parametrize("indent", [None, 2])
def test_json_arrays(tmp_path, file, sources, indent):
    rows = [{"text": f"text {number}", "id": number, "tags": ["a", {"b": "]"}]} for number in range(200)]
    content = json.dumps(rows, indent=indent).encode()
    expected = [Document(row["text"], row["id"], {"tags": row["tags"]}) for row in rows]
    for source in sources(content, "a.json"):
        assert read(source) == expected
    assert dedupe(file(content, "a.json"), tmp_path / "b.json").kept == 200
    assert read(tmp_path / "b.json") == expected
    assert read(file("[]", "c.json")) == []


def test_a_table_from_a_pipe_means_what_it_means_as_a_file(file):
    content = b"text,zip\na,02134\nb,94110\n"
    script = (
        "import sys; from ctx_embed.reading.rows import read_documents\n"
        "print([document.metadata for document in read_documents('-', 'text')])"
    )
    with file(content, "a.csv").open("rb") as stdin:
        utf16 = content.decode().encode("utf-16")
        for given in ({"input": utf16}, {"input": gzip.compress(content)}, {"stdin": stdin}):
            done = subprocess.run([sys.executable, "-c", script], **given, capture_output=True, check=True)
            assert done.stdout.decode().strip() == str([{"zip": "02134"}, {"zip": "94110"}])


def test_an_object_in_the_field_metadata_becomes_fields(file):
    rows = [{"text": "a", "n": 1, "metadata": {"zip": "007"}}, {"text": "b", "n": 1, "metadata": {"n": 2}}]
    rows += [{"text": "c", "metadata": '{"n": 2}'}, {"text": "d", "metadata": "[1]"}]
    path = file("\n".join(map(json.dumps, rows)), "a.jsonl")
    expected = [{"n": 1, "zip": "007"}, {"n": 1, "metadata": {"n": 2}}, {"n": 2}, {"metadata": "[1]"}]
    assert [each.metadata for each in read(path)] == expected


NAMES = st.lists(st.text('abç text,;|\t"\n0', min_size=1, max_size=6).filter(str.strip), max_size=3, unique=True)
LETTERS = st.characters(exclude_characters="\0\r", exclude_categories=["Cs"], max_codepoint=0x2FF)
CELL = st.text('a"\t\n ,', max_size=5) | st.text(LETTERS, max_size=8)
ROWS = st.lists(st.tuples(CELL.filter(str.strip), CELL, CELL, CELL), min_size=1, max_size=6)


@pytest.mark.filterwarnings("ignore::ctx_embed.reading.tables.ReadingWarning")
@settings(max_examples=150)
@given(
    names=NAMES,
    rows=ROWS,
    delimiter=st.sampled_from(",;\t|"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_tables_are_those_of_pandas(tmp_path_factory, names, rows, delimiter, encoding, end, quoting):
    # A header in which the suffix's delimiter occurs has fields already.
    unfit = "," if delimiter in ";|" else "\0"
    names = [name for name in names if unfit not in name and name.strip() not in ("text", "id", "_id", "metadata")]
    table = [[*names, "text", ""], *([*cells[: len(names)], text, ""] for text, *cells in rows)]
    path = tmp_path_factory.mktemp("table") / ("a.tsv" if delimiter == "\t" else "a.csv")
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(table)
    frame = pandas.read_csv(path, sep=delimiter, encoding=encoding, dtype=str, keep_default_na=False, header=None)
    assert frame.iloc[0, :-1].tolist() == table[0][:-1]
    found = read(path)
    assert [document.text for document in found] == frame.iloc[1:, len(names)].tolist()
    filled = [{name: cell for name, cell in zip(names, row, strict=False) if cell} for row in frame.iloc[1:].values]
    assert [{name: str(value) for name, value in document.metadata.items()} for document in found] == filled


def test_the_delimiter_is_that_of_records_and_not_of_lines(file):
    for mark, name in ((";", "semicolons"), ("|", "bars"), ("\t", "tabs")):
        content = f'id{mark}text\n1{mark}"a, b\nc, d\ne, f"\n2{mark}"g, h"\n'
        with pytest.warns(ReadingWarning, match=f"a.csv: fields are separated by {name}"):
            found = [(each.id, each.text) for each in read(file(content, "a.csv"))]
        assert found == [(1, "a, b\nc, d\ne, f"), (2, "g, h")]
    # A header of one field, and texts with commas.
    assert [each.text for each in read(file("text\none; two\nthree; four\n", "a.csv"))] == ["one; two", "three; four"]
    assert "(fields: 'a', 'b')" in error(read, file("a;b\n1;2\n", "a.csv"))


def test_fields_are_named_by_paths(tmp_path, file):
    row = {"message": {"body": "hello", "by": {"name": "Ann", "id": "m1"}}, "a.b": "dot", "a": {"b": "inner"}, "n": 1}
    fields = Fields("message.body", "message.by.id", "message.by.name")
    path = file(json.dumps(row) + "\n", "a.jsonl")
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    for source in (path, tmp_path / "a.parquet"):
        (found,) = read_documents(source, fields)
        assert found == Document("hello", "m1", {"title": "Ann", "a.b": "dot", "a": {"b": "inner"}, "n": 1})
        (found,) = read_documents(source, "a.b")
        assert (found.text, found.metadata["a"], found.metadata["message"]) == ("dot", {"b": "inner"}, row["message"])
        said = error(read_documents, source, "message.text")
        assert "no field 'message.text' (fields: 'message.body', 'message.by.name', 'message.by.id', 'a.b', " in said
    assert error(Fields, "a", "a").endswith("must differ, got 'a', 'a'")


def written(table: pandas.DataFrame, path: Path) -> Path:
    """Write a table as its suffix says, packed or not."""
    if ".jsonl" in path.name:
        table.to_json(path, orient="records", lines=True)
    elif path.suffix in (".parquet", ".xlsx"):
        getattr(table, "to_parquet" if path.suffix == ".parquet" else "to_excel")(path, index=False)
    else:
        table.to_csv(path, sep="," if ".csv" in path.name else "\t", index=False)
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "xlsx"])
def test_several_fields_are_one_text(tmp_path, suffix):
    table = pandas.DataFrame(
        {"a": ["one", None, "three"], "n": [1, 2, 3], "b": ["x", "y", ""], "label": ["+", "-", "+"]}
    )
    path = written(table, tmp_path / f"table.{suffix}")
    assert [document.text for document in read_documents(path, ["b", "a"])] == ["x\none", "y", "three"]
    (first, *_) = read_documents(path, Fields(("a", "b"), "n"))
    assert (first.text, str(first.id), first.metadata) == ("one\nx", "1", {"label": "+"})
    expected = ["+", "-", "+"], ["one\nx", "y", "three"]
    assert read_labelled(path, ("a", "b")) == expected == read_labelled(path, Fields("b", "n", "a"))
    assert "no field 'c' (fields: 'a', 'n', 'b', 'label')" in error(read_documents, path, ["a", "c"])
    assert error(read_documents, path, "a,b").endswith("name the right one with --field, once for each")
    assert error(read_labelled, path, ("a", "label")).endswith("must differ, got 'a', 'label', 'label'")


def test_rows_of_spreadsheets(tmp_path, file):
    book = openpyxl.Workbook()
    first = book.active
    for row in (
        [],
        ["text", "year", "day", None],
        ["a film", 2001, datetime.date(2020, 1, 2), None],
        [],
        [7, 1.5, True],
        # Excel writes characters that XML lacks, and what looks like that, by their numbers.
        ["one_x000D_\ntwo _x0041__x0042_ x_x0041 _x005F_x000D_", None, "_X0041_"],
    ):
        first.append(row)
    book.save(tmp_path / "a.xlsx")
    expected = [
        Document("a film", None, {"year": 2001, "day": "2020-01-02"}),
        Document("7", None, {"year": 1.5, "day": True}),
        Document("one\r\ntwo AB x_x0041 _x000D_", None, {"day": "_X0041_"}),
    ]
    assert read(tmp_path / "a.xlsx") == expected
    assert read_labelled(tmp_path / "a.xlsx", "text", "day")[0] == ["2020-01-02", "True", "_X0041_"]
    for name, row in (("Second", ["id", "text"]), ("Third", ["no", "columns"])):
        sheet = book.create_sheet(name)
        sheet.append(row)
        sheet.append(["x1", "more"])
    book.save(tmp_path / "b.xlsm")
    with pytest.warns(ReadingWarning, match="left out the sheet 'Third' \\(no field 'text'"):
        found = read(tmp_path / "b.xlsm")
    assert found[3] == Document("more", "x1", {"sheet": "Second"})
    book.create_sheet("Fourth").append(["day", "text"])
    book["Fourth"].append([None, "no day"])
    book.save(tmp_path / "c.xlsx")
    said = "c.xlsx, sheet 'Fourth', row 2: the label 'day' is empty"
    assert said in error(read_labelled, tmp_path / "c.xlsx", "text", "day")
    whole = (tmp_path / "a.xlsx").read_bytes()
    for content in (b"", b"PK", whole[:-300], bytes(1000)):
        assert "a.xls: cannot be read as a spreadsheet (" in error(read, file(content, "a.xls"))


def test_a_hostile_spreadsheet_costs_bounded_memory(tmp_path, file, members):
    book = openpyxl.Workbook()
    book.active.append(["far"])
    book.save(tmp_path / "a.xlsx")
    parts = members(tmp_path / "a.xlsx")
    far = b'</row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'
    parts["xl/worksheets/sheet1.xml"] = parts["xl/worksheets/sheet1.xml"].replace(b"</row>", far)
    assert "a.xlsx: ends the process that reads it" in error(read, file(parts, "a.xlsx"))


def test_columns_of_bytes_are_left_out_and_named(file):
    columns = {"image": [{"bytes": b"\xff", "path": "x"}], "png": [[b"\xff"]], "raw": [b"\xff"], "n": [1]}
    path = file(table(text=["a"], **columns), "a.parquet")
    with pytest.warns(ReadingWarning) as warned:
        assert read(path) == [Document("a", None, {"n": 1})]
    assert [str(each.message).split(": ")[1] for each in warned] == [
        f"left out the column '{name}', which holds bytes" for name in ("image", "png", "raw")
    ]


def test_cells_too_many_or_too_few_at_the_right(file):
    content = "text,year,,\na,1,,\nb\t,2\nc,3,,,,\nd,4,x\n"
    assert [each.metadata for each in read(file(content, "a.csv"))] == [
        {"year": 1},
        {"year": 2},
        {"year": 3},
        {"year": 4, "column 3": "x"},
    ]
    # A word in a row that ends early makes a column one of words, too.
    cells = [each.metadata["n"] for each in read(file("text,n,\na,1,\nb,x\n", "a.csv"))]
    assert cells == ["1", "x"]
    assert "line 2: 1 field, but the header has 3" in error(read, file("text,n,\na\n", "a.csv"))
    assert "line 2: 4 fields, but the header has 3" in error(read, file("text,n,\na,1,,x\n", "a.csv"))


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.csv", "a.jsonl", "a.csv.gz"])
@pytest.mark.parametrize("by", ["train", "reader", "reader of a large file"])
def test_a_file_of_labels_is_read_once_and_a_large_one_of_tabs_twice(tmp_path, name, by, monkeypatch):
    if "large" in by:
        monkeypatch.setattr(tables, "_HELD_BYTES", 1000)
    rows = pandas.DataFrame({"label": ["pos", "neg"] * 20_000, "text": ["a good film", "a dull film"] * 20_000})
    path, counts = written(rows, tmp_path / name), []

    class Counted(io.FileIO):
        read, readall = io.RawIOBase.read, io.RawIOBase.readall

        def readinto(self, buffer):
            counts.append(super().readinto(buffer))
            return counts[-1]

    monkeypatch.setattr(opening, "open_regular", lambda path: io.BufferedReader(Counted(path)))
    if by == "train":
        data, sha256 = _read(str(path), TrainingJob(file=path, output=tmp_path / "model"))
        assert (len(data.texts), sha256) == (len(rows), hashlib.sha256(path.read_bytes()).hexdigest())
    else:
        assert len(read_labelled(path)[0]) == len(rows)
    # What was buffered to see the format may be read twice.
    size, passes = path.stat().st_size, 2 if "large" in by and name in ("a.tsv", "a.txt") else 1
    assert passes * size <= sum(counts) <= passes * size + (1 << 18)
