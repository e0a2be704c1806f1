from __future__ import annotations

import pytest

from ctx_embed import SearchIndex
from ctx_embed.cli.index import documents as index_documents
from ctx_embed.index.following.records import FolderOptions, follow
from tests.helpers.cli import Command

COMMAND = Command("index")


@pytest.fixture
def index(tmp_path, hash_model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Title\n\nFirst line.\nSecond line.\n")
    with SearchIndex.create(tmp_path / "notes.index", hash_model, chunk="sentences") as index:
        index.add(
            ["First line.\nSecond line.", "One page.\fAnother page.", "lost", "plain"],
            ["a", "b", "c", 4],
            [{"source": "notes/a.md", "line": 3}, {"source": "b.pdf", "page": 7}, {"source": "\0"}, {"line": 2}],
        )
        yield index


def test_a_passage_knows_its_line_and_its_page(index, tmp_path, monkeypatch):
    file = tmp_path / "notes" / "a.md"
    hits = {hit.text: hit for hit in index.search("Second line.", 9)}
    source = index.source(hits["Second line."])
    assert source == ("notes/a.md", file, 4, None)
    assert (source.label, source.url) == ("notes/a.md:4", f"{file.as_uri()}#4")
    assert index.source("a").line == 3
    monkeypatch.chdir("/")
    assert index.source("a").path == file
    page = index.source(hits["Another page."])
    assert (page.label, page.path, page.url) == ("b.pdf, page 8", None, None)
    assert index.source("c") is index.source(4) is index.source("nothing") is None
    # Files are found in the folders of the index.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.pdf").write_bytes(b"%PDF")
    with index.writer.editing() as edit:
        follow(edit.store, str(tmp_path / "elsewhere"), False, FolderOptions())
    source = index.source("b")
    assert source.path == tmp_path / "elsewhere" / "b.pdf"
    assert source.url.endswith("/elsewhere/b.pdf#page=7")


def test_hits_show_their_sources(index, capsys, monkeypatch):
    from ctx_embed.cli.index.query import print_hits

    hits = index.search("Second line.", 2, context=1)
    sources = [index.source(hit) for hit in hits]
    print_hits("second", hits, sources)
    relevance = ["relevance", f"{hits[0].relevance:.2f}"]
    heading, passage, around, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["1.0000", "fused", f"{hits[0].fused:.4f}", *relevance, "a", "notes/a.md:4"]
    assert passage == "    Second line."
    assert around.strip() == "First line. Second line."
    assert "\x1b" not in heading + passage
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_hits("second", hits, sources)
    printed = capsys.readouterr().out
    assert f"\x1b]8;;{sources[0].url}\x1b\\notes/a.md:4" in printed


def test_opening_the_file_of_a_document(index, tmp_path, monkeypatch):
    assert COMMAND.succeeds("open", index.path, "a") == f"{tmp_path / 'notes' / 'a.md'}:3\n"
    for name, said in (
        ("b", "file 'b.pdf' of the document 'b' is not found"),
        ("4", "has no metadata field 'source'"),
        ("x", "no document has the id 'x'"),
    ):
        assert said in COMMAND.fails("open", index.path, name)
    for name in ("VISUAL", "EDITOR", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(index_documents.sys, "platform", "linux")
    monkeypatch.setattr(index_documents.shutil, "which", lambda name: f"/usr/bin/{name}")
    file = tmp_path / "a.md"
    opened = ["/usr/bin/xdg-open", str(file)]
    for variable, value, line, page, expected in (
        ("HOME", "/", 3, None, None),
        ("DISPLAY", ":0", 3, None, opened),
        ("EDITOR", "vim -R", 3, None, ["vim", "-R", "+3", str(file)]),
        ("EDITOR", "vim -R", None, None, ["vim", "-R", str(file)]),
        ("EDITOR", "vim -R", None, 2, opened),
        ("VISUAL", "code", 3, None, ["code", "--goto", f"{file}:3"]),
    ):
        monkeypatch.setenv(variable, value)
        assert index_documents.opening_command(file, line, page) == expected
