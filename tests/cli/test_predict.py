import csv
import json
import re
import zipfile
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import openpyxl
import openpyxl.chart
import pandas
import pyarrow
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pyarrow import parquet

from ctx_embed import TextClassifier
from ctx_embed.cli.predict import MACROS, MACROS_OF_TYPE, WRITERS, Row, _with_cells
from ctx_embed.errors import UnknownTextsWarning
from ctx_embed.reading.rows import read_documents
from ctx_embed.reading.tables import JSONL, ReadingWarning, Table
from tests.helpers.cli import Command, file
from tests.helpers.errors import error

COMMAND = Command("predict")
run, succeeds, fails = COMMAND.run, COMMAND.succeeds, COMMAND.fails

TEXTS = ["a good film", "a fine night", "so glad", "a joy", "a bad film", "a dull night", "so sad", "a poor book"]
LABELS = ["pos"] * 4 + ["neg"] * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A classifier over the shipped model."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    TextClassifier().fit(TEXTS, LABELS).save(folder)
    return folder


def test_a_row_for_each_line_that_is_not_blank_in_any_format(model):
    lines = succeeds(model, file("new.txt", "a glad film", "", "a sad\tbook\x1b", "  ")).split("\n")
    expected = TextClassifier.load(model).predict_proba(["a glad film", "a sad\tbook\x1b"]).max(1)
    assert lines == [f"pos\t{expected[0]:.4f}\ta glad film", f"neg\t{expected[1]:.4f}\ta sad book ", ""]
    source = file("new.txt", "a glad film", "", 'a sad, "sad"\tbook')
    for name in ("found.tsv", "found.jsonl", "found.json", "found.csv"):
        assert succeeds(model, source, "-o", name) == f"2 predictions in {name}\n"
        found = [(document.text, document.metadata["label"]) for document in read_documents(name)]
        assert found == [("a glad film", "pos"), ('a sad, "sad"\tbook', "neg")]
    assert Path("found.jsonl").read_text() == succeeds(model, source, "--jsonl")
    before = Path("found.json").read_text()
    assert before == succeeds(model, source, "--json")
    broken = file("broken.jsonl", '{"text": "a"}', "{")
    for arguments, message in (
        ((source, "-o", "found.xml"), "cannot write found.xml: its name must end in .jsonl, .json, .csv, .tsv"),
        ((broken, "-o", "found.json", "--overwrite"), "broken.jsonl, line 2: not JSON"),
        ((broken, "-o", broken, "--overwrite"), "cannot write broken.jsonl: it is the input; choose another name"),
    ):
        assert message in fails(model, *arguments)
    assert Path("found.json").read_text() == before


def test_json(model):
    source = file("new.jsonl", *(json.dumps({"text": text}) for text in ("a glad film", "", "a sad book")))
    rows = json.loads(succeeds(model, source, "--json"))
    assert rows == [json.loads(line) for line in succeeds(model, source, "--jsonl").splitlines()]
    assert [row["label"] for row in rows] == ["pos", None, "neg"]
    assert rows[1] == {"text": "", "label": None, "probabilities": None}
    expected = TextClassifier.load(model).predict_proba("a glad film").tolist()
    for options, off in ((), 1e-6), (("--device", "cpu"), 1e-4):
        first, *_ = json.loads(succeeds(model, source, "--json", *options))
        assert [*first["probabilities"].values()] == pytest.approx(expected, abs=off)
    (row,) = json.loads(succeeds(model, "-", "--json", "--field", "a", input='{"a": "sad \\ud800", "b": 1}\n'))
    assert (row["a"], row["b"]) == ("sad \ufffd", 1)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".xlsx"])
def test_no_column_is_lost_and_predictions_on_predictions_have_names_of_their_own(model, suffix):
    file("0.csv", "id,text,zip,stars,label", "a1,a glad film,02134,5,x", "a2,,94110,,y", "a3,a sad book,90210,1,z")
    for number in range(3):
        succeeds(model, f"{number}{suffix if number else '.csv'}", "-o", f"{number + 1}{suffix}")
    given, found = list(read_documents("0.csv")), list(read_documents(f"3{suffix}"))
    assert [document.id for document in found] == ["a1", "a2", "a3"]
    for before, after in zip(given, found, strict=True):
        kept = {name: after.metadata[name] for name in ("zip", "stars", "label") if name in after.metadata}
        assert kept == before.metadata
    assert [document.metadata.get("predicted_label") for document in found] == ["pos", None, "neg"]
    labels = ["label", "predicted_label", "predicted_2_label", "predicted_3_label"]
    assert [name for name in found[0].metadata if name.endswith("label")] == labels


