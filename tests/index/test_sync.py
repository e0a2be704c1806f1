"""An index follows a folder: what is new, changed and gone, and nothing else, also after interruptions."""

import json
import os
import re
import shutil
import unicodedata
from contextlib import closing
from functools import partial
from pathlib import Path

import openpyxl
import pandas
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ctx_embed import SearchIndex
from ctx_embed.errors import installation
from ctx_embed.index import sync, writer
from ctx_embed.index.build import build_index
from ctx_embed.index.database import Database
from ctx_embed.index.records import FolderOptions, follow, new_folder
from ctx_embed.reading import formats
from ctx_embed.texts import Document
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, Interrupting
from tests.reading.samples import FIRST, SECOND, pdf

LONG = "\n\n".join(f"## Part {number}\n\n" + f"word{number} " * 150 for number in range(4))


FILES = {
    "a.md": f"# Title\n\n{LONG}",
    "sub/b.txt": "one line\n\nanother line\n",
    "sub/code.py": "def f():\n    return 1\n",
    "table.csv": "text,n\nfirst,1\nsecond,2\n",
    "plain.json": "[1]\nx\n",
    "rows.jsonl": '{"id": "r1", "text": "a record"}\n{"text": "without id"}\n',
    ".hidden": "no",
    "empty.txt": " \n",
    "image.png": "\0\1",
}


