"""`ctx-embed index` beyond building and searching: single documents, maintenance, near-duplicates and topics."""

import json
from pathlib import Path

import numpy as np
import pytest

from ctx_embed.errors import UnknownFieldsWarning
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("index")
run, succeeds, fails = COMMAND.run, COMMAND.succeeds, COMMAND.fails


@pytest.fixture
def index(here, sentences):
    rows = [{"id": n if n % 2 else f"s{n}", "text": text, "n": n} for n, text in enumerate(sentences)]
    return built(*rows)


def built(*rows: dict) -> str:
    """Build an index of rows and return its path."""
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    succeeds("build", "rows.jsonl", "notes.index")
    return "notes.index"


def test_get_and_delete(index, sentences):
    assert json.loads(succeeds("get", index, "3")) == {"text": sentences[3], "id": 3, "metadata": {"n": 3}}
    assert [json.loads(line)["id"] for line in succeeds("get", index, "s2", "1").splitlines()] == ["s2", 1]
    assert fails("get", index, "99", "9" * 20) == f"{index}: no document has the id '99', '{'9' * 20}'"
    assert succeeds("delete", index, "3", "s2", "nobody") == f"2 of 3 documents deleted from {index}\n"
    assert succeeds("delete", index, "--where", "n >= 5", "--dry-run") == (
        f"3 of 6 documents would be deleted from {index}\n"
    )
    assert succeeds("delete", index, "--where", "n >= 5") == f"3 of 6 documents deleted from {index}\n"
    assert succeeds("compact", index) == f"{index}: 5 vectors removed, 3 documents\n"
    assert succeeds("verify", index) == f"{index}: whole, 3 documents\n"
    assert [json.loads(line)["metadata"]["n"] for line in succeeds("get", index).splitlines()] == [0, 1, 4]
    with pytest.warns(UnknownFieldsWarning, match=r"^no document has a field 'm' \(fields: n\)$"):
        assert run("get", index, "--where", "m < 3").output == "no documents\n"


def test_ids_that_are_numbers():
    rows = [{"id": identifier, "text": "a"} for identifier in (-5, "-6", "007", 7, "8", 2**63 - 1)]
    path = built(*rows)
    found = [json.loads(line)["id"] for line in succeeds("get", path, "--", *(row["id"] for row in rows)).splitlines()]
    assert found == [row["id"] for row in rows]
    assert succeeds("delete", path, "--", "-5", "8", "9") == f"2 of 3 documents deleted from {path}\n"


def test_a_query_without_hits_says_why(index):
    def said(*options):
        result = run("query", index, "film", *options)
        assert (result.exit_code, result.stdout) == (0, "")
        return result.stderr

    with pytest.warns(UnknownFieldsWarning, match=r"^no document has a field 'yeer' \(fields: n\)$"):
        assert said("--where", "yeer = 2024") == "no hits: no document meets the filter\n"
    assert said("--threshold", "0.9999") == "no hits: no cosine reaches 0.9999\n"
    result = run("query", index, "zebra", "--mode", "words", "--json")
    assert (result.stdout, result.stderr) == ("[]\n", "no hits: no document has a word of the query\n")
    succeeds("delete", index, "--where", "n >= 0")
    assert said() == "no hits: the index has no documents\n"


def test_odd_texts_keep_the_table_whole_and_control_no_terminal():
    path = built(
        {"id": "a\tb", "text": "two\nlines \x1b[31m and NUL \0"},
        {"id": "x\x1b]0;", "text": "a film\x02 \x03\x1b[31m red\n\nend", "m": "\x1b[0m\nm", "n": [1]},
        {"text": "long " * 200_000},
        {"text": "lone \ud800 surrogate"},
    )
    lines = succeeds("query", path, "the cat").splitlines()
    assert len(lines) == 2 * 4
    assert max(map(len, lines)) <= 250
    assert "    a film [31m red end" in lines
    assert all(line.isprintable() for line in lines)
    found = {hit["id"]: hit["text"] for hit in json.loads(succeeds("query", path, "the cat", "--json"))}
    assert found["a\tb"] == "two\nlines \x1b[31m and NUL \0"
    assert "lone � surrogate" in found.values()


def test_several_queries(index):
    Path("queries.txt").write_text("cats\n\nfilms\n")
    options = ("-k", 2, "--json", "--mode", "words")
    both = json.loads(succeeds("query", index, "cats", "films", *options))
    assert json.loads(succeeds("query", index, "--queries", "queries.txt", *options)) == both
    assert [len(hits) for hits in both] == [2, 2]
    assert "**film**" in both[1][0]["snippet"]
    lines = succeeds("query", index, "--queries", "-", "--jsonl", "-k", 2, input="cats\nfilms\n").splitlines()
    assert [json.loads(line)["query"] for line in lines] == ["cats", "cats", "films", "films"]
    table = succeeds("query", index, "cats", "films", "-k", 1).splitlines()
    assert (table[0], table[3:5]) == ("cats", ["", "films"])
    assert fails("query", index, "--queries", "-", input="") == "-: no queries; give at least one line of text"


def test_usage_mistakes():
    for arguments, message in (
        ("query index x --json --jsonl", "--json and --jsonl cannot be combined"),
        ("query index x --queries y", "give either TEXT or --queries"),
        ("build a index --append --upsert", "--append and --upsert cannot be combined"),
        ("delete index", "give either IDs or --where FILTER"),
        ("set index 1 -m n", "must be NAME=VALUE, got 'n'."),
        ("get index 1 --where n=1", "give either IDs or --where"),
    ):
        result = run(*arguments.split())
        assert result.exit_code == 2
        assert message in result.stderr


def test_export(index):
    assert succeeds("export", index, "out") == "8 vectors of dimension 16 in out.npy, texts in out.jsonl\n"
    assert np.load("out.npy").shape == (8, 16)
    assert fails("export", index, "out").startswith("out.npy: already exists; replace it with --overwrite")
    succeeds("export", index, "out", "--overwrite")
    assert fails("export", index, ".").startswith("cannot write .: it is a folder; name the file or folder to write")


def test_duplicates_and_topics(index):
    lines = succeeds("duplicates", index, "--threshold", "-1", "-k", "2").splitlines()
    assert len(lines) == 4
    pairs = [json.loads(line) for line in succeeds("duplicates", index, "--threshold", "-1", "--jsonl").splitlines()]
    assert len(pairs) == 28
    topics = json.loads(succeeds("topics", index, "-k", "2", "--json"))
    assert sum(topic["size"] for topic in topics) == 8
    assert len(succeeds("topics", index, "-k", "2", "-o", "topics.jsonl").splitlines()) == 4
    rows = [json.loads(line) for line in Path("topics.jsonl").read_text().splitlines()]
    assert (len({row["id"] for row in rows}), len({row["topic"] for row in rows})) == (8, 2)
