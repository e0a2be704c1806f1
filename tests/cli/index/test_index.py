import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ctx_embed.errors import UnknownFieldsWarning
from ctx_embed.index.search_index import SearchIndex
from tests.conftest import make_model
from tests.helpers.cli import Command, file
from tests.reading.samples import pdf

pytestmark = pytest.mark.usefixtures("default_model")
COMMAND = Command("index")
run, succeeds = COMMAND.run, COMMAND.succeeds


def fails(*arguments, **options) -> str:
    """Return the error of a run, with paths in the current folder."""
    return COMMAND.fails(*arguments, **options).replace(f"{Path.cwd()}/", "")


@pytest.fixture
def texts(here, sentences):
    Path("notes.txt").write_text("\n\n  \n".join(sentences) + "\n")
    return "notes.txt"


def info(index: str) -> dict:
    return json.loads(succeeds("info", index, "--json"))


def test_build_query_info(texts, sentences, tiny_model_path):
    options = ["--model", tiny_model_path, "--factory", "HNSW8", "--field", "review"]
    succeeds("build", "-", "a.index", *options, input='{"review": "the cat"}\n')
    assert info("a.index").items() >= {"model": str(tiny_model_path), "factory": "HNSW8"}.items()
    assert succeeds("build", texts, "notes.index") == "8 documents indexed in notes.index\n"
    hit, _ = json.loads(succeeds("query", "notes.index", sentences[3], "-k", 2, "--json"))
    fields = {"id", "score", "text", "start", "stop", "metadata", "fused", "late", "relevance", "snippet", "answered"}
    assert hit.keys() == fields
    assert (hit["text"], hit["id"], hit["metadata"]) == (sentences[3], 3, {})
    assert hit["score"] == pytest.approx(1, abs=1e-6)
    lines = succeeds("query", "notes.index", sentences[3], "-k", 2, "--mode", "dense").splitlines()
    assert lines[:2] == ["1.0000  relevance 0.94  3", "    a dull film without one good idea"]
    assert len(lines) == 4
    assert info("notes.index").items() >= {"model": "default", "documents": 8}.items()
    shown = succeeds("info", "notes.index")
    assert f"{'documents':<18} 8\n" in shown
    assert f"{'faiss':<18} exact: every vector is compared\n" in shown
    assert os.listdir("notes.index") == ["index.sqlite"]


def test_info_says_how_faiss_searches(index):
    faiss = {"kind": "IVF512,SQ8", "for": "IVF512,SQ8", "effort": 24, "recall": {"passages": 1.0, "words": 0.985}}
    for facts, said in (
        (faiss, "IVF512,SQ8, effort 24, recall@10 1 of passages, 0.985 of short queries"),
        ({**faiss, "kind": "Flat"}, "exact: every vector is compared, as IVF512,SQ8 did not reach a recall@10 of 0.98"),
    ):
        with SearchIndex.open(index) as opened:
            opened.writer.folder.run("INSERT OR REPLACE INTO faiss VALUES (?, ?, X'')", ("a" * 32, json.dumps(facts)))
        assert f"{'faiss':<18} {said}\n" in succeeds("info", index)


def test_an_index_that_exists_needs_a_flag(texts, sentences):
    rows = file("rows.jsonl", *(json.dumps({"id": f"s{n}", "text": text}) for n, text in enumerate(sentences)))
    broken = file("broken.jsonl", '{"text": "the cat", "id": "new"}', '{"text": ')
    succeeds("build", texts, "old")
    before = Path("old/index.sqlite").read_bytes()
    assert fails("build", rows, "old").startswith("old: already exists; add to it (--append, --upsert) or replace it")
    assert fails("build", broken, "old", "--overwrite").startswith("broken.jsonl, line 2: not JSON")
    assert Path("old/index.sqlite").read_bytes() == before
    succeeds("build", rows, "old", "--append")
    assert info("old")["documents"] == 16
    assert succeeds("build", rows, "old", "--upsert", "--resume") == "8 documents added to old\n"
    assert succeeds("build", rows, "old", "--upsert", "--resume").startswith("nothing to do: 8 documents were indexed")
    for flag, said in (("--append", "indexed in"), ("--upsert", "added to"), ("--overwrite", "indexed in")):
        # Each of them makes an index if there is none.
        assert succeeds("build", rows, "new", flag) == f"8 documents {said} new\n"
        assert info("new")["documents"] == 8