def put(folder: Path, files: dict[str, str]) -> Path:
    """Write texts to files of a folder, by name."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def folder(tmp_path):
    return put(tmp_path / "notes", FILES)


@pytest.fixture
def index(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="passages:200") as index:
        yield index


def place(document: Document) -> str:
    """Return the id of a document, of a part of a file its line."""
    fields = document.metadata
    is_part = re.fullmatch(f"{re.escape(fields.get('source', ''))}:[0-9a-f]{{12}}(-[0-9]+)?", str(document.id))
    return f"{fields['source']}:{fields['line']}" if is_part else str(document.id)


def ids(index) -> list:
    return sorted(map(place, index.documents()))


def at(index, wanted: str) -> Document:
    (found,) = (document for document in index.documents() if place(document) == wanted)
    return found


IDS = ["a.md", "plain.json", "r1", "rows.jsonl:2", "sub/b.txt", "sub/code.py", "table.csv:2", "table.csv:3"]


def test_a_folder_becomes_documents(index, folder):
    synced = index.sync(folder)
    assert ids(index) == IDS
    assert (synced.added, synced.documents, synced.unchanged) == (6, 8, 0)
    assert synced.skipped == {"hidden": 1, "empty": 1, "binary": 1}
    assert index.verify() == []
    metadata = index.get("a.md").metadata
    assert re.fullmatch(r"20.*\+00:00", metadata.pop("modified"))
    assert metadata == {"source": "a.md", "title": "Title", "line": 1}
    assert at(index, "table.csv:3").metadata.items() >= {"n": 2, "line": 3}.items()
    assert index.get("plain.json").text == "[1]\nx\n"
    hits = [hit for hit in index.search("anything", k=50) if hit.id == "a.md"]
    assert sorted(hit.text.split("\n")[0] for hit in hits) == ["# Title", "## Part 1", "## Part 2", "## Part 3"]
    assert synced.passages == 7 + len(hits)


def test_each_record_names_its_line_or_its_row_and_sheet_and_each_passage_its_page(index, tmp_path):
    tables = {"list.json": '[{"text": "four"}, {"text": "five"}]', "lines.csv": 'text\n"six\nseven"\neight\n'}
    folder, book = put(tmp_path / "tables", tables), openpyxl.Workbook()
    for name, rows in (("First", [["text"], ["one"], [None], ["two"]]), ("Second", [[], ["text"], ["three"]])):
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(folder / "book.xlsx")
    pdf(folder / "report.pdf")
    index.sync(folder)
    found = {document.text: document.metadata for document in index.documents()}
    cells = {text: book[at["sheet"]].cell(at["row"], 1).value for text, at in found.items() if "sheet" in at}
    assert cells == {text: text for text in ("one", "two", "three")}
    assert [found[text].get("row") for text in ("four", "five", "eight")] == [1, 2, None]
    assert [found[text]["line"] for text in ("six\nseven", "eight")] == [3, 4]
    assert index.get("report.pdf").metadata["page"] == 1
    passages = [hit for hit in index.search("x", k=50) if hit.id == "report.pdf"]
    assert {hit.text: hit.page for hit in passages} == {FIRST: 1, SECOND: 2}
    index.sync(folder, documents="paragraphs")
    found = {document.text: document.metadata["page"] for document in index.documents("source = 'report.pdf'")}
    assert found == {FIRST: 1, SECOND: 2}


hashed = sync.content_hash


def test_only_differences_are_read_and_a_record_that_is_gone_is_removed(index, folder, hash_model, monkeypatch):
    index.sync(folder)
    assert index.search("title", where="modified < '2000'") == []
    index.add(["by hand"], ["own"])
    seen, read = len(hash_model.seen), []
    monkeypatch.setattr(sync, "content_hash", lambda file: read.append(file.source) or hashed(file))
    again = index.sync(folder)
    assert (again.added, again.changed, again.removed, again.unchanged) == (0, 0, 0, 6)
    assert again.skipped == {"hidden": 1, "empty": 1, "binary": 1}
    assert read == []
    put(folder, {"sub/b.txt": "one line\n\nchanged", "new.md": "new"})
    os.utime(folder / "a.md", (1, 1))
    os.remove(folder / "table.csv")
    again = index.sync(folder)
    assert (again.added, again.changed, again.removed, again.unchanged) == (1, 1, 1, 4)
    assert sorted(set(read)) == ["a.md", "new.md", "sub/b.txt"]
    assert hash_model.seen[seen:] == ["new", "one line\n\nchanged"]
    assert ids(index) == sorted({*IDS, "new.md", "own"} - {"table.csv:2", "table.csv:3"})
    assert {hit.id for hit in index.search("title", where="modified < '2000'")} == {"a.md"}
    assert index.verify() == []
    shutil.rmtree(folder / "sub")
    assert index.sync(folder).removed == 2
    assert "sub/b.txt" not in index
    put(folder, {"rows.jsonl": '{"id": "r2", "text": "another"}\n{"text": "without id"}\n'})
    seen = len(hash_model.seen)
    assert index.sync(folder).changed == 1
    assert "r1" not in index
    assert hash_model.seen[seen:] == ["another"]
    put(folder, {"a0.jsonl": '{"id": "r2", "text": "moved"}\n', "rows.jsonl": '{"id": "r3", "text": "other"}\n'})
    index.sync(folder)
    assert (index.get("r2").text, index.get("r3").text) == ("moved", "other")


@pytest.mark.parametrize("tool", ["replace", "in place"])
def test_an_edit_that_keeps_size_and_time_is_read_and_the_same_text_is_not(index, folder, hash_model, tmp_path, tool):
    """A file is put in another's place, as mv, rsync, tar and git do, or written over, as cp -a does."""
    file, old, new = folder / "sub/b.txt", "the first text", "another text!!"

    def write(text: str) -> None:
        """Give the file a text, and the size and the modification time that it has."""
        path = tmp_path / "other" if tool == "replace" else file
        path.write_text(text)
        os.utime(path, ns=(10**18, 10**18))
        os.replace(path, file)

    write(old)
    index.sync(folder)
    seen = len(hash_model.seen)
    write(new)
    assert index.sync(folder, dry_run=True).changed == 1
    synced = index.sync(folder)
    assert (synced.changed, synced.unchanged, synced.documents) == (1, 5, 1)
    assert index.get("sub/b.txt").text == new
    assert hash_model.seen[seen:] == [new]
    edited = index._folder.state()
    # The same text in other files, as after a move to another disk: hashed, and neither embedded nor changed.
    write(new)
    shutil.copytree(folder, tmp_path / "moved")
    shutil.rmtree(folder)
    (tmp_path / "moved").rename(folder)
    synced = index.sync(folder)
    assert (synced.changed, synced.added, synced.removed, synced.unchanged) == (0, 0, 0, 6)
    assert hash_model.seen[seen:] == [new]
    assert index._folder.state().edited == edited.edited
    assert index.verify() == []


def test_checksums_show_what_the_system_does_not(index, folder, hash_model, monkeypatch):
    index.sync(folder)
    seen, read = len(hash_model.seen), []
    (folder / "sub/b.txt").write_text("one line\n\nanother text\n")
    with closing(Database(index.path)) as store, store.writing():
        found = os.stat(folder / "sub/b.txt")
        facts = found.st_mtime_ns, found.st_ino, found.st_ctime_ns, found.st_size
        store.run("UPDATE files SET modified = ?, inode = ?, changed = ?, size = ? WHERE source = 'sub/b.txt'", facts)
    assert index.sync(folder).changed == 0
    monkeypatch.setattr(sync, "content_hash", lambda file: read.append(file.source) or hashed(file))
    dry = index.sync(folder, checksum=True, dry_run=True)
    assert (dry.changed, dry.unchanged) == (1, 5)
    read.clear()
    assert index.sync(folder, checksum=True).changed == 1
    assert set(FILES) - {".hidden", "image.png"} <= set(read)
    assert hash_model.seen[seen:] == ["one line\n\nanother text"]
    assert index.sync(folder, checksum=True).unchanged == 6