def test_several_labels():
    labels = [[label, *(["film"] if "film" in text else [])] for label, text in zip(LABELS, TEXTS, strict=True)]
    TextClassifier().fit(TEXTS, labels).save("several")
    source = file("new.csv", "text,n", "a good film,1", ",2", "so sad,3")
    rows = json.loads(succeeds("several", source, "--json"))
    assert [row["labels"] for row in rows] == [["film", "pos"], None, ["neg"]]
    assert list(found := rows[0]["probabilities"]) == ["film", "neg", "pos"]
    assert succeeds("several", source).startswith(f"film,pos\t{found['film']:.4f},{found['pos']:.4f}\ta good film\n")
    source = file("test.tsv", "film,pos\ta glad film", "neg\ta sad film", "\ta book")
    result = json.loads(succeeds("several", source, "--evaluate", "--json"))
    assert result["exact"] <= result["accuracy"]
    assert "confusion" not in result


def test_probabilities_in_tables_are_read_as_numbers_and_an_explanation_has_no_minus_zero():
    for p, written in ((0.5, "0.5"), (1.0, "1.0"), (0.123456, "0.1235"), (0.00001, "0.0")):
        row = Row(1, {}, "a", {"label": "pos", "probabilities": {"pos": p}})
        assert row.cells(digits="") == ["pos", written]
    # Of a text without known words.
    why = {"label": "pos", "logit": -0.3, "meaning": 0.1, "bias": -0.399, "words": {}, "of_meaning": {"sad": -0.5}}
    row = Row(1, {}, "a", {"label": "pos", "probabilities": {"pos": 0.5}, "explanations": [why]})
    assert row.cells()[2] == "pos -0.30 = meaning +0.10 (sad -0.50), words +0.00 (none), bias -0.40"


CELLS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, encoding=st.sampled_from(["utf-8", "utf-8-sig"]), end=st.sampled_from(["\n", "\r\n"]))
@example(rows=[("", "\r", "a\r\n")], encoding="utf-8", end="\n")
def test_a_table_comes_back_cell_by_cell(model, delimiter, rows, encoding, end):
    suffix = ".tsv" if delimiter == "\t" else ".csv"
    rows = [["", "Message", "label"], *rows]
    with open(f"in{suffix}", "w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    run(model, f"in{suffix}", "--field", "Message", "-o", f"out{suffix}", "--overwrite")
    given, found = (
        pandas.read_csv(f"{name}{suffix}", sep=delimiter, header=None, dtype=str, keep_default_na=False)
        for name in ("in", "out")
    )
    assert found.iloc[:, :3].equals(given)
    assert found.iloc[0, 3:].tolist() == ["predicted_label", "predicted_probability"]
    assert set(found.iloc[1:, 3]) <= {"pos", "neg", ""}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet", ".xlsx"])
def test_halves_of_emoji_and_no_characters_are_written_as_unknown_ones(model, suffix):
    first = {"text": "great \ud800 end", "na\udfffme": "a\ufffeb\uffff"}
    second = {"text": "great \U0001f600", "na\udfffme": "1", "more": "than the first row"}
    succeeds(model, file("in.jsonl", json.dumps(first), json.dumps(second)), "-o", f"out{suffix}")
    first, second = read_documents(f"out{suffix}")
    assert (first.text, second.text) == ("great \ufffd end", "great \U0001f600")
    assert first.metadata["na\ufffdme"].translate({0xFFFE: 0xFFFD, 0xFFFF: 0xFFFD}) == "a\ufffdb\ufffd"
    assert second.metadata["more"] == "than the first row"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".xlsx"])
def test_a_table_of_little_but_empty_cells_is_refused(suffix):
    """Its size would be the square of the input's."""
    found, table = {"label": "a", "probabilities": {"a": 1.0}}, Table("odd", JSONL, {}, iter(()))
    rows = (Row(number, {"text": "a", f"k{number}": 1}, "a", found) for number in range(10_000))
    with Path("out").open("w") as file:
        said = error(WRITERS[suffix], file, rows, table)
    assert said == "a table of these rows would have 100,010,000 cells, 20,000 of them filled; write .jsonl"
    wide = iter([Row(1, dict.fromkeys(map(str, range(20_000)), "a"), "a", found)])
    if suffix == ".xlsx":
        assert "at most 16,384 columns, got 20,002" in error(WRITERS[suffix], None, wide, table)


def test_what_a_format_cannot_hold_and_a_missing_library(model, monkeypatch):
    mixed = file("in.jsonl", '{"text": "a glad film", "n": 1}', '{"text": "so sad", "n": "a"}')
    assert "must have values of one type" in fails(model, mixed, "-o", "out.parquet")
    long = file("long.txt", "sad " * 9000)
    assert "a cell of a sheet has at most 32,767 characters; write .csv" in fails(model, long, "-o", "out.xlsx")
    monkeypatch.setattr("ctx_embed.cli.predict.find_spec", lambda name: None)
    assert "writing out.xlsx needs the extra documents: pip" in fails(model, long, "-o", "out.xlsx")


