from __future__ import annotations

import os

import pytest

from ctx_embed.documents.decoding import read_bytes
from ctx_embed.documents.extracted import UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import extract
from ctx_embed.documents.walking import File, Skipped, walk
from ctx_embed.errors import InputError
from ctx_embed.rows.table import open_rows
from tests.documents.samples import WRITERS


def make(folder, files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def names(folder, **options) -> list[str]:
    return [found.source for found in walk(folder, **options) if isinstance(found, File)]


def skipped(folder, **options) -> dict[str, str]:
    return {found.source: found.reason for found in walk(folder, **options) if isinstance(found, Skipped)}


def test_links_that_leave_the_folder_are_read_only_if_asked_for(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "folder2"
    make(folder, {"in.txt": "x", "sub/in.txt": "x"})
    make(outside, {"secret.txt": "x"})
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "sub" / "link.txt").symlink_to("../../folder2/secret.txt")
    (folder / "sub" / "up.txt").symlink_to("../in.txt")
    (folder / "device.txt").symlink_to("/dev/zero")
    inside = ["in.txt", "sub/in.txt", "sub/up.txt"]
    assert names(folder) == inside
    assert skipped(folder)["link.txt"] == "link out of the folder"
    assert names(folder, follow_links=True) == sorted([*inside, "link.txt", "sub/link.txt"])
    assert skipped(folder, follow_links=True) == {"device.txt": "not a regular file"}


@pytest.mark.parametrize("suffix", ["txt", "md", "jsonl", *WRITERS])
def test_a_file_that_becomes_a_link_out_of_the_folder_is_not_read(tmp_path, suffix):
    make(tmp_path, {"in/b.txt": "plain", f"home/secret.{suffix}": '{"text": "a secret"}\n'})
    secret, path = tmp_path / "home" / f"secret.{suffix}", tmp_path / "in" / f"a.{suffix}"
    if suffix in WRITERS:
        WRITERS[suffix](secret)
    path.write_bytes(secret.read_bytes())
    found = list(walk(tmp_path / "in"))
    assert [file.source for file in found] == [f"a.{suffix}", "b.txt"]
    path.unlink()
    path.symlink_to(secret)
    with Extraction(1) as extraction:
        (_, swapped), (_, plain) = extraction.read((file, file.path) for file in found)
    assert str(swapped) == "cannot be read (a link out of the folder)"
    assert [each.text for each in plain] == ["plain"]
    with pytest.raises(InputError, match="a link out of the folder"), open_rows(found[0].path):
        pass
    # A folder on the way may become a link, too.
    path.unlink()
    path.write_bytes(secret.read_bytes())
    (tmp_path / "in").rename(tmp_path / "moved")
    (tmp_path / "in").symlink_to(tmp_path / "home")
    secret.rename(tmp_path / "home" / f"a.{suffix}")
    with pytest.raises(UnreadableFileError, match="a link out of the folder"):
        list(extract(found[0].path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_no_file_is_waited_for(tmp_path):
    make(tmp_path, {"kept.txt": "x"})
    os.mkfifo(tmp_path / ".gitignore")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "input.txt").symlink_to("/dev/stdin")
    assert names(tmp_path, follow_links=True) == ["kept.txt"]
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        read_bytes(str(tmp_path / "pipe.txt"))
    with pytest.raises(UnreadableFileError, match="takes longer than 0 s"):
        read_bytes(str(tmp_path / "kept.txt"), seconds=0)


def test_a_file_of_any_date(tmp_path):
    make(tmp_path, {"a.txt": "x"})
    os.utime(tmp_path / "a.txt", (10**10, 10**10))
    (found,) = walk(tmp_path)
    assert isinstance(found, File)
    assert found.modified == 2**63 - 1


def test_files_come_sorted_by_their_whole_path(tmp_path):
    make(tmp_path, dict.fromkeys(["a/z", "a.b", "b/c/d", "b-", "b0", "é", "Z", "a b/x"], "x"))
    found = names(tmp_path)
    assert found == sorted(found)
    assert len(found) == 8


def test_what_is_left_out(tmp_path):
    make(
        tmp_path,
        {
            "kept.md": "x",
            ".hidden": "x",
            ".git/config": "x",
            "~$kept.docx": "x",
            "notes.index/index.sqlite": "x",
            "sub/kept.txt": "x",
        },
    )
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    (tmp_path / "linked.md").symlink_to(tmp_path / "kept.md")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    assert names(tmp_path) == ["kept.md", "linked.md", "sub/kept.txt"]
    assert skipped(tmp_path) == {
        ".git": "hidden",
        ".hidden": "hidden",
        "~$kept.docx": "hidden",
        "notes.index": "search index",
        "link": "link to a folder",
        "dangling": "cannot be read (No such file or directory)",
        "pipe": "not a regular file",
    }


def test_gitignore_files_hold_for_their_folder_and_the_deepest_rule_decides(tmp_path):
    make(
        tmp_path,
        {
            ".gitignore": "*.log\nbuild/\n/top.txt\n",
            "a.log": "x",
            "build/x.md": "x",
            "top.txt": "x",
            "sub/top.txt": "x",
            "sub/.gitignore": "!keep.log\n*.tmp\n",
            "sub/keep.log": "x",
            "sub/other.log": "x",
            "sub/a.tmp": "x",
            "a.tmp": "x",
        },
    )
    assert names(tmp_path) == ["a.tmp", "sub/keep.log", "sub/top.txt"]
    assert set(skipped(tmp_path).values()) == {"hidden", "ignored by .gitignore"}


def test_files_that_programs_write_are_left_out(tmp_path):
    code = "function add(first, second) {\n  return first + second;\n}\n"
    written = ["lib/jquery.min.js", "app.css.map", "package-lock.json", "Cargo.lock", "api_pb2.py", "go.sum"]
    make(tmp_path, {**dict.fromkeys(written, "x"), "lib/lock.py": "x = 1", "min.js": code, "locks.md": "x"})
    assert names(tmp_path) == ["lib/lock.py", "locks.md", "min.js"]
    assert skipped(tmp_path) == dict.fromkeys(written, "generated")
    # Whoever asks for them gets them.
    assert names(tmp_path, include=["*.lock"]) == ["Cargo.lock"]
    make(
        tmp_path,
        {
            "bundle.js": code.replace("\n", "") * 200,
            "bundle.css": "a{b:c}" * 500,
            "api.go": f"// Code generated by protoc-gen-go. DO NOT EDIT.\n{code}",
            "page.py": "# @generated by a tool\nx = 1\n",
        },
    )
    for name, reason in [
        ("bundle.js", "minified"),
        ("bundle.css", "minified"),
        *((f, "generated") for f in ("api.go", "page.py")),
    ]:
        with pytest.raises(UnreadableFileError, match=f"^{reason}$") as caught:
            list(extract(str(tmp_path / name)))
        assert caught.value.counted
    long_lines = {
        "data.sql": "insert into a values (1);" * 100,
        "one.js": code.replace("\n", ""),
        "a.py": "# how code is generated\n",
    }
    make(tmp_path, long_lines)
    assert all(list(extract(str(tmp_path / name))) for name in long_lines)


def test_include_and_exclude(tmp_path):
    make(tmp_path, dict.fromkeys(["a.md", "b.txt", "drafts/c.md", "sub/d.md", "sub/deep/e.md"], "x"))
    assert names(tmp_path, include=["*.md"]) == ["a.md", "drafts/c.md", "sub/d.md", "sub/deep/e.md"]
    assert names(tmp_path, include=["*.md"], exclude=["drafts/", "sub/deep"]) == ["a.md", "sub/d.md"]
    assert names(tmp_path, include=["sub/**/*.md", "b.*"]) == ["b.txt", "sub/d.md", "sub/deep/e.md"]
    with pytest.raises(InputError, match="must be globs such as"):
        names(tmp_path, include=["!"])


def test_names_that_are_not_utf8(tmp_path):
    try:
        open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "w").close()
    except OSError:
        pytest.skip("the file system allows no such name")
    assert list(skipped(tmp_path).values()) == ["its name is not UTF-8"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match="cannot be listed"):
        names(tmp_path / "missing")


def test_very_deep_folders(tmp_path):
    folder = tmp_path
    for _ in range(300):
        folder = folder / "d"
        try:
            os.mkdir(folder)
        except OSError:
            break
    (tmp_path / "z.txt").write_text("x")
    assert names(tmp_path) == ["z.txt"]