def test_what_a_document_is(index, folder):
    files = [*sorted(FILES.keys() - {".hidden", "empty.txt", "image.png"})]
    for unit, some in (
        ("lines", {"plain.json:1", "plain.json:2", "sub/b.txt:1", "sub/b.txt:3"}),
        ("paragraphs", {"sub/b.txt:1", "sub/b.txt:3", "sub/code.py:1"}),
        ("records", {*IDS}),
    ):
        synced = index.sync(folder, documents=unit)
        found = {place(document): document for document in index}
        assert found.keys() >= some
        assert list(synced.failed) == (["plain.json"] if unit == "records" else [])
        if unit == "records":
            assert found.keys() == some
        else:
            assert (found["sub/b.txt:3"].text, found["sub/b.txt:3"].metadata["line"]) == ("another line", 3)
        # Another choice replaces all documents of the folder, and is kept.
        assert index.sync(folder, documents="files").changed == len(files)
        assert index.sync(folder).unchanged == len(files)
        assert ids(index) == files


def test_a_name_means_the_same_in_any_unicode_form(index, tmp_path):
    """Composed as keyboards write é, or decomposed as macOS does."""
    folder, wanted = tmp_path / "notes", "privé/thé.md"
    decomposed = unicodedata.normalize("NFD", wanted)
    put(folder, {decomposed: "Tea is dear.\n"})
    assert (index.sync(folder).added, index.sync(folder).unchanged) == (1, 1)
    for name in (wanted, decomposed):
        assert index.get(name).metadata["source"] == wanted
        assert index.count(f'source = "{name}"') == index.count(f'source contains "{name[:6]}"') == 1
    assert index.source(wanted).path == folder / decomposed
    assert index.sync(folder, exclude=[wanted[:6]], allow_empty=True).removed == 1


def test_globs_are_stored_what_they_leave_out_is_removed_and_one_that_matches_nothing_is_named(index, folder):
    for options in ({"include": ["*.md", "*.txt"]}, {}):
        index.sync(folder, **options)
        assert ids(index) == ["a.md", "sub/b.txt"]
    options = {"include": ["*.md", "*.rst"], "exclude": ["./sub/", "drafts/", "!x", ".hidden"]}
    synced = index.sync(folder, **options)
    assert synced.remarks == [
        "--include '*.rst' matches no file",
        "--exclude 'drafts/' matches nothing",
        "--exclude '!x' matches nothing",
    ]
    assert (synced.removed, ids(index)) == (1, ["a.md"])
    assert index.sync(folder, dry_run=True).remarks == synced.remarks
    for globs in ("*.md", ["*.md", 5], 5):
        assert "include must be a list of globs, got" in error(index.sync, folder, include=globs)


def test_files_that_cannot_be_read_are_named_and_stop_nothing(index, folder, monkeypatch):
    # What is too large to read, such as the image of a disk, is not hashed.
    monkeypatch.setattr(sync, "content_hash", lambda file: hashed(file) if file.size < 1 << 30 else 1 / 0)
    with (folder / "disk.log").open("wb") as disk:
        disk.truncate(1 << 40)
    (folder / "bad.pdf").write_text("%PDF-1.4 nothing")
    pdf(folder / "secret.pdf", password="x")
    (folder / "a.md").unlink()
    (folder / "a.md").symlink_to(folder / "nothing")
    expected = {"a.md": "", "bad.pdf": "not PDF", "disk.log": "larger than 256 MB", "secret.pdf": "password-protected"}
    for name, record, reason in (
        ("broken.jsonl", "{broken", "line 2: not JSON"),
        ("infinite.jsonl", '{"text": "x", "m": 1e999}', "document 2: the metadata field 'm' cannot be stored as JSON"),
        ("large.jsonl", f'{{"text": "x", "id": {10**30}}}', f"document 2: the id {10**30} does not fit into 64 bits"),
        ("twice.jsonl", '{"text": "x", "id": 7}\n{"text": "y", "id": 7}', "line 3: the id '7' comes twice"),
    ):
        put(folder, {name: f'{{"text": "fine"}}\n{record}\n'})
        expected[name] = reason
    for _ in range(2):
        failed = index.sync(folder).failed
        assert list(failed) == sorted(expected)
        assert all(failed[name].startswith(reason) for name, reason in expected.items())
        assert ids(index) == IDS[1:]
    # Messages are one printable line, and shorten long names.
    for name in expected:
        (folder / name).unlink()
    long = f"{'d' * 200}/{'e' * 200}/broken.pdf"
    put(folder, dict.fromkeys(["a\nb\x1b[31m.pdf", long, os.fsdecode(b"caf\xe9.txt")], "no"))
    message = index.sync(folder).left_out
    assert message.isprintable()
    for said in ("a?b?[31m.pdf (not PDF", "caf?.txt (its name is not UTF-8)", "broken.pdf (not PDF"):
        assert said in message
    assert "d" * 100 not in message


