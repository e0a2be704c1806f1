"""The searches of `ctx-embed index`, with the model that ships."""

import csv
import dataclasses
import io
import json
import sys
from pathlib import Path

import click
import numpy as np
import pytest

from ctx_embed import Hit, SearchIndex
from ctx_embed.cli.index.documents import SHOWN_CHARACTERS
from ctx_embed.cli.index.query import INDENT, print_hits
from ctx_embed.index.records import Location
from tests.helpers.cli import Command, file, in_a_terminal

COMMAND = Command("index")
run, succeeds, fails = COMMAND.run, COMMAND.succeeds, COMMAND.fails
QUERY = "a criminal attack"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("articles") / "news.index"
    succeeds("build", Path(__file__).parents[3] / "docs" / "samples" / "articles.jsonl", path)
    return path


def hits(*arguments) -> list:
    return json.loads(succeeds(*arguments, "--json"))


def test_vectors_from_a_file_and_more_like_a_document(index):
    with SearchIndex.open(index) as opened:
        vectors = opened.embedder.queries([QUERY, "a match"])
        expected = [[hit.id for hit in found] for found in opened.search(vectors, 3)]
        like = [hit.id for hit in opened.search(like="a23", k=3)]
    np.save("queries.npy", vectors)
    np.save("one.npy", vectors[0])
    found = hits("query", index, "--queries", "queries.npy", "-k", 3)
    assert [[hit["id"] for hit in hits] for hits in found] == expected
    assert "query 1\n" in succeeds("query", index, "--queries", "queries.npy", "-k", 1)
    for name, said in (
        ("one.npy", f"must be an array (queries, dimension), got the shape {vectors[0].shape}"),
        (file("broken.npy", "no array"), "broken.npy: must be an array (queries, dimension) of numbers"),
    ):
        assert said in fails("query", index, "--queries", name)
    assert [hit["id"] for hit in hits("similar", index, "a23", "-k", 3)] == like
    assert fails("similar", index, "b99") == "like: no document has the id 'b99'"
    assert "no hits: there are fewer than 101" in run("similar", index, "a23", "--offset", 100).stderr


def test_csv_has_a_column_for_each_field():
    rows = [
        {"text": 'a "quoted", text', "id": "x", "tags": ["a", "b"], "score": 3, "query": "q", "year": 2020},
        {"text": "another\nline", "id": "y", "ok": True},
    ]
    succeeds("build", file("rows.jsonl", *map(json.dumps, rows)), "rows.index")
    first, second = csv.DictReader(io.StringIO(succeeds("query", "rows.index", "a quoted text", "--csv")))
    assert first["text"] == 'a "quoted", text'
    assert (first["query"], first["id"], first["tags"]) == ("a quoted text", "x", '["a", "b"]')
    assert (first["metadata.score"], first["metadata.query"]) == ("3", "q")
    assert (first["year"], first["ok"], second["ok"]) == ("2020", "", "true")
    assert float(first["score"]) > float(second["score"])


def test_a_hit_shows_the_score_that_orders_it(index):
    for options, shown, hidden in (([], "fused", "reranked"), (["--rerank", "default"], "reranked", "fused")):
        heading = succeeds("query", index, QUERY, "-k", 1, *options).splitlines()[0]
        assert f"  {shown} " in heading
        assert hidden not in heading
    assert json.loads(succeeds("query", index, QUERY, "-k", 1, *options, "--json"))[0].keys() >= {"fused", "reranked"}


def test_listing_counting_and_facets(index):
    listed = run("get", index, "--where", "section = 'sport'", "--offset", 1, "-k", 2)
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["metadata"]["section"] for row in rows] == ["sport", "sport"]
    assert listed.stderr == "2 of 5 documents\n"
    assert succeeds("count", index, "--where", "section = 'sport'") == "5\n"
    assert succeeds("facets", index, "section", "-k", 2).split() == ["5", "culture", "5", "economy"]
    found = json.loads(succeeds("facets", index, "year", "--where", "section = 'sport'", "--json"))
    assert sum(row["documents"] for row in found) == 5


