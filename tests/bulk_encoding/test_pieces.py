"""How inputs are found, cut and read."""

import gzip
import json

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctx_embed import bulk_encoding
from ctx_embed.bulk_encoding import _embedded, _parts
from ctx_embed.rows.opening import Source, find_sources
from ctx_embed.rows.reading import Fields
from ctx_embed.texts import Document


class Zeros:
    def documents(self, texts):
        return np.zeros((len(texts), 1), np.float32)


def read(source: Source, fields: Fields | None = None):
    found, errors, chosen = [], [], fields or Fields()
    for _, table, rows in _parts([source], "0000", chosen, None, 4):
        batch, note = _embedded(table, rows, chosen, Zeros())
        found += map(Document, batch.texts, batch.ids, batch.metadata)
        errors += note["named"]
    return found, errors


def test_rows_have_the_id_of_their_place(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"text {n}" for n in range(10)], "n": range(10)}), path)
    [source] = find_sources([path])
    assert read(source) == ([Document(f"text {n}", f"{path}:{n + 1}", {"n": n}) for n in range(10)], [])
    parts = [(name, len(rows)) for name, _, rows in _parts([source], "0007", Fields(), None, 4)]
    assert parts == [("0007-00000-00000", 4), ("0007-00000-00001", 4), ("0007-00000-00002", 2)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    parts = [rows for _, _, rows in _parts([source], "0000", Fields(), None, part_rows)]
    content = path.read_bytes()
    whole = [line.decode().removeprefix("" if number else "\ufeff") for number, line in enumerate(content.split(b"\n"))]
    assert [row for rows in parts for row in rows] == list(enumerate(whole[:-1] if whole[-1] == "" else whole, 1))
    assert all(1 <= len(rows) <= part_rows for rows in parts)
    # A part is as short as its last line allows.
    assert all(sum(len(line) for _, line in rows[:-1]) < 20 for rows in parts)


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
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, errors = read(*find_sources([path]), fields=Fields(id="key"))
    assert [(each.id, each.metadata) for each in found] == [("k1", {"id": 5}), ("7", {})]
    assert [error.removeprefix(f"{path}, ") for error in errors] == [
        "line 3: the id 'key' must be a string or an integer, got None",
        "line 4: no field 'key' (fields: 'text'); name the right one with --id",
    ]
    assert [each.id for each in read(*find_sources([path]))[0]] == ["5", *(f"{path}:{number}" for number in (2, 3, 4))]