def test_a_download_that_was_cut_short_leaves_the_former_text(index, folder):
    whole = folder / "report.pdf"
    pdf(whole)
    index.sync(folder)
    former = {name: index.get(name).text for name in ("report.pdf", "a.md", "r1")}
    content = whole.read_bytes()
    (folder / "a.md").write_bytes(bytes(1000))
    (folder / "rows.jsonl").write_text("{")
    for broken in (b"", content[:100], content[:-300], bytes(len(content))):
        whole.write_bytes(broken)
        for _ in range(2):
            synced = index.sync(folder)
            assert "its former text stays in the index" in synced.failed["report.pdf"]
            assert "report.pdf" in synced.left_out
            assert synced.removed == synced.changed == 0
            assert {name: index.get(name).text for name in former} == former
    pdf(whole, pages=(SECOND,))
    assert index.sync(folder).changed == 1
    assert index.get("report.pdf").text == SECOND
    whole.unlink()
    assert index.sync(folder).removed == 1
    # An emptied text is removed, and a table without records is empty.
    put(folder, {"a.md": "\n", "rows.jsonl": FILES["rows.jsonl"], "none.csv": "text,n\n"})
    synced = index.sync(folder)
    assert (synced.failed, synced.skipped["empty"], synced.removed) == ({}, 3, 1)
    assert "a.md" not in index


@pytest.mark.parametrize("batch", [1, 2048])
@pytest.mark.parametrize("now", ["text,n\nfirst,1\n", "text,n\na,1,2\n", "text,id\na,r1\nb,plain.json\n", None])
def test_a_table_that_changes_while_it_is_read(index, folder, monkeypatch, now, batch):
    monkeypatch.setattr(sync.writer, "BATCH_DOCUMENTS", batch)
    index.sync(folder, include=["/*.jsonl", "/plain.json"])
    read = sync.record_documents

    def changing(file, *options):
        documents = read(file, *options)
        if file.source == "table.csv":
            yield next(documents)
            os.unlink(file.path) if now is None else (folder / "table.csv").write_text(now)
        yield from documents

    with monkeypatch.context() as patched:
        patched.setattr(sync, "record_documents", changing)
        synced = index.sync(folder, include=[])
        assert synced.failed == {"table.csv": "changed while it was read"}
        assert ids(index) == sorted({*IDS} - {"table.csv:2", "table.csv:3"})
        assert index.get("r1").text == "a record"
    (folder / "table.csv").write_text(FILES["table.csv"])
    assert index.sync(folder).added == 1
    assert ids(index) == IDS
    assert index.verify() == []


def test_a_change_of_the_same_size_while_a_file_is_read(index, folder, monkeypatch):
    def changing(file):
        if file.source == "sub/b.txt":
            put(folder, {file.source: "two line\n\nanother line\n"})
        return hashed(file)

    with monkeypatch.context() as patched:
        patched.setattr(sync, "content_hash", changing)
        index.sync(folder)
    assert index.get("sub/b.txt").text.startswith("one line")
    assert index.sync(folder).changed == 1
    assert index.get("sub/b.txt").text.startswith("two line")
    assert index.sync(folder).unchanged == 6


def test_what_was_left_out_is_read_once_its_library_is_installed_or_its_id_free(index, folder, monkeypatch):
    pdf(folder / "report.pdf")
    index.add(["by hand"], ["sub/b.txt"])
    with monkeypatch.context() as patched:
        patched.setattr(formats, "find_spec", lambda module: None)
        synced = index.sync(folder)
    assert synced.lacking == {".pdf": 1}
    assert f"left out 1 .pdf, whose reading needs the extra documents: {installation('documents')}" in synced.left_out
    assert synced.failed == {"sub/b.txt": "the id 'sub/b.txt' belongs to a document from elsewhere"}
    assert index.get("sub/b.txt").text == "by hand"
    index.delete("sub/b.txt")
    assert index.sync(folder).added == 2
    assert ids(index) == sorted([*IDS, "report.pdf"])
    assert index.get("sub/b.txt").text.startswith("one line")


def test_a_second_folder_is_named(index, folder, tmp_path):
    index.sync(folder)
    other = put(tmp_path / "more", {"a.md": "of the other"})
    index.sync(other)
    assert index.get("more/a.md").metadata["source"] == "more/a.md"
    assert index.get("a.md").metadata["title"] == "Title"
    (other / "a.md").unlink()
    assert index.sync(other, allow_empty=True).removed == 1
    assert ids(index) == IDS
    third = tmp_path / "deep" / "more"
    third.mkdir(parents=True)
    assert "the index follows another folder of this name" in error(index.sync, third)
    # A folder that is gone is no other folder.
    folder.rename(tmp_path / "unmounted")
    assert index.sync(put(tmp_path / "third", {"a.md": "not that file"})).added == 1
    assert ids(index) == sorted([*IDS, "third/a.md"])