def test_an_index_replaces_no_other_files_and_overwriting_needs_no_whole_index(texts):
    Path("other").mkdir()
    file("other/precious.txt", "keep me")
    for flags in ([], ["--overwrite"]):
        assert fails("build", texts, "other", *flags).startswith("other: has files that do not belong to an index; ")
        assert fails("build", texts, texts, *flags).startswith(f"{texts}: is a file; choose a new or empty folder")
    assert Path("other/precious.txt").read_text() == "keep me\n"
    succeeds("build", texts, "notes.index")
    Path("notes.index/index.sqlite").write_text("nothing")
    assert "cannot be read (file is not a database)" in fails("query", "notes.index", "x")
    succeeds("build", texts, "notes.index", "--overwrite")
    assert info("notes.index")["documents"] == 8


def test_an_index_of_another_model(texts, tiny_model_path, tokenizer):
    make_model(tokenizer, steps=1, rank=2).save_pretrained("other")
    succeeds("build", texts, "a.index")
    for arguments in (["query", "a.index", "x"], ["build", texts, "a.index", "--append"]):
        line = fails(*arguments, "--model", "./other")
        assert line.startswith("a.index: built with the model 'default', fingerprint ")
        assert "open it with the model it was built with, or embed its documents again: ctx-embed index reembed" in line
    succeeds("query", "a.index", "x", "--model", tiny_model_path)
    command = line.partition("again: ctx-embed index ")[2]
    assert succeeds(*shlex.split(command)).startswith("a.index: 8 documents embedded again with the model ")
    assert succeeds(*shlex.split(command)) == "a.index: nothing to do, it has the vectors of this model\n"
    succeeds("query", "a.index", "x")
    assert succeeds("verify", "a.index") == "a.index: whole, 8 documents\n"


def built(*rows: dict) -> str:
    """Build an index of rows and return its path."""
    succeeds("build", file("rows.jsonl", *map(json.dumps, rows)), "notes.index")
    return "notes.index"


@pytest.fixture
def index(here, sentences):
    return built(*({"id": n if n % 2 else f"s{n}", "text": text, "n": n} for n, text in enumerate(sentences)))


def test_get_and_delete(index, sentences):
    assert json.loads(succeeds("get", index, "3")) == {"text": sentences[3], "id": 3, "metadata": {"n": 3}}
    assert [json.loads(line)["id"] for line in succeeds("get", index, "s2", "1").splitlines()] == ["s2", 1]
    assert fails("get", index, "99", "9" * 20) == f"{index}: no document has the id '99', '{'9' * 20}'"
    said = f"2 of 3 documents deleted from {index} (no document has the id 'nobody')\n"
    assert succeeds("delete", index, "3", "s2", "nobody") == said
    for options, done in (["--dry-run"], "would be deleted"), ([], "deleted"):
        said = f"3 of 6 documents {done} from {index}\n"
        assert succeeds("delete", index, "--where", "n >= 5", *options) == said
    assert succeeds("compact", index) == f"{index}: 5 vectors removed, 3 documents\n"
    assert succeeds("verify", index) == f"{index}: whole, 3 documents\n"
    assert [json.loads(line)["metadata"]["n"] for line in succeeds("get", index).splitlines()] == [0, 1, 4]
    with pytest.warns(UnknownFieldsWarning, match="^no document has a field 'm'"):
        assert run("get", index, "--where", "m < 3").output == "no documents\n"