def test_parquet_comes_back_with_its_types_and_pictures(model):
    when = pyarrow.array([1, 2], pyarrow.timestamp("ns"))
    columns = {"body": ["a glad film", "so sad"], "when": when, "png": [b"\xff", b""]}
    parquet.write_table(pyarrow.table(columns), "in.parquet")
    with pytest.warns(ReadingWarning, match="left out the column 'png', which holds bytes"):
        succeeds(model, "in.parquet", "--field", "body", "-o", "out.parquet")
    found = parquet.read_table("out.parquet")
    assert found.select(list(columns)).equals(parquet.read_table("in.parquet"))
    assert found["label"].to_pylist() == ["pos", "neg"]


def test_a_table_becomes_a_workbook(model):
    source = file("in.csv", "body,label,version", "=a glad film,1.5,1.10", '"so sad, \x01 and",,2')
    succeeds(model, source, "--field", "body", "-o", "out.xlsx")
    sheet = openpyxl.load_workbook("out.xlsx").active
    first, second = ["=a glad film", 1.5, "1.10", "pos"], ["so sad, \ufffd and", None, "2", "neg"]
    assert [[cell.value for cell in row[:-1]] for row in sheet][1:] == [first, second]
    assert [cell.data_type for cell in sheet["A"]] == ["s"] * 3


def test_a_workbook_comes_back_cell_by_cell(model):
    book = openpyxl.Workbook()
    for row, cells in (2, ["body", "label", "sum"]), (3, ["a glad film", 1.5, "=1+1"]), (5, ["so sad", "1.10", None]):
        for column, value in enumerate(cells, 2):
            book.active.cell(row, column, value)
    book.create_sheet("other").append(["no column of texts"])
    book.create_sheet("more").append(["body"])
    book["more"].append(["so sad"])
    book.save("in.xlsx")
    with pytest.warns(ReadingWarning, match="left out the sheet 'other'"):
        succeeds(model, "in.xlsx", "--field", "body", "-o", "out.xlsx")
    found = openpyxl.load_workbook("out.xlsx")
    for sheet in book:
        for cell in chain.from_iterable(sheet):
            same = found[sheet.title][cell.coordinate]
            assert (same.value, same.data_type) == (cell.value, cell.data_type)
    assert [cell.value for cell in found.active["E"]] == [None, "predicted_label", "pos", None, "neg"]
    assert [cell.value for cell in found["more"]["B"]] == ["predicted_label", "neg"]
    assert found["other"].max_column == 1


# Formulas with stored values: a text, a date, a truth value, an error and a number.
FORMULAS = (
    '<c r="B2" t="str"><f>"1"&amp;"0"</f><v>10</v></c><c r="C2" s="1"><f>TODAY()</f><v>43832</v></c>'
    '<c r="D2" t="b"><f>1=1</f><v>1</v></c>',
    '<c r="B3" t="e"><f>1/0</f><v>#DIV/0!</v></c><c r="C3"><f t="shared" ref="C3" si="0">B3+1</f><v>2.5</v></c>',
)


@pytest.mark.parametrize(("suffix", "prefix"), [("xlsx", ""), ("xlsx", "x:"), ("xlsm", "")])
def test_a_workbook_keeps_its_charts_and_the_values_of_formulas(model, suffix, prefix):
    book = openpyxl.Workbook()
    for row in (["text", "a", "b", "c"], ["a glad film"], ["so sad"]):
        book.active.append(row)
    # Empty cells with a style, of which the classifier's columns take some.
    for place in ("E2", "H2"):
        book.active[place].number_format = "yyyy-mm-dd"
    book.active.add_chart(openpyxl.chart.BarChart())
    book.save("plain.xlsx")
    of_workbook, macros = MACROS_OF_TYPE[::-1] if suffix == "xlsm" else (b"", b"")
    with zipfile.ZipFile("plain.xlsx") as plain, zipfile.ZipFile(f"in.{suffix}", "w") as given:
        for name in plain.namelist():
            content = plain.read(name).replace(of_workbook, macros).decode()
            if name == "xl/worksheets/sheet1.xml":
                for row, cells in enumerate(FORMULAS, 2):
                    content = re.sub(rf'(<c r="A{row}".*?</c>)', rf"\1{cells}", content)
                content = re.sub("<(/?)(?=[a-z])", rf"<\1{prefix}", content)
                content = content.replace("xmlns=", f"xmlns:{prefix[0]}=" if prefix else "xmlns=")
            given.writestr(name, content)
        if suffix == "xlsm":
            given.writestr(f"xl/{MACROS}", b"macros")
    with pytest.warns(ReadingWarning, match="left out the macros") if suffix == "xlsm" else nullcontext():
        succeeds(model, f"in.{suffix}", "-o", "out.xlsx")
    for computed in (True, False):
        old, new = (openpyxl.load_workbook(name, data_only=computed).active for name in (f"in.{suffix}", "out.xlsx"))
        assert new["B2"].value == ("10" if computed else '="1"&"0"')
        assert [cell.value for cell in new["E"]] == ["label", "pos", "neg"]
        for cell in chain.from_iterable(old["A1:D3"]):
            same = new[cell.coordinate]
            assert (same.value, same.number_format) == (cell.value, cell.number_format)
        assert (new.dimensions, new["H2"].number_format) == ("A1:H3", "yyyy-mm-dd")
    with zipfile.ZipFile(f"in.{suffix}") as given, zipfile.ZipFile("out.xlsx") as written:
        same = {name for name in written.namelist() if given.read(name) == written.read(name)}
        changed = {"xl/worksheets/sheet1.xml", *([f"xl/{MACROS}", "[Content_Types].xml"] if suffix == "xlsm" else [])}
        assert {*given.namelist()} - same == changed