def test_hits_of_one_document_stand_together_and_long_snippets_are_cut(capsys):
    first, second = (Hit("a", score, f"passage {score}", {"year": 2020}) for score in (0.9, 0.7))
    print_hits("nothing", [first, Hit("b", 0.8, "another document", {}), second])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3:2] == ["0.9000  a  year: 2020", "0.7000  a  year: 2020"]
    assert lines[3:5] == ["    passage 0.7", "0.8000  b"]
    # Of a long snippet so many characters are shown.
    print_hits("nine", [Hit("a", 0.9, f"nine {'o' * 40} " * 30, {})])
    shown = capsys.readouterr().out.splitlines()[1]
    assert shown.count("nine") > 2
    assert shown.endswith("…")
    assert len(shown) <= len(INDENT) + SHOWN_CHARACTERS


def test_a_highlight_stands_out_from_the_text_around_it(capsys, monkeypatch):
    before, answer, after = "Much is said. " * 9, "It opens at nine.", " And more follows." * 20
    (hit,) = found = [Hit("a", 0.9, before + answer + after, {}, highlight=(len(before), len(before + answer)))]
    print_hits("nine", found)
    assert capsys.readouterr().out == f"0.9000  a\n    {answer}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_hits("nine", found)
    shown = capsys.readouterr().out.splitlines()[1]
    assert "Much is said.\x1b[0m It opens at \x1b[33m\x1b[1mnine\x1b[0m. \x1b[2mAnd more" in shown
    assert click.unstyle(shown).startswith("    … ")
    assert click.unstyle(shown).endswith("…")
    assert len(click.unstyle(shown)) < 260
    context = f"Much is said. {answer}"
    print_hits("nine", [dataclasses.replace(hit, text=answer, highlight=(0, len(answer)), context=context)])
    shown = capsys.readouterr().out
    assert click.unstyle(shown) == f"0.9000  a\n    {answer}\n    {context}\n"
    assert shown.endswith(f"\x1b[2m    {context}\x1b[0m\n")


def test_a_place_takes_the_place_of_the_id_and_leads_to_its_file(capsys, monkeypatch):
    metadata = {"source": "a.md", "line": 3, "page": 1, "modified": "today", "n": 1, "empty": "", "list": [1], "t": "b"}
    hit = Hit("a.md", 0.9, "nine", {**metadata, **dict.fromkeys("cdef", True)})
    place = Location("a.md", Path("/notes/a.md"), 3, None)
    print_hits("nine", [hit], [place])
    assert capsys.readouterr().out == "0.9000  a.md:3  n: 1  t: b  c: true  d: true\n    nine\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_hits("nine", [dataclasses.replace(hit, id="b")], [place])
    heading = capsys.readouterr().out.splitlines()[0]
    assert heading.startswith("0.9000  \x1b[1mb\x1b[0m  \x1b]8;;file:///notes/a.md#3\x1b\\a.md:3\x1b]8;;\x1b\\  n: 1")


def test_where_nothing_answers_that_is_said_and_nothing_is_highlighted():
    text = "The museum is old. It opens at nine in the morning. Tickets cost four pounds."
    with SearchIndex.create("museum.index") as opened:
        opened.add([text])
    for query, shown in (("how many pounds do tickets cost?", "Tickets cost four pounds."), ("volcanoes", text)):
        found = run("query", "museum.index", query, "--highlight")
        assert found.stdout.splitlines()[1].strip() == shown
        (hit,) = hits("query", "museum.index", query)
        assert hit["answered"] == (shown != text)
        said = "" if hit["answered"] else "nothing answers this: no relevance reaches 0.8; the nearest:\n"
        assert found.stderr == said
    assert "answered" not in hits("query", "museum.index", "museum", "--mode", "words")[0]
    # In a terminal the answer stands out, unless a program reads.
    command = (sys.executable, "-m", "ctx_embed", "index", "query", "museum.index", "when does it open?")
    assert "\x1b[2mThe museum is old." in in_a_terminal(*command)[1]
    assert '"highlight"' not in in_a_terminal(*command, "--json")[1]


def test_a_corrected_word_is_told_on_stderr(index):
    found = run("query", index, "the rasnom of a hosptial", "--mode", "words", "--json", "-k", 1)
    assert found.stderr == "searched for ransom instead of rasnom, hospital instead of hosptial: no document has them\n"
    assert json.loads(found.stdout)[0]["corrected"] == {"rasnom": "ransom", "hosptial": "hospital"}