def test_ids_and_values_of_fields_print_as_they_were_typed():
    ids = (-5, "-6", "007", 7, "8", 2**63 - 1, "a")
    path = built(*({"id": identifier, "text": "a"} for identifier in ids))
    assert tuple(json.loads(line)["id"] for line in succeeds("get", path, "--", *ids).splitlines()) == ids
    said = f"2 of 3 documents deleted from {path} (no document has the id '9')\n"
    assert succeeds("delete", path, "--", "-5", "8", "9") == said
    texts = ["", " 5", "1.10", "007", "1e3", "+5", "0x1", "True", "None", "NaN"]
    texts += ["-Infinity", "-0", "1_0", "1,5", "٣", "[1"]
    numbers = ["5", "-5", "0", "1.5", "-0.25", "1e-07", "100000000000000000"]
    typed = [*texts, *numbers, "9" * 30, "0." + "3" * 30, "true", "false", "2024-01-31"]

    def put(*fields: str) -> None:
        succeeds("set", path, "a", *(part for field in fields for part in ("-m", field)))

    put(*(f"{place}={value}" for place, value in enumerate(typed)))
    stored = json.loads(succeeds("get", path, "a"))["metadata"]
    for place, value in enumerate(typed):
        found = stored[str(place)]
        assert (found if isinstance(found, str) else json.dumps(found)) == value
        assert isinstance(found, bool) == (value in ("true", "false"))
        assert type(found) in (int, float) or value not in numbers
        assert isinstance(found, str) or value not in texts
    put('x=["1", 1.10, {"y": 007}]', 'y=["1", 1.10, {"y": 7}]', 'z="5"', "0=null")
    assert succeeds("set", path, "--where", "z = '5'", "-m", "n=A=x") == f"metadata of 1 document set in {path}\n"
    stored = json.loads(succeeds("get", path, "a"))["metadata"]
    assert (stored["x"], stored["y"]) == ('["1", 1.10, {"y": 007}]', ["1", "1.10", {"y": 7}])
    assert (stored["z"], stored["n"], "0" in stored) == ("5", "A=x", False)
    assert fails("set", path, "9", "-m", "n=5") == "no document has the id '9'"


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
    queries, options = file("queries.txt", "cats", "", "films"), ("-k", 2, "--json", "--mode", "words")
    both = json.loads(succeeds("query", index, "cats", "films", *options))
    assert json.loads(succeeds("query", index, "--queries", queries, *options)) == both
    assert [len(hits) for hits in both] == [2, 2]
    assert "**film**" in both[1][0]["snippet"]
    lines = succeeds("query", index, "--queries", "-", "--jsonl", "-k", 2, input="cats\nfilms\n").splitlines()
    assert [json.loads(line)["query"] for line in lines] == ["cats", "cats", "films", "films"]
    table = succeeds("query", index, "cats", "films", "-k", 1).splitlines()
    assert (table[0], table[3:5]) == ("cats", ["", "films"])
    assert fails("query", index, "--queries", "-", input="") == "-: no queries; give at least one line of text"
    assert fails("query", index, " ") == "the query is empty; give a word or a question"


def test_usage_mistakes():
    for arguments, message in (
        ("query index x --json --jsonl", "--json and --jsonl cannot be combined"),
        ("query index x --queries y", "give either TEXT or --queries"),
        ("build a index --append --upsert", "--append and --upsert cannot be combined"),
        ("delete index", "give either IDs or --where FILTER"),
        ("set index 1 -m n", "must be NAME=VALUE, got 'n'."),
        ("get index 1 --where n=1", "give either IDs or --where"),
    ):
        assert message in fails(*arguments.split(), code=2)


def test_export_duplicates_and_topics(index):
    assert succeeds("export", index, "out") == "8 vectors of dimension 16 in out.npy, texts in out.jsonl\n"
    assert np.load("out.npy").shape == (8, 16)
    assert fails("export", index, "out").startswith("out.npy: already exists; replace it with --overwrite")
    succeeds("export", index, "out", "--overwrite")
    assert fails("export", index, ".").startswith("cannot write .: it is a folder; name the file or folder to write")
    assert succeeds("duplicates", index, "--threshold", "-1", "-k", "2").count("\n") == 4
    assert len([*map(json.loads, succeeds("duplicates", index, "--threshold", "-1", "--jsonl").splitlines())]) == 28
    assert "no documents are" in run("duplicates", index, "--threshold", 1).stderr
    topics = json.loads(succeeds("topics", index, "-k", "2", "--json"))
    assert sum(topic["size"] for topic in topics) == 8
    assert succeeds("topics", index, "-k", "2", "-o", "topics.jsonl").count("\n") == 4
    rows = [json.loads(line) for line in Path("topics.jsonl").read_text().splitlines()]
    assert [len({row[name] for row in rows}) for name in ("id", "topic")] == [8, 2]


