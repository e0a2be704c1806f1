"""How inputs are found, cut and read."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctx_embed import InputError
from ctx_embed.bulk_encoding import pieces
from ctx_embed.rows.opening import Source, find_sources
from ctx_embed.rows.reading import Fields

ROWS = [{"text": f"text {number}", "n": number} for number in range(10)]


def write(folder: Path, name: str, rows=ROWS) -> Path:
    path = folder / name
    lines = {
        ".txt": "".join(f"{row['text']}\n" for row in rows),
        ".jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        ".csv": "text,n\n" + "".join(f"{row['text']},{row.get('n')}\n" for row in rows),
    }
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines[Path(path.stem).suffix].encode()))
    else:
        path.write_text(lines[path.suffix])
    return path


def read(source: Source, part_rows: int = 4, fields: Fields | None = None):
    found, errors, chosen = [], [], fields or Fields()
    for piece in pieces(source, 7, part_rows):
        with piece.opened(chosen) as table:
            for number, raw in table.raw:
                try:
                    found.append(piece.document(table, number, raw, chosen))
                except InputError as error:  # noqa: PERF203
                    errors.append(str(error))
    return [each for each in found if each is not None], errors


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.parquet"])
def test_every_row_of_every_format_is_read_once_with_an_id_of_its_place(tmp_path, name):
    path = write(tmp_path, name)
    [source] = find_sources([path])
    found, errors = read(source)
    assert errors == []
    assert [each.text for each in found] == [row["text"] for row in ROWS]
    if name == "a.parquet":
        # Pieces are whole row groups.
        cut = [(piece.start, piece.stop, piece.first, piece.rows) for piece in pieces(source, 7, 4)]
        assert cut == [(0, 2, 1, 6), (2, 4, 7, 4)]
    # A line of a table is counted from its header.
    first = 2 if ".csv" in name else 1
    assert [each.id for each in found] == [f"{path}:{number}" for number in range(first, 11 + first - 1)]
    if ".txt" not in name:
        assert [each.metadata for each in found] == [{"n": row["n"]} for row in ROWS]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\t[{"), max_size=9), max_size=30),
    st.integers(1, 7),
    st.sampled_from(["", "\n"]),
)
def test_the_cut_loses_no_line(tmp_path_factory, lines, part_rows, end):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(("\n".join(lines) + end).encode())
    [source] = find_sources([path])
    cut = list(pieces(source, 0, part_rows, part_bytes=20))
    found = []
    for piece in cut:
        with piece.opened(Fields()) as table:
            found += table.raw
    content = path.read_bytes()
    whole = [line.decode().removeprefix("" if number else "\ufeff") for number, line in enumerate(content.split(b"\n"))]
    assert found == list(enumerate(whole[:-1] if whole[-1] == "" else whole, 1))
    assert [piece.start for piece in cut] == [0, *(piece.stop for piece in cut)][: len(cut)]
    assert all(1 <= piece.rows <= part_rows for piece in cut)
    # A piece is as short as its last line allows.
    assert all(content[piece.start : piece.stop - 1].rfind(b"\n") < 20 for piece in cut)


OBJECTS = (
    b'{"text": "good"}\n{"text": \n[1]\n{"text": 3}\n{"text": "x", "id": true}\n\n{"text": "lone \\ud800", "id": 5}\n'
)
WRONG = [
    "2: not JSON",
    "3: must be a JSON object",
    "4: the field 'text' must be a string",
    "5: the id must be a string",
]
BAD = [
    ("a.txt", "gòod\n".encode() + b"na\xefve\n\ngood\n", 3, []),
    ("a.jsonl", OBJECTS, 2, WRONG),
    (
        "a.csv",
        "text,n\ngòod,1\n".encode() + b'"a\nb",2\nbad\n\xff,3\n"x"y,4\ngood,5\n',
        4,
        ["5: 1 field, but the header has 2", "7: cannot be read"],
    ),
]


@pytest.mark.filterwarnings("ignore::ctx_embed.rows.encodings.WrongBytesWarning")
@pytest.mark.parametrize(("name", "content", "good", "messages"), BAD)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_rows_are_named_and_the_others_read(tmp_path, name, content, good, messages, packed):
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    found, errors = read(*find_sources([path]))
    assert len(found) == good
    for error, message in zip(errors, messages, strict=True):
        assert error.startswith(f"{path}, line {message}")


def test_ids_come_from_a_field(tmp_path):
    rows = [{"text": "a", "key": "k1", "id": 5}, {"text": "b", "key": 7}, {"text": "c", "key": None}, {"text": "d"}]
    path = write(tmp_path, "a.jsonl", rows)
    found, errors = read(*find_sources([path]), fields=Fields(id="key"))
    assert [(each.id, each.metadata) for each in found] == [("k1", {"id": 5}), ("7", {})]
    assert [error.removeprefix(f"{path}, ") for error in errors] == [
        "line 3: the id 'key' must be a string or an integer, got None",
        "line 4: no field 'key' (fields: 'text'); name the right one with --id",
    ]
    assert [each.id for each in read(*find_sources([path]))[0]] == ["5", *(f"{path}:{number}" for number in (2, 3, 4))]