def test_a_folder_that_cannot_be_listed_keeps_its_documents(index, folder, monkeypatch):
    index.sync(folder)
    put(folder, {"sub.txt": "sorts before the files in sub/"})
    listed = os.scandir

    def failing(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "scandir", failing)
    synced = index.sync(folder)
    assert (synced.added, synced.removed, synced.unchanged) == (1, 0, 6)
    assert synced.failed == {"sub": "cannot be listed (Permission denied)"}
    assert ids(index) == sorted([*IDS, "sub.txt"])


@pytest.fixture
def many(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "STEP_DOCUMENTS", 8)
    monkeypatch.setattr(writer, "BATCH_DOCUMENTS", 8)
    return put(tmp_path / "many", {f"{number:02}.txt": f"text {number}" for number in range(40)})


def test_an_interrupted_run_or_build_is_continued(index, tmp_path, many, hash_model):
    index.embedder.backend = Interrupting(16)
    with pytest.raises(KeyboardInterrupt):
        index.sync(many)
    assert len(index) == 16
    index.embedder.backend = HashModel()
    assert vars(index.sync(many)).items() >= {"added": 24, "unchanged": 16}.items()
    path = tmp_path / "built"
    with pytest.raises(KeyboardInterrupt):
        build_index(many, path, model=Interrupting(24))
    assert not path.exists()
    built = build_index(many, path, model=hash_model, resume=True)
    assert (built.documents, built.folders.added, built.folders.unchanged) == (40, 16, 24)
    assert hash_model.seen == [f"text {number}" for number in range(24, 40)]
    assert not path.with_name("built.partial").exists()
    assert build_index(many, path, model=hash_model).folders.unchanged == 40


def test_a_build_from_folders_and_files(tmp_path, folder, hash_model):
    # An index inside its folder is not read.
    lines, path = put(tmp_path, {"lines.txt": "line one\nline two\n"}) / "lines.txt", folder / "built"
    build = partial(build_index, path=path, model=hash_model)
    built = build([lines, folder])
    assert (built.documents, built.folders.documents) == (10, 8)
    with SearchIndex.open(path, hash_model) as index:
        assert index.get(1).text == "line two"
        assert "notes/a.md" in index
        assert index.describe()["chunk"] == "passages"
        (path / "folder").mkdir()
        assert "lies in the index itself" in error(index.sync, path / "folder")
        (path / "folder").rmdir()
    assert "already exists; add to it (--append" in error(build, [lines, folder])
    again = build(folder, mode="append").folders
    assert (again.unchanged, again.skipped["search index"]) == (6, 1)
    assert build([lines, folder], mode="append").documents == 2
    assert build(folder, mode="overwrite").documents == 8


def test_named_files_of_other_formats(tmp_path, hash_model):
    path = tmp_path / "built"
    build = partial(build_index, path=path, model=hash_model, mode="overwrite")
    pdf(tmp_path / "report.pdf")
    build(tmp_path / "report.pdf")
    with SearchIndex.open(path, hash_model) as index:
        assert index.ids() == [(tmp_path / "report.pdf").as_posix()]
        assert len(index.search("x")) == 2
    put(tmp_path, {"a.txt": "one\ntwo\n\nthree\n"})
    for unit, count in ((None, 3), ("lines", 3), ("paragraphs", 2), ("files", 1)):
        assert build(tmp_path / "a.txt", documents=unit).documents == count
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 \xa4\n")
    build(tmp_path / "a.txt", encoding="iso-8859-15")
    with SearchIndex.open(path, hash_model) as index:
        assert index.get(0).text == "café €"


def test_sources_that_cannot_be_used(tmp_path, monkeypatch, hash_model):
    monkeypatch.chdir(put(tmp_path, {"a.txt": "text\n", "empty/.x": "x"}))
    for sources, options, message in (
        ([], {}, "no source of documents: give a file, a folder or - (standard input)"),
        (["-", "-"], {}, "standard input is named twice, but can be read only once"),
        ("a.txt", {"include": ["*.md"]}, "--include, --exclude and --follow-links choose files of a folder; name one"),
        (".", {"embedding_field": "v"}, ".: --embedding-field needs files, got a folder; name its files"),
        ("a.txt", {"documents": "line"}, "unknown documents 'line': did you mean 'lines'? known are"),
        ("a.txt", {"documents": "records"}, "a.txt: only tables and JSONL have records"),
        ("a.pdf", {}, "a.pdf: no such file"),
        ("a.txt", {"path": "/"}, "cannot write /: it is a folder; name the file or folder to write in it"),
        ("empty", {}, "empty: no file that can be read; skipped 1 hidden"),
    ):
        assert error(build_index, sources, **{"path": "built", "model": hash_model, **options}).startswith(message)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "empty"]