@pytest.fixture
def folder(here):
    """A folder of three notes, in the current one."""
    (here / "notes").mkdir()
    for name in ("a.md", "b.md", "c.md"):
        (here / "notes" / name).write_text(f"A note, {name}.")
    return here / "notes"


def test_a_dry_run_says_what_would_change_and_changes_nothing(folder):
    succeeds("build", "notes", "n.index")
    before = succeeds("get", "n.index")
    (folder / "a.md").unlink()
    (folder / "b.md").write_text("Another note.")
    (folder / "d.md").write_text("A new note.")
    (folder / ".hidden.md").touch()
    os.mkdir(os.fsencode(folder) + b"/\xff")
    (folder / "\udcff" / "e.md").write_text("A note under a name that is no text.")
    counted = json.loads(succeeds("sync", "notes", "n.index", "--dry-run", "--json"))
    assert succeeds("get", "n.index") == before
    numbers = {"added": 1, "changed": 1, "removed": 1, "unchanged": 1, "documents": 2, "skipped": {"hidden": 1}}
    assert counted.items() >= numbers.items()
    assert list(counted["failed"].values()) == ["its name is not UTF-8"]
    shutil.rmtree(os.fsencode(folder) + b"/\xff")
    for words, options in (("would be ", ["--dry-run"]), ("", [])):
        said = succeeds("sync", "notes", "n.index", *options)
        assert said.startswith(f"n.index: 1 file {words}added, 1 changed, 1 removed, 1 unchanged")
        assert sorted(said.splitlines()[1:]) == ["added: d.md", "changed: b.md", "removed: a.md"] * bool(words)
    for number in range(12):
        (folder / f"x{number:02}.md").write_text("One of many.")
    said = succeeds("sync", "notes", "n.index", "--dry-run").splitlines()
    assert said[1] == f"added: {', '.join(f'x{number:02}.md' for number in range(10))}, ..."


def test_the_last_line_says_what_was_read_and_what_was_not(folder):
    (folder / "b.md").write_bytes("Un café crème, très bon.".encode("latin-1"))
    (folder / "c.md").rename(folder / "c.txt")
    (folder / "broken.pdf").write_text("%PDF-1.4")
    said = "; could not read broken.pdf (not PDF, or "
    assert succeeds("build", "notes", "n.index").startswith(f"n.index: 3 files added (3 documents, 3 passages){said}")
    assert succeeds("build", "notes", "n.index").startswith(f"n.index: nothing changed in 3 files{said}")
    pdf(folder / "broken.pdf")
    assert succeeds("sync", "notes", "n.index") == "n.index: 1 file added, 3 unchanged (1 document, 2 passages)\n"
    (folder / "link.md").symlink_to(folder.parent)
    assert succeeds("sync", "notes", "n.index", "--include", "*.md") == (
        "n.index: 2 files removed, 2 unchanged; skipped 2 not included (broken.pdf, c.txt), "
        "1 link out of the folder (link.md)\n"
    )
    assert succeeds("get", "n.index", "b.md").startswith('{"text": "Un café')


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_watch_follows_changes_and_ends_with_ctrl_c(folder, tiny_model_path):
    succeeds("build", "notes", "n.index", "--include", "a*", "--model", tiny_model_path)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "ctx_embed", "index", "sync", "notes", "n.index", "--watch"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout.readline() == "n.index: nothing changed in 1 file; skipped 2 not included (b.md, c.md)\n"
        assert process.stderr.readline() == "Watching notes; Ctrl-C ends.\n"
        # The watcher may need a moment to start: changes go on until one is seen.
        line, number, end = "", 0, time.monotonic() + 60
        os.set_blocking(process.stdout.fileno(), False)
        while not line and time.monotonic() < end:
            number += 1
            (folder / "a new.txt").write_text(f"Changed {number} times.")
            time.sleep(1)
            line = process.stdout.readline()
        assert "1 file added, 1 unchanged (1 document, 1 passage)" in line
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