def test_evaluate(model):
    source = file("test.tsv", "pos\ta glad film", "neg\ta sad book", "pos\ta dull night", "odd\ta poor book")
    result = run(model, source, "--evaluate", "--json", "-o", "found.tsv")
    assert result.stderr.splitlines()[-1] == "4 predictions in found.tsv"
    assert (found := json.loads(result.stdout)).items() >= {"texts": 4, "accuracy": 0.5}.items()
    assert [row["label"] for row in found["classes"]] == ["neg", "pos", "odd"]
    assert found["confusion"] == [[1, 0, 0], [1, 1, 0], [1, 0, 0]]
    found = [document.metadata["predicted_label"] for document in read_documents("found.tsv")]
    assert found == ["pos", "neg", "neg", "neg"]
    report = [" ".join(line.split()) for line in succeeds(model, source, "--evaluate").splitlines()]
    assert {"accuracy 0.5000, macro F1 0.3889", "mean 0.444 0.500 0.389 4", "odd 1 0 0"} <= {*report}
    table = file("test.csv", "stars,review", "pos,a glad film", "neg,so sad")
    fields = ["--field", "review", "--label-field", "stars"]
    assert json.loads(succeeds(model, table, "--evaluate", "--json", *fields))["accuracy"] == 1


def test_mistakes(model):
    source, empty = file("new.txt", "a text"), file("empty.txt")
    for arguments, message in (
        (("nowhere", source), "nowhere: no such model folder"),
        (("default", source), "default: the default model has no labels; train it with `ctx-embed train --from "),
        ((model, source, "--evaluate"), "new.txt, line 1: 'a text' is not label<TAB>text"),
        ((model, "great food"), "great food: no such file; for one text: echo 'great food' | ctx-embed predict MODEL"),
        ((model, empty, "-o", "new.json"), "empty.txt: no texts to label"),
    ):
        assert fails(*arguments).startswith(message)
    for options, message in (
        (("--json", "--jsonl"), "--json and --jsonl cannot be combined"),
        (("-o", "a.json", "--json"), "the name of -o FILE sets the format; leave out --json and --jsonl"),
        (("--label-field", "a"), "--label-field needs --evaluate"),
    ):
        assert fails(model, source, *options, code=2) == message


def test_texts_of_unknown_tokens_give_a_warning(model):
    for device in ((), ("--device", "cpu")):
        with pytest.warns(UnknownTextsWarning, match="2 of 3 texts have too few words"):
            succeeds(model, file("ru.txt", "Привет как дела", "Ночь была темна", "good film"), *device)


def test_cells_are_added_to_a_sheet_as_its_xml_has_them():
    sheet = b"<s><!-- <row r='1'> --><row r='2'><c r='B2' a='>'><v>1</v></c><c r='A2'/></row><row><c/><c/></row></s>"
    assert _with_cells(sheet, {0: ["a<"], 3: [0.5]}) == (
        b"<s><!-- <row r='1'> --><row r='2'><c r='A2'/><c r='B2' a='>'><v>1</v></c>"
        b'<c r="C2" t="inlineStr"><is><t xml:space="preserve">a&lt;</t></is></c></row>'
        b'<row><c/><c/><c r="C3"><v>0.5</v></c></row></s>'
    )
    utf_16 = sheet.decode().encode("utf-16")
    for content, said in ((sheet[:-4], "no element"), (sheet, "no cells of row 4"), (utf_16, "decode")):
        assert said in error(_with_cells, content, {0: ["a"], 4: ["b"]})