def test_a_folder_that_is_an_index_or_whose_path_is_not_utf8(index, tmp_path, hash_model):
    SearchIndex.create(tmp_path / "other", hash_model).close()
    latin = put(tmp_path / os.fsdecode(b"caf\xe9"), {"a.txt": "text"})
    put(tmp_path, {"file": "x"})
    assert "must be a folder, got a file" in error(index.sync, tmp_path / "file")
    for run in (index.sync, partial(build_index, path=tmp_path / "built", model=hash_model)):
        said = f"{tmp_path / 'other'}: must be a folder of documents, got a search index"
        assert error(run, tmp_path / "other") == said
        assert error(run, latin) == f"{latin}: the path of the folder must be UTF-8; rename it"
    assert not any(path.name.startswith("built") for path in tmp_path.iterdir())


def test_dates_and_numbers_of_any_size(index, folder):
    digits = "9" * 5000
    put(folder, {"int.jsonl": f'{{"text": "a", "n": {10**30}}}\n', "digits.csv": f"text,n\na,{digits}\nb,1.{digits}\n"})
    os.utime(folder / "a.md", (10**10, 10**10))
    assert index.sync(folder).documents == len(IDS) + 3
    assert index.get("a.md").metadata["modified"].startswith("2262-04-11")
    assert index.sync(folder).changed == 0


def test_a_changed_file_brings_deleted_documents_back_and_keeps_metadata_that_people_set(index, folder):
    index.sync(folder)
    assert index.delete(where="source = 'sub/b.txt' or n = 1") == 2
    with closing(Database(index.path)) as store, store.writing():
        # The origin of a deleted document is no damage.
        store.connection.execute("INSERT INTO origins VALUES ('sub/b.txt', 1, '{}')")
    assert index.verify() == []
    assert index.sync(folder).unchanged == 6
    assert ids(index) == sorted({*IDS} - {"sub/b.txt", "table.csv:2"})
    put(folder, {"sub/b.txt": "another text", "table.csv": "text,n\nfirst again,1\nsecond,2\n"})
    synced = index.sync(folder)
    assert (synced.changed, synced.documents) == (2, 3)
    assert ids(index) == IDS
    index.update_metadata("a.md", {"stars": 5, "title": "By hand"})
    index.sync(put(folder, {"a.md": "# Alpha\n\nAnother text about the first letter."}))
    found = index.get("a.md")
    assert "Another text" in found.text
    assert (found.metadata["stars"], found.metadata["title"]) == (5, "By hand")
    index.update_metadata("a.md", {"stars": None, "source": "elsewhere"})
    os.utime(folder / "a.md", ns=(10**18, 10**18))
    index.sync(folder)
    index.sync(put(folder, {"a.md": "# Alpha\n\nA third text."}))
    metadata = index.get("a.md").metadata
    assert metadata.keys() == {"source", "title", "modified", "line"}
    assert (metadata["source"], metadata["modified"] > "2020") == ("elsewhere", True)
    assert index.verify() == []


def test_a_folder_that_lost_most_of_its_files_is_refused(index, folder, many, tmp_path):
    index.sync(folder)
    folder.rename(tmp_path / "unmounted")
    folder.mkdir()
    assert re.search(
        r"6 of its 6 files are gone \('.*', '.*', '.*', \.\.\.\); is its disk mounted\?.*--allow-empty",
        error(index.sync, folder),
    )
    assert ids(index) == IDS
    assert index.sync(folder, dry_run=True, allow_empty=True).removed == 6
    assert index.sync(folder, allow_empty=True).removed == 6
    assert ids(index) == []

    def lose(numbers: range) -> None:
        for number in numbers:
            (many / f"{number:02}.txt").unlink()

    index.sync(many)
    lose(range(15))
    assert index.sync(many).removed == 15
    lose(range(15, 36))
    # Half as many others take their place, or it is another folder.
    for number in range(9):
        assert "21 of its 25 files are gone" in error(index.sync, many)
        (many / f"new {number}.txt").write_text("new")
    synced = index.sync(many)
    assert (synced.removed, synced.added) == (21, 9)


