"""The same table means the same, whoever wrote it and whatever reads it; a value comes back as it was written."""

import csv
import decimal
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctx_embed import dedupe
from ctx_embed.rows.reading import read_documents, read_labelled
from ctx_embed.rows.writing import write_embeddings
from ctx_embed.texts import Document
from tests.helpers.errors import error


def read(path, *arguments) -> list[Document]:
    return list(read_documents(path, *arguments))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Types of columns


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["02134", "90210"], ["02134", "90210"]),
        (["94110", "", "7"], [94110, None, 7]),
        (["3.10", "3.9", "3.11"], ["3.10", "3.9", "3.11"]),
        (["3.5", "2", "-0.25"], [3.5, 2, -0.25]),
        (["1e-05", "1e+16"], [1e-05, 1e16]),
        (["1e5", "2"], ["1e5", "2"]),
        (["5", "five"], ["5", "five"]),
        (["٣", "3"], ["٣", "3"]),
        (["9" * 18, "1"], [int("9" * 18), 1]),
        (["nan", "inf"], ["nan", "inf"]),
        (["1_000", "1"], ["1_000", "1"]),
    ],
)
@pytest.mark.parametrize("mark", [",", "\t"])
def test_a_column_has_the_type_of_all_its_cells(tmp_path, cells, values, mark):
    rows = [f"text {number}{mark}{cell}" for number, cell in enumerate(cells)]
    path = write(tmp_path / ("a.csv" if mark == "," else "a.tsv"), "\n".join([f"text{mark}zip", *rows, ""]))
    assert [document.metadata.get("zip") for document in read(path)] == values


def test_the_last_cell_decides_too(tmp_path):
    path = write(tmp_path / "a.csv", "text,n\n" + "".join(f"t{n},{n}\n" for n in range(5000)) + "last,007\n")
    assert {type(document.metadata["n"]) for document in read(path)} == {str}
    for content, ids in (("id,text\n1,a\n2,b\n", [1, 2]), ("_id,text\n1.5,a\n2,b\n", ["1.5", "2"])):
        assert [each.id for each in read(write(path, content))] == ids


def test_decimals_of_parquet_lose_no_digit(tmp_path):
    long, short = decimal.Decimal("12345678901234567890.10"), decimal.Decimal("2.50")
    columns = {
        "text": ["a", "b"],
        "long": pyarrow.array([long, short], pyarrow.decimal128(38, 2)),
        "short": pyarrow.array([short, None], pyarrow.decimal128(9, 2)),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    found = [document.metadata for document in read(tmp_path / "a.parquet")]
    assert found == [{"long": str(long), "short": 2.5}, {"long": "2.50"}]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers().map(str), st.floats().map(repr), st.text("0123456789.-+e ", max_size=6))))
def test_what_is_read_can_be_written_again(tmp_path_factory, cells):
    cells = [cell for cell in cells if cell]
    path = tmp_path_factory.mktemp("cells") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "cell"), *(("x", cell) for cell in cells)])
    values = [document.metadata["cell"] for document in read(path)]
    assert list(map(str, values)) == cells
    assert len({isinstance(value, str) for value in values}) < 2


# label<TAB>text


REVIEWS = "pos\tgreat food\nneg\tcold soup\npos\tlovely staff\n"
LABELLED = [("great food", "pos"), ("cold soup", "neg"), ("lovely staff", "pos")]


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a", "a.tsv.gz", "-"])
def test_labelled_lines_are_known_everywhere(tmp_path, monkeypatch, name):
    content = gzip.compress(REVIEWS.encode()) if name.endswith("gz") else REVIEWS.encode()
    path = write(tmp_path / name.replace("-", "input"), content)
    source = path
    if name == "-":
        source = "-"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert [(each.text, each.metadata["label"]) for each in read(source)] == LABELLED
    assert read_labelled(path) == (["pos", "neg", "pos"], [text for text, _ in LABELLED])


@pytest.mark.parametrize(
    "content",
    [
        "Go.\tVa !\nStop.\tArrête !\nGo on.\tContinue !\n",  # Translations: no label comes again.
        "1. Fog\t3\n2. Sea\t9\n",
        "one\nno\ttab\nno\ttab\n",
        "a\tb\tc\na\tb\tc\n",
        "a\tb\na\t\n",
        "single\ttab\n",
    ],
)
def test_other_lines_with_tabs_stay_whole(tmp_path, content):
    path = write(tmp_path / "a.txt", content)
    assert [each.text for each in read(path)] == content.splitlines()


def test_a_header_is_no_label(tmp_path):
    lines = "kind\twords\npos\ta\npos\tb\nneg\tc\nneg\td\n"
    assert "no field 'text' (fields: 'kind', 'words')" in error(read, write(tmp_path / "a.tsv", lines))
    assert len(read(write(tmp_path / "a.txt", lines))) == 5
    named = lines.replace("kind", "label").replace("words", "text")
    for name in ("b.tsv", "b.txt"):
        assert [each.metadata["label"] for each in read(write(tmp_path / name, named))] == ["pos", "pos", "neg", "neg"]


