"""`ctx-embed index` beyond building and searching: single documents, maintenance, near-duplicates and topics."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ctx_embed.errors import UnknownFieldsWarning
from tests.helpers.cli import Command

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("index")
run, succeeds, fails = COMMAND.run, COMMAND.succeeds, COMMAND.fails


@pytest.fixture
def index(tmp_path, sentences):
    path = tmp_path / "notes.index"
    rows = [{"id": n if n % 2 else f"s{n}", "text": text, "n": n} for n, text in enumerate(sentences)]
    source = tmp_path / "notes.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    succeeds("build", source, path)
    return path


def test_get_and_delete(index, sentences):
    assert json.loads(succeeds("get", index, "3")) == {"text": sentences[3], "id": 3, "metadata": {"n": 3}}
    assert [json.loads(line)["id"] for line in succeeds("get", index, "s2", "1").splitlines()] == ["s2", 1]
    hint = "3 is a number there: leave out --string"
    assert fails("get", index, "3", "--string") == f"{index}: no document has the id '3'; {hint}"
    assert fails("get", index, "99", "-7") == f"{index}: no document has the id 99, -7"
    too_long = "9" * 20
    assert fails("get", index, too_long) == (
        f"the id '{too_long}' does not fit into 64 bits; add --string to take it as a string"
    )
    assert succeeds("delete", index, "3", "s2", "nobody") == f"2 of 3 documents deleted from {index}\n"
    assert succeeds("delete", index, "3") == f"0 of 1 document deleted from {index}\n"
    facts = json.loads(succeeds("info", index, "--json"))
    assert (facts["documents"], facts["vectors"], facts["vectors_of_deleted"]) == (6, 8, 2)
    assert succeeds("compact", index) == f"{index}: 2 vectors removed, 6 documents\n"
    assert succeeds("verify", index) == f"{index}: whole, 6 documents\n"
    hits = json.loads(succeeds("query", index, sentences[3], "-k", "20", "--json"))
    assert sorted(hit["metadata"]["n"] for hit in hits) == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("ids", "hint"),
    [
        (["s2", "1", "--string"], "1 is a number there: leave out --string\n"),
        (["1", "07", "nobody"], ""),
        (["1", "8"], "'8' is a string there: add --string\n"),
    ],
)
def test_an_id_of_the_other_kind_is_named(index, tmp_path, ids, hint):
    (tmp_path / "more.jsonl").write_text('{"id": "8", "text": "eight"}\n')
    succeeds("build", tmp_path / "more.jsonl", index, "--append")
    for options in (["--dry-run"], []):
        result = run("delete", index, *ids, *options)
        assert (result.exit_code, result.stderr) == (0, hint)
    assert fails("get", index, *ids).endswith(f"; {hint.strip()}" if hint else "'nobody'")


def test_an_option_is_never_an_id(index):
    assert run("delete", index, "--dry", "3").exit_code == 2
    assert json.loads(succeeds("get", index, "3"))["id"] == 3
    # As in other programs, everything after -- is an argument, here an id.
    assert succeeds("delete", index, "--", "--dry-run", "-3") == f"0 of 2 documents deleted from {index}\n"


def test_negative_ids(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"id": -5, "text": "a"}\n{"id": "-6", "text": "b"}\n{"id": "007", "text": "c"}\n'
    )
    path = tmp_path / "a.index"
    assert succeeds("build", tmp_path / "a.jsonl", path) == f"3 documents indexed in {path}\n"
    assert json.loads(succeeds("get", path, "-5"))["id"] == -5
    assert json.loads(succeeds("get", path, "--string", "-6"))["id"] == "-6"
    # As in a CSV file, 007 is not a number.
    assert json.loads(succeeds("get", path, "007"))["text"] == "c"
    assert fails("get", path, "-6") == f"{path}: no document has the id -6; '-6' is a string there: add --string"
    assert succeeds("delete", path, "--dry-run", "-5", "8") == f"1 of 2 documents would be deleted from {path}\n"
    assert succeeds("delete", path, "-5", "8") == f"1 of 2 documents deleted from {path}\n"
    assert fails("get", path, "-5").endswith("no document has the id -5")


def test_delete_and_get_by_filter(index):
    shown = run("get", index, "--where", "n >= 5", "-k", "2")
    assert [json.loads(line)["metadata"]["n"] for line in shown.stdout.splitlines()] == [5, 6]
    assert shown.stderr == "2 of 3 documents\n"
    assert succeeds("delete", index, "--where", "n >= 5", "--dry-run") == (
        f"3 of 8 documents would be deleted from {index}\n"
    )
    assert len(succeeds("get", index, "-k", "99").splitlines()) == 8
    assert succeeds("delete", index, "--where", "n >= 5") == f"3 of 8 documents deleted from {index}\n"
    assert [json.loads(line)["metadata"]["n"] for line in succeeds("get", index).splitlines()] == [0, 1, 2, 3, 4]
    for arguments, said in (
        (["delete", index], f"0 of 5 documents deleted from {index}\n"),
        (["get", index], "no documents\n"),
        (["set", index, "-m", "x=1"], f"metadata of 0 documents set in {index}\n"),
    ):
        with pytest.warns(UnknownFieldsWarning, match=r"^no document has a field 'm' \(fields: n\)$"):
            assert run(*arguments, "--where", "m < 3").output == said
    assert fails("delete", index, "--where", "n >").startswith("filter 'n >': ")
    assert json.loads(succeeds("info", index, "--json"))["documents"] == 5


def test_a_query_without_hits_says_why(index, tmp_path):
    def said(*options):
        result = run("query", index, "film", *options)
        assert (result.exit_code, result.stdout) == (0, "")
        return result.stderr

    with pytest.warns(UnknownFieldsWarning, match=r"^no document has a field 'yeer' \(fields: n\)$"):
        assert said("--where", "yeer = 2024") == "no hits: no document meets the filter\n"
    assert said("--where", "n = 99") == "no hits: no document meets the filter\n"
    assert said("--threshold", "0.9999") == "no hits: no cosine reaches 0.9999\n"
    result = run("query", index, "zebra", "--mode", "words", "--json")
    assert (result.stdout, result.stderr) == ("[]\n", "no hits: no document has a word of the query\n")
    succeeds("delete", index, "--where", "n >= 0")
    assert said() == "no hits: the index has no documents\n"


def test_words_are_coloured_in_a_terminal_only(index, monkeypatch):
    import click

    assert "\x1b" not in succeeds("query", index, "a film")
    assert "**" not in succeeds("query", index, "a film")
    coloured = run("query", index, "a film", color=True).stdout
    assert click.style("film", bold=True, fg="yellow") in coloured
    # Function words are not marked.
    assert click.style("a", bold=True, fg="yellow") not in coloured


def test_what_a_text_could_do_to_a_terminal_is_taken_out(tmp_path):
    row = {"id": "x\x1b]0;", "text": "a film\x02 \x03\x1b[31m red\n\nend " + "long " * 90, "m": "\x1b[0m\nm", "n": [1]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    succeeds("build", tmp_path / "a.jsonl", tmp_path / "a.index")
    lines = succeeds("query", tmp_path / "a.index", "film").splitlines()
    assert len(lines) == 2
    assert "a film [31m red end long" in lines[1]
    assert all(line.isprintable() for line in lines)
    assert len(lines[1]) < 300


def test_several_queries(index, tmp_path):
    queries = tmp_path / "queries.txt"
    queries.write_text("cats\n\nfilms\n")
    both = json.loads(succeeds("query", index, "cats", "films", "-k", 2, "--json", "--mode", "words"))
    assert json.loads(succeeds("query", index, "--queries", queries, "-k", 2, "--json", "--mode", "words")) == both
    assert [len(hits) for hits in both] == [2, 2]
    assert "**film**" in both[1][0]["snippet"]
    lines = succeeds("query", index, "--queries", "-", "--jsonl", "-k", 2, input="cats\nfilms\n").splitlines()
    assert [json.loads(line)["query"] for line in lines] == ["cats", "cats", "films", "films"]
    table = succeeds("query", index, "cats", "films", "-k", 1).splitlines()
    assert (table[0], table[3:5]) == ("cats", ["", "films"])
    assert fails("query", index, "--queries", "-", input="") == "-: no queries; give at least one line of text"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["query", "index", "x", "--json", "--jsonl"], "--json and --jsonl cannot be combined"),
        (["query", "index", "x", "--queries", "y"], "give either TEXT or --queries"),
        (["build", "a", "index", "--append", "--upsert"], "--append and --upsert cannot be combined"),
        (["delete", "index"], "give either IDs or --where FILTER"),
        (["delete", "index", "1", "--where", "n = 1"], "give either IDs or --where FILTER"),
        (["get", "index", "--json", "n00006"], "No such option '--json'"),
        (["get", "index", "1", "--where", "n = 1"], "give either IDs or --where"),
        (["serach", "index", "x"], "unknown command 'serach': did you mean 'query'? known are backup, build, compact,"),
    ],
)
def test_usage_mistakes(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_passages_name_their_document(tmp_path):
    source = tmp_path / "books.txt"
    source.write_text("The cat sat on the mat. A dog barked.\n")
    path = tmp_path / "books.index"
    succeeds("build", source, path, "--chunk", "sentences")
    hit = json.loads(succeeds("query", path, "barking dogs", "--mode", "words", "--document", "--json"))[0]
    assert (hit["text"], hit["start"]) == ("A dog barked.", 24)
    assert hit["document"] == "The cat sat on the mat. A dog barked."
    assert fails("build", source, path, "--append", "--chunk", "none") == (
        f"{path}: chunk must be 'sentences', got 'none'; leave --chunk out"
    )


def test_resume_upsert_and_folders(tmp_path, index, sentences):
    folder = tmp_path / "folder"
    folder.mkdir()
    table = folder / "a.csv"
    table.write_text("id,text\ns2,a new text\nz,another\n")
    (folder / "b.txt").write_text("a line\n")
    assert succeeds("build", table, index, "--upsert", "--resume") == f"2 documents added to {index}\n"
    assert succeeds("build", table, index, "--upsert", "--resume") == (
        f"nothing to do: 2 documents were indexed in {index} already\n"
    )
    assert json.loads(succeeds("get", index, "s2"))["text"] == "a new text"
    # A folder never replaces documents that come from elsewhere.
    assert succeeds("build", folder, index, "--upsert", "--resume") == (
        f"{index}: 1 file added (1 document, 1 passage); could not read a.csv (the id 's2' belongs to a document from "
        "elsewhere)\n"
    )
    assert json.loads(succeeds("info", index, "--json"))["documents"] == 10


def test_export(index, tmp_path):
    assert succeeds("export", index, tmp_path / "out") == (
        f"8 vectors of dimension 16 in {tmp_path / 'out'}.npy, texts in {tmp_path / 'out'}.jsonl\n"
    )
    assert np.load(tmp_path / "out.npy").shape == (8, 16)
    taken = f"{tmp_path / 'out.npy'}: already exists; replace it with --overwrite, or choose another name"
    assert fails("export", index, tmp_path / "out") == taken
    succeeds("export", index, tmp_path / "out", "--overwrite")
    assert fails("export", index, ".") == "cannot write .: it is a folder; name the file or folder to write in it"


def test_duplicates_and_topics(index, sentences):
    lines = succeeds("duplicates", index, "--threshold", "-1", "-k", "2").splitlines()
    assert len(lines) == 4
    pairs = [json.loads(line) for line in succeeds("duplicates", index, "--threshold", "-1", "--jsonl").splitlines()]
    assert len(pairs) == 28
    assert pairs[0]["score"] == max(pair["score"] for pair in pairs)
    topics = json.loads(succeeds("topics", index, "-k", "2", "--json"))
    assert sum(topic["size"] for topic in topics) == 8
    listed = index.with_name("topics.jsonl")
    assert len(succeeds("topics", index, "-k", "2", "-o", listed).splitlines()) == 4
    rows = [json.loads(line) for line in listed.read_text().splitlines()]
    assert (len({row["id"] for row in rows}), len({row["topic"] for row in rows})) == (8, 2)