def test_a_passage_knows_its_line_and_its_page(tmp_path, hash_model, monkeypatch):
    monkeypatch.chdir(put(tmp_path, {"notes/a.md": "# Title\n\nFirst line.\nSecond line.\n"}))
    file, located = tmp_path / "notes" / "a.md", SearchIndex.create("notes.index", hash_model, chunk="sentences")
    located.add(
        ["First line.\nSecond line.", "One page.\fAnother page.", "lost", "plain"],
        ["a", "b", "c", 4],
        [{"source": "notes/a.md", "line": 3}, {"source": "b.pdf", "page": 7}, {"source": "\0"}, {"line": 2}],
    )
    hits = {hit.text: hit for hit in located.search("Second line.", 9)}
    source = located.source(hits["Second line."])
    assert source == ("notes/a.md", file, 4, None)
    assert (source.label, source.url) == ("notes/a.md:4", f"{file.as_uri()}#4")
    assert located.source("a").line == 3
    monkeypatch.chdir("/")
    assert located.source("a").path == file
    page = located.source(hits["Another page."])
    assert (page.label, page.path, page.url) == ("b.pdf, page 8", None, None)
    assert located.source("c") is located.source(4) is located.source("nothing") is None
    # Files are found in the folders of the index.
    put(tmp_path, {"elsewhere/b.pdf": "%PDF"})
    with located.writer.editing() as edit:
        follow(edit.store, new_folder(edit.store, str(tmp_path / "elsewhere"), False, FolderOptions()))
    source = located.source("b")
    assert source.path == tmp_path / "elsewhere" / "b.pdf"
    assert source.url.endswith("/elsewhere/b.pdf#page=7")
    located.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), unit=st.sampled_from(["paragraphs", "lines", "records"]))
def test_metadata_never_move_to_another_text(tmp_path_factory, hash_model, data, unit):
    home = tmp_path_factory.mktemp("edits")
    folder, names = home / "notes", ["a.md", "b.txt"] if unit != "records" else ["a.csv", "b.jsonl"]
    folder.mkdir()
    texts = st.lists(st.sampled_from(["Alpha is here.", "Beta.", "Gamma\u00e9 was late.", "Delta"]), max_size=6)

    def write() -> None:
        for name in names:
            parts = data.draw(texts)
            between = "\n\n" if unit == "paragraphs" else "\n"
            if name.endswith("csv"):
                parts = ["text", *parts]
            elif name.endswith("jsonl"):
                parts = [json.dumps({"text": part}) for part in parts]
            (folder / name).write_text(between.join([*parts, ""]))

    with SearchIndex.create(home / "index", hash_model) as index:
        marks: dict[str, str] = {}
        for number in range(4):
            write()
            if number == 2:
                os.rename(folder, home / "moved")
                folder = home / "moved"
            dry = index.sync(folder, documents=unit, dry_run=True, allow_empty=True)
            real = index.sync(folder, documents=unit, allow_empty=True)
            assert vars(dry) == vars(real)
            for document in index.documents():
                # A text keeps the mark that it got first, however it moves, and no other text gets it.
                if "mark" in document.metadata:
                    assert marks[document.metadata["mark"]] == document.text
                elif data.draw(st.booleans()):
                    mark = f"mark {len(marks)}"
                    marks[mark] = document.text
                    index.update_metadata([document.id], {"mark": mark})
        before = {document.id: document.metadata.get("mark") for document in index.documents()}
        for name in names:
            # Other lines around the parts change no part.
            path = folder / name
            path.write_text(path.read_text() + ("\n" if unit != "records" else ""))
        index.sync(folder, allow_empty=True)
        assert {document.id: document.metadata.get("mark") for document in index.documents()} == before
        assert not index.verify()


def test_a_moved_folder_takes_the_place_of_the_old_one(index, folder, tmp_path):
    index.sync(folder)
    before = [vars(document) for document in index.documents()]
    moved = folder.rename(tmp_path / "archive")
    synced = index.sync(moved)
    assert (synced.added, synced.removed, synced.unchanged) == (0, 0, 6)
    assert synced.remarks == [f"{moved} takes the place of {folder}, which is gone"]
    assert [vars(document) for document in index.documents()] == before
    # Another folder with other files does not, and says how to drop what is gone.
    other = put(tmp_path / "other", {"x.md": "Something else.\n"})
    moved.rename(tmp_path / "elsewhere")
    (remark,) = index.sync(other).remarks
    assert f"drop its documents with `ctx-embed index sync {moved} {index.path} --allow-empty`" in remark
    assert "no such folder" in error(index.sync, moved)
    assert index.sync(moved, allow_empty=True).removed == 6
    assert ids(index) == ["other/x.md"]
    assert index.sync(other).remarks == []
    assert "no such folder, and" in error(index.sync, moved, allow_empty=True)
    # All files may be renamed.
    (other / "x.md").rename(other / "y.md")
    assert index.sync(other).removed == 1
    assert index.verify() == []