def test_dedupe_compares_the_texts_of_labelled_lines(tmp_path):
    path = write(tmp_path / "a.txt", "pos\tgreat food here\nneg\tcold soup today\nneg\tgreat food here\npos\tfine\n")
    assert dedupe(path, tmp_path / "b.tsv").kept == 3
    assert (tmp_path / "b.tsv").read_text() == "pos\tgreat food here\nneg\tcold soup today\npos\tfine\n"


# Quotation marks in TSV


CELLS = ['said "yes"', 'a "b" c, d', '"whole"', "tab\there", "two\nlines", '""', '"', "plain", "5\" and 6'", "é\nü"]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("header", [True, False])
def test_quotes_of_pandas(tmp_path, quoting, header):
    frame = pandas.DataFrame({"label": ["a", "b"] * 5, "text": CELLS, "n": range(10)})
    frame = frame if header else frame[["label", "text"]]
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False, header=header, quoting=quoting)
    assert [each.text for each in read(tmp_path / "a.tsv")] == CELLS
    assert read_labelled(tmp_path / "a.tsv") == (["a", "b"] * 5, CELLS)
    dedupe(tmp_path / "a.tsv", tmp_path / "b.tsv", threshold=1)
    assert {each.text for each in read(tmp_path / "b.tsv")} <= set(CELLS)


RAW = ['"Great," he said, "very."', '"whole"', 'say "yes"', '"open', '5" pipe', '""', "plain"]


@pytest.mark.parametrize("cell", RAW[:-1])
def test_quotation_marks_that_are_letters(tmp_path, cell):
    path = write(tmp_path / "a.tsv", f"label\ttext\na\t{cell}\nb\tplain\n")
    if cell != '""':
        assert [each.text for each in read(path)] == [cell, "plain"]
    path = write(tmp_path / "b.tsv", "".join(f"a\t{text}\n" for text in RAW))
    assert read_labelled(path)[1] == RAW
    dedupe(path, tmp_path / "c.tsv", threshold=1)
    assert set((tmp_path / "c.tsv").read_text().splitlines()) <= set(path.read_text().splitlines())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text('a"\t\n ', min_size=1, max_size=5).filter(str.strip), min_size=1, max_size=8))
def test_any_text_comes_back_from_tsv(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("cells") / "a.tsv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([("id", "text"), *enumerate(cells)])
    assert [(each.id, each.text) for each in read(path)] == list(enumerate(cells))


# What our commands write


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_embeddings_are_inputs(tmp_path, suffix):
    documents = [Document('said "a"', "x", {"zip": "007", "n": 1}), Document("two\nlines", "y", {"zip": "1"})]
    write_embeddings(tmp_path / f"a.{suffix}", documents, np.ones((2, 3), np.float32) / 3)
    for found, wanted in zip(read(tmp_path / f"a.{suffix}"), documents, strict=True):
        plain = {key: value for key, value in found.metadata.items() if not key.startswith("embedding")}
        assert Document(found.text, found.id, plain) == wanted


@pytest.mark.parametrize("indent", [None, 2])
def test_json_arrays(tmp_path, monkeypatch, indent):
    rows = [{"text": f"text {number}", "id": number, "tags": ["a", {"b": "]"}]} for number in range(200)]
    path = write(tmp_path / "a.json", json.dumps(rows, indent=indent))
    expected = [Document(row["text"], row["id"], {"tags": row["tags"]}) for row in rows]
    assert read(path) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert read("-") == expected
    assert dedupe(path, tmp_path / "b.json").kept == 200
    assert read(tmp_path / "b.json") == expected
    assert read(write(tmp_path / "c.json", "[]")) == []


def test_a_table_from_a_pipe_means_what_it_means_as_a_file(tmp_path):
    content = b"text,zip\na,02134\nb,94110\n"
    script = (
        "import sys; from ctx_embed.rows.reading import read_documents\n"
        "print([document.metadata for document in read_documents('-', 'text')])"
    )
    with write(tmp_path / "a.csv", content).open("rb") as file:
        for given in ({"input": content.decode().encode("utf-16")}, {"input": gzip.compress(content)}, {"stdin": file}):
            done = subprocess.run([sys.executable, "-c", script], **given, capture_output=True, check=True)
            assert done.stdout.decode().strip() == str([{"zip": "02134"}, {"zip": "94110"}])


def test_an_object_in_the_field_metadata_becomes_fields(tmp_path):
    rows = [{"text": "a", "n": 1, "metadata": {"zip": "007"}}, {"text": "b", "n": 1, "metadata": {"n": 2}}]
    rows += [{"text": "c", "metadata": '{"n": 2}'}, {"text": "d", "metadata": "[1]"}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    expected = [{"n": 1, "zip": "007"}, {"n": 1, "metadata": {"n": 2}}, {"n": 2}, {"metadata": "[1]"}]
    assert [each.metadata for each in read(path)] == expected


@pytest.mark.parametrize(("library", "options"), [("polars", {"separator": "\t"}), ("duckdb", {"sep": "\t"})])
def test_quotes_of_other_writers(tmp_path, library, options):
    table = pytest.importorskip(library).from_arrow(pyarrow.table({"text": CELLS, "n": range(len(CELLS))}))
    table.write_csv(str(tmp_path / "a.tsv"), **options)
    assert [each.text for each in read(tmp_path / "a.tsv")] == CELLS
