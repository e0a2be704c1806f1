"""Encoding into stores: every id once, the vectors of the shipped model, resuming, and how inputs are cut."""

import gzip
import io
import json
import re
import shutil
import sys
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import openpyxl
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyarrow import parquet

from ctx_embed import SearchIndex, bulk_encoding, dedupe, stores
from ctx_embed.bulk_encoding import _embedded, _parts, _rows, encode_dataset
from ctx_embed.reading.rows import Fields
from ctx_embed.reading.sources import Report, Source, find_sources
from ctx_embed.reading.tables import ReadingWarning
from ctx_embed.stores.columns import vectors_of
from ctx_embed.texts import Document
from tests.helpers.errors import error

LINES = 60


@pytest.fixture
def corpus(tmp_path):
    """Three files: lines, objects with ids of their own, and a table."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"a line about number {number}\n" for number in range(LINES)))
    rows = [{"id": f"j{number}", "text": f"object {number}", "year": 2000 + number} for number in range(LINES)]
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"id": "bad"}\n')
    (folder / "c.csv").write_text("text,lang\n" + "".join(f"cell {number},en\n" for number in range(LINES)))
    return folder


def texts_of(corpus) -> dict[str, str]:
    texts = {f"{corpus}/a.txt:{number + 1}": f"a line about number {number}" for number in range(LINES)}
    texts |= {f"j{number}": f"object {number}" for number in range(LINES)}
    return texts | {f"{corpus}/c.csv:{number + 2}": f"cell {number}" for number in range(LINES)}


def require_exact(target, expected: dict[str, str], embedder) -> None:
    """Every id once, with the text and the very vector that it has alone."""
    table = pyarrow.concat_tables(map(parquet.read_table, target.glob("part-*.parquet")), promote_options="permissive")
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    assert sorted(zip(ids, texts, strict=True)) == sorted(expected.items())
    vectors = np.concatenate([vectors_of(chunk) for chunk in table["embedding"].chunks])
    np.testing.assert_allclose(vectors, embedder.encode_document(texts), atol=1e-6)


@pytest.mark.parametrize(("workers", "part_rows"), [(1, 7), (1, 1000), (2, 16)])
def test_a_folder_becomes_parquet_with_every_id_once(corpus, tmp_path, embedder, workers, part_rows):
    target = tmp_path / "out"
    encoded = encode_dataset([corpus, corpus / "a.txt"], target, workers=workers, part_rows=part_rows)
    assert (encoded.rows, encoded.count, encoded.bad, encoded.dimension) == (3 * LINES, 3 * LINES, 1, 320)
    assert encoded.named == [
        f"{corpus}/b.jsonl, line {LINES + 1}: no field 'text' (fields: 'id'); name the right one with --field"
    ]
    require_exact(target, texts_of(corpus), embedder)
    assert all(path.name.startswith(("part-", "_")) for path in target.iterdir())
    again = encode_dataset(corpus, target, workers=workers, part_rows=part_rows)
    assert again.was_complete
    assert (again.rows, again.count, again.bad) == (encoded.rows, encoded.count, encoded.bad)


def test_threads_as_the_user_allows_a_bar_of_rows_and_parts_that_other_programs_read(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(bulk_encoding, "ThreadPoolExecutor", made := Mock(wraps=bulk_encoding.ThreadPoolExecutor))
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    encode_dataset([corpus / "a.txt", corpus / "b.jsonl"], tmp_path / "out", part_rows=25, progress=True)
    made.assert_called_once_with(3)
    assert re.search(rf"finishing: +\d+%.* {2 * LINES}/about \d+ \[", terminal.getvalue())
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    query = f"SELECT id, text, len(embedding), year FROM '{tmp_path}/out/part-*.parquet' ORDER BY id DESC LIMIT 1"
    assert duckdb.sql(query).fetchall() == [("j9", "object 9", 320, 2009)]


def test_a_run_that_was_cut_short_repeats_no_finished_part_and_an_emptied_store_is_filled(
    corpus, tmp_path, embedder, monkeypatch
):
    target = tmp_path / "out"
    begun, most = [], 5
    embedded = bulk_encoding._embedded

    def noted(rows, *given):
        if len(begun) == most:
            raise KeyboardInterrupt
        begun.append((rows[0][0].name, *rows[0][1:]))
        return embedded(rows, *given)

    monkeypatch.setattr(bulk_encoding, "_embedded", noted)
    with pytest.raises(KeyboardInterrupt):
        encode_dataset(corpus, target, workers=1, part_rows=8)
    (target / "_left.tmp").touch()
    most = 99
    encoded = encode_dataset(corpus, target, workers=1, part_rows=8)
    assert len(begun) == len(set(map(str, begun))) == 24
    assert (encoded.rows, encoded.bad) == (3 * LINES, 1)
    require_exact(target, texts_of(corpus), embedder)
    assert not (target / "_left.tmp").exists()
    # A part that was stored without its note is stored again, once.
    notes = sorted(target.glob("_part-*.json"))
    for path in notes[::3]:
        path.unlink()
    run = target / "_run-0000.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "finished": False}))
    encode_dataset(corpus, target, workers=1, part_rows=8)
    assert sorted(target.glob("_part-*.json")) == notes
    require_exact(target, texts_of(corpus), embedder)
    # A store that somebody emptied is filled again.
    for path in target.glob("part-*.parquet"):
        path.unlink()
    encoded = encode_dataset(corpus, target, workers=1, part_rows=8)
    assert (encoded.was_complete, encoded.rows, encoded.count) == (False, 3 * LINES, 3 * LINES)
    require_exact(target, texts_of(corpus), embedder)


def test_an_id_that_occurs_twice_stays_once_with_its_last_row(tmp_path, embedder):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("".join(json.dumps({"id": number % 5, "text": f"first {number}"}) + "\n" for number in range(20)))
    second.write_text('{"id": "3", "text": "second"}\n')
    target = tmp_path / "out"
    said = r"16 of 21 rows share an id with another one \('0', '1', '2', \.\.\.\): one of each"
    with pytest.warns(ReadingWarning, match=said):
        encoded = encode_dataset([first, second], target, workers=1, part_rows=3)
    assert (encoded.count, encoded.bad) == (5, 0)
    expected = {str(number): f"first {15 + number}" for number in range(5)} | {"3": "second"}
    require_exact(target, expected, embedder)
    # Another run adds to what is there, and replaces by id.
    second.write_text('{"id": "4", "text": "third"}\n{"id": "new", "text": "fourth"}\n')
    encoded = encode_dataset(second, target, workers=1)
    assert (encoded.rows, encoded.count) == (2, 6)
    require_exact(target, {**expected, "4": "third", "new": "fourth"}, embedder)


@pytest.mark.parametrize("kind", ["{}", "lancedb:{}", "qdrant:{}"])
def test_ids_of_several_rows_are_named_whichever_parts_have_them(kind, tmp_path):
    for name, ids in (("a", "abcc"), ("b", "ade")):
        rows = [f'{{"id": "{row}", "text": "text {row}"}}\n' for row in ids]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    said = r"2 of 7 rows share an id with another one \('c', 'a'\): one of each id is stored; name a field"
    with pytest.warns(ReadingWarning, match=said) as warned:
        encode_dataset(tmp_path / "*.jsonl", kind.format(tmp_path / "out"), workers=1, part_rows=2)
    assert len(warned) == 1


def test_a_database_gets_every_id_once(corpus, postgresql):
    address = f"{postgresql}#encoded"
    (corpus / "d.jsonl").write_text('{"id": "j3", "text": "object 3"}\n')
    with pytest.warns(ReadingWarning, match=f"1 of {3 * LINES + 1} rows"):
        encoded = encode_dataset(corpus, address, workers=2, part_rows=32)
    assert (encoded.rows, encoded.count, encoded.bad) == (3 * LINES + 1, 3 * LINES, 1)
    assert encode_dataset(corpus, address, workers=1, part_rows=32).was_complete
    with stores.open(address) as store:
        expected = list(texts_of(corpus).values())[:: LINES // 4]
        assert [found[0].text for found in store.search(expected, k=1, exact=True)] == expected
        late = store.search("object", k=99, where="year >= 2055")
        assert {hit.id for hit in late} == {f"j{number}" for number in range(55, 60)}


@pytest.mark.parametrize("uri", [False, True])
def test_object_stores_are_read_and_written_and_a_target_among_its_inputs_is_no_input(corpus, embedder, uri):
    given, target = (path.as_uri() if uri else str(path) for path in (corpus, corpus / "out"))
    for _ in range(2):
        encoded = encode_dataset(given, target, workers=1)
        assert (encoded.rows, encoded.count, encoded.bad) == (3 * LINES, 3 * LINES, 1)
    assert encoded.was_complete
    expected = {identifier.replace(str(corpus), given): text for identifier, text in texts_of(corpus).items()}
    require_exact(corpus / "out", expected, embedder)
    assert "cell 5" in {row.text for row in stores.open(target).documents()}
    assert re.search("out: lies in the target .*out; choose another target", error(encode_dataset, target, target))


def test_mistakes_are_one_line_and_leave_nothing(corpus, tmp_path, tiny_model_path):
    target = tmp_path / "out"
    SearchIndex.create(tmp_path / "index").close()
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "one.txt").write_text("a row\n")
    (tmp_path / "wrong.jsonl").write_text('{"body": "x"}\n')
    for source, options, message in (
        ("-", {}, "standard input cannot be read twice"),
        (corpus, {"workers": 0}, "workers must be a positive integer, got 0"),
        (corpus, {"id_field": "key"}, "a.txt: lines of text have no field 'key'"),
        (tmp_path / "empty.txt", {}, "empty.txt: no texts to embed"),
        (tmp_path / "wrong.jsonl", {}, "no texts to embed; the first row was left out: "),
    ):
        assert message in error(encode_dataset, source, target, **options)
    assert not target.exists()
    for taken, said in (
        (corpus, "the folder holds other things; choose another name"),
        (tmp_path / "index", "has one writer; encode into a directory, then `ctx-embed index build"),
    ):
        assert said in error(encode_dataset, tmp_path / "one.txt", taken)
    encode_dataset(corpus / "a.txt", target, workers=1)
    with stores.open(target) as store, store.writing():
        assert "another run is writing" in error(encode_dataset, corpus, target, workers=1)
    said = error(encode_dataset, corpus, target, model=tiny_model_path, workers=1)
    assert re.search(r"come from the model 'default' \(.* not from '.*tiny' \(.*another target", said)
    (corpus / "z.txt.gz").write_bytes(b"\x1f\x8b broken")
    inputs = [corpus, corpus / "z.txt.gz"]
    assert "z.txt.gz: broken gzip" in error(encode_dataset, inputs, target, workers=2, part_rows=8)


def test_folders_are_walked_as_by_an_index_and_what_holds_no_rows_is_named(corpus, tmp_path):
    (corpus / "drafts").mkdir()
    for name in ("drafts/d.txt", "e.json", "f.md", ".hidden"):
        (corpus / name).write_text('{"a": 1}')
    (corpus / ".gitignore").write_text("drafts/\n")
    (corpus / "c.csv").unlink()
    named = {str(corpus / name): "not read in a folder: name the file" for name in ("e.json", "f.md")}
    skipped = {"hidden": 2, "ignored by .gitignore": 1}
    for again in (False, True):
        found = encode_dataset(corpus, corpus / "out")
        assert (found.rows, found.report.failed, found.report.skipped) == (2 * LINES, named, skipped)
        assert found.was_complete == again
    (corpus / "b.jsonl").unlink()
    shutil.rmtree(corpus / "out")
    found = dedupe(corpus, tmp_path / "unique.txt")
    assert (found.rows, found.report.failed, found.report.skipped) == (LINES, named, skipped)


def test_broken_files_of_a_folder_are_named_and_left_out(corpus, tmp_path):
    whole = encode_dataset(corpus, tmp_path / "whole").rows
    (corpus / "sub").mkdir()
    broken = {
        "0.txt.gz": (gzip.compress(b"a row\n" * 9999)[:-20], "broken gzip after line "),
        "broken.xlsx": (b"PK\x03\x04" + bytes(99), "cannot be read as a spreadsheet ("),
        "sub/none.ods": (b"", "cannot be read as a spreadsheet ("),
        "table.parquet": (b"PAR1", "cannot be read as Parquet ("),
        "pictures.txt": (bytes(range(256)) * 9, "line 2: must be UTF-8 ("),
    }
    # Rows that are read before a break may stay, those of one file here.
    for names in ([*broken][1:], [*broken]):
        for name in names:
            (corpus / name).write_bytes(broken[name][0])
        found = encode_dataset(corpus, tmp_path / f"out of {len(names)}")
        assert found.report.failed.keys() == {str(corpus / name) for name in names}
        assert (found.rows == whole) == ("0.txt.gz" not in names)
    for name, (_, said) in broken.items():
        assert found.report.failed[str(corpus / name)].startswith(said)
        # A file that somebody names must be readable.
        assert said in error(encode_dataset, [corpus / "a.txt", corpus / name], tmp_path / "named")


def parts_of(source: Source, run: str, fields: Fields, part_rows: int):
    rows_of = partial(_rows, fields=fields, encoding=None, given={source.name}, report=Report())
    return _parts([source], run, rows_of, part_rows)


def read(source: Source, fields: Fields | None = None):
    found, errors, chosen = [], [], fields or Fields()
    zeros = SimpleNamespace(documents=lambda texts: np.zeros((len(texts), 1), np.float32))
    for _, rows in parts_of(source, "0000", chosen, 4):
        batch, note = _embedded(rows, chosen, zeros)
        found += map(Document, batch.texts, batch.ids, batch.metadata)
        errors += note["named"]
    return found, errors


@pytest.mark.filterwarnings("ignore:.*left out the sheet 'no text'")
def test_rows_have_the_id_of_their_place_or_from_a_field(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"text {n}" for n in range(10)], "n": range(10)}), path)
    [source] = find_sources([path])
    assert read(source) == ([Document(f"text {n}", f"{path}:{n + 1}", {"n": n}) for n in range(10)], [])
    parts = [(name, len(rows)) for name, rows in parts_of(source, "0007", Fields(), 4)]
    assert parts == [("0007-00000-00000", 4), ("0007-00000-00001", 4), ("0007-00000-00002", 2)]
    rows = [{"text": "a", "key": "k1", "id": 5}, {"text": "b", "key": 7}, {"text": "c", "key": None}, {"text": "d"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, errors = read(*find_sources([path]), fields=Fields(id="key"))
    assert [(each.id, each.metadata) for each in found] == [("k1", {"id": 5}), ("7", {})]
    assert [said.removeprefix(f"{path}, ") for said in errors] == [
        "line 3: the id 'key' must be a string or an integer, got None",
        "line 4: no field 'key' (fields: 'text'); name the right one with --id-field",
    ]
    assert [each.id for each in read(*find_sources([path]))[0]] == ["5", *(f"{path}:{number}" for number in (2, 3, 4))]
    path, book, ids = tmp_path / "a.xlsx", openpyxl.Workbook(), []
    book.remove(book.active)
    for name, *cells in (("one", "text", "fog", None, "sun"), ("no text", "n"), ("more", "text", "rain")):
        sheet = book.create_sheet(name)
        for cell in cells:
            sheet.append([cell])
        book.save(path)
        ids.append([each.id.removeprefix(f"{path}:") for each in read(*find_sources([path]))[0]])
    assert ids == [["2", "4"], ["one:2", "one:4"], ["one:2", "one:4", "more:2"]]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\t[{"), max_size=9), max_size=30),
    st.integers(1, 7),
    st.sampled_from(["", "\n"]),
)
def test_the_cut_loses_no_line(tmp_path_factory, monkeypatch, lines, part_rows, end):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(("\n".join(lines) + end).encode())
    [source] = find_sources([path])
    monkeypatch.setattr(bulk_encoding, "PART_CHARACTERS", 20)
    parts = [[row[1:] for row in rows] for _, rows in parts_of(source, "0000", Fields(), part_rows)]
    content = path.read_bytes()
    whole = [line.decode().removeprefix("" if number else "\ufeff") for number, line in enumerate(content.split(b"\n"))]
    assert [row for rows in parts for row in rows] == list(enumerate(whole[:-1] if whole[-1] == "" else whole, 1))
    assert all(1 <= len(rows) <= part_rows for rows in parts)
    # A part is as short as its last line allows.
    assert all(sum(len(line) for _, line in rows[:-1]) < 20 for rows in parts)


OBJECTS = (
    b'{"text": "good"}\n{"text": \n[1]\n{"text": 3}\n{"text": "x", "id": true}\n\n{"text": "lone \\ud800", "id": 5}\n'
)
WRONG = ["2: not JSON", "3: must be a JSON object", "4: the field 'text' must be", "5: the id must be a string"]
TABLE = "text,n\ngòod,1\n".encode() + b'"a\nb",2\nbad\n\xff,3\n"x"y,4\ngood,5\n'


@pytest.mark.filterwarnings("ignore::ctx_embed.reading.encodings.WrongBytesWarning")
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bad_rows_are_named_and_the_others_read(tmp_path, pack):
    for name, content, good, messages in (
        ("a.txt", "gòod\n".encode() + b"na\xefve\n\ngood\n", 3, []),
        ("a.jsonl", OBJECTS, 2, WRONG),
        ("a.csv", TABLE, 4, ["5: 1 field, but the header has 2", "7: cannot be read"]),
    ):
        path = tmp_path / (name if pack is bytes else f"{name}.gz")
        path.write_bytes(pack(content))
        found, errors = read(*find_sources([path]))
        assert len(found) == good
        for said, message in zip(errors, messages, strict=True):
            assert said.startswith(f"{path}, line {message}")