def test_a_dry_run_says_what_the_run_does(index, folder, monkeypatch):
    put(folder, {"twice.jsonl": '{"text": "x", "id": 7}\n{"text": "y", "id": 7}\n', "broken.pdf": "%PDF"})
    put(folder, {"z.jsonl": '{"text": "x", "id": "r1"}\n', "mail.csv": "id;message\n1;The ferry was late.\n"})
    put(folder, {"letter.odt": "x"})
    monkeypatch.setitem(formats.FORMATS, ".odt", formats.Format("office:odt", needs="no_such_library"))
    for _ in range(2):
        dry = index.sync(folder, dry_run=True)
        assert index.ids() == [] or dry.added == 0
        assert vars(dry) == vars(index.sync(folder))
    assert dry.lacking == {".odt": 1}
    assert set(dry.failed) == {"twice.jsonl", "broken.pdf"}
    assert "z.jsonl:r1" in index
    assert dry.notes == {}
    assert at(index, "1").text == "The ferry was late."
    (folder / "a.md").unlink()
    put(folder, {"rows.jsonl": '{"text": "now without id"}\n'})
    assert vars(index.sync(folder, dry_run=True)) == vars(index.sync(folder))
    for options in ({"documents": "lines"}, {"text_field": "message"}, {"documents": "files"}):
        dry = index.sync(folder, dry_run=True, **options)
        assert vars(dry) == vars(index.sync(folder, **options))
        assert dry.changed


def test_a_table_without_a_text_gives_the_only_column_of_prose_or_is_named(index, folder):
    prose = ["The ferry was late again.", "Prices rose.", "Where is the harbour?"]
    shutil.rmtree(folder)
    folder.mkdir()
    frame = pandas.DataFrame(
        {"key": ["x1", "x2", "x3"], "words": prose, "name": ["Ann Lee", "Bo Ek", "Cy Fox"], "n": [1, 2, 3]}
    )
    frame.to_csv(folder / "a.csv", sep=";", index=False)
    frame.to_csv(folder / "b.tsv", sep="\t", index=False)
    frame.to_parquet(folder / "c.parquet")
    frame.to_excel(folder / "d.xlsx", index=False)
    with pandas.ExcelWriter(folder / "sheets.xlsx") as book:
        frame[["name"]].to_excel(book, sheet_name="Crew", index=False)
        frame.rename(columns={"words": "text"}).to_excel(book, sheet_name="Log", index=False)
    put(folder, {"e.jsonl": "".join(f'{{"mail": {{"body": "{text}"}}}}\n' for text in prose)})
    frame.assign(more=prose).to_csv(folder / "f.csv", index=False)
    frame[["name", "n"]].to_json(folder / "g.jsonl", orient="records", lines=True)
    (folder / "image.dat").write_bytes(bytes(range(256)))
    put(folder, {"h.csv": "これは朝の港の霧の話です,n\n,1\n", "i.csv": "訳\nこれは朝の港の霧の話です。\n"})
    synced = index.sync(folder)
    assert synced.notes == {
        "a.csv": "fields are separated by semicolons; text from 'words'",
        **dict.fromkeys(["b.tsv", "c.parquet", "d.xlsx"], "text from 'words'"),
        "e.jsonl": "text from 'mail.body'",
        "i.csv": "text from '訳'",
        "sheets.xlsx": "left out the sheet 'Crew' (no field 'text' (fields: 'name'); name the right one with --field)",
    }
    assert synced.failed.keys() == {"f.csv", "g.jsonl", "h.csv", "image.dat"}
    assert "and 2 columns of prose; name one or more of 'key', 'words', " in synced.failed["f.csv"]
    assert "and no column of prose; name one or more of 'name', 'n' with --field" in synced.failed["g.jsonl"]
    assert (synced.added, synced.documents) == (7, 19)
    for source in synced.notes:
        found = [document.text for document in index.documents(f"source = '{source}'")]
        assert found == (prose if source != "i.csv" else ["これは朝の港の霧の話です。"])
    # Named columns are those of all tables; an id that another table has begins with the file's name.
    synced = index.sync(folder, text_field="words", id_field="key", title_field="name", include=["a.csv", "f.csv"])
    assert synced.failed == {}
    both = index.get("x1"), index.get("f.csv:x1")
    assert [each.metadata["source"] for each in both] == ["a.csv", "f.csv"]
    assert both[0].metadata.items() >= {"title": "Ann Lee", "n": 1}.items()
    # It stays, even if the other table goes.
    (folder / "a.csv").unlink()
    put(folder, {"f.csv": (folder / "f.csv").read_text() + "\n"})
    assert (index.sync(folder).removed, "x1" in index, "f.csv:x1" in index) == (1, False, True)
    # Several columns are one text, now and in later runs.
    assert index.sync(folder, text_field=["words", "more"]).changed == 1
    assert [document.text for document in index.documents()] == [f"{text}\n{text}" for text in prose]
    assert index.sync(folder).changed == index.sync(folder, text_field=("words", "more")).changed == 0
