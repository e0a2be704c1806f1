import os
import shutil
import subprocess
import unicodedata
from contextlib import suppress
from random import Random

import pytest

from ctx_embed.files import on_disk
from ctx_embed.reading.decoding import UnreadableFileError
from ctx_embed.reading.formats import extract
from ctx_embed.reading.tables import open_rows
from ctx_embed.reading.walking import File, Skipped, walk
from ctx_embed.reading.workers import Extraction
from tests.helpers.errors import error
from tests.reading.samples import WRITERS


def make(folder, files) -> None:
    for name, content in (files if isinstance(files, dict) else dict.fromkeys(files, "x")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def names(folder, **options) -> list[str]:
    return [found.source for found in walk(folder, **options) if isinstance(found, File)]


def skipped(folder, **options) -> dict[str, str]:
    return {found.source: found.reason for found in walk(folder, **options) if isinstance(found, Skipped)}


def test_links_that_leave_the_folder_are_read_only_if_asked_for(tmp_path):
    folder, outside = tmp_path / "folder", tmp_path / "folder2"
    make(folder, ["in.txt", "sub/in.txt"])
    make(outside, ["secret.txt"])
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "sub" / "link.txt").symlink_to("../../folder2/secret.txt")
    (folder / "sub" / "up.txt").symlink_to("../in.txt")
    (folder / "device.txt").symlink_to("/dev/zero")
    inside = ["in.txt", "sub/in.txt", "sub/up.txt"]
    assert names(folder) == inside
    assert skipped(folder)["link.txt"] == "link out of the folder"
    assert names(folder, follow_links=True) == sorted([*inside, "link.txt", "sub/link.txt"])
    assert skipped(folder, follow_links=True) == {"device.txt": "not a regular file"}


@pytest.mark.parametrize("suffix", ["txt", "jsonl", *WRITERS])
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
    assert "a link out of the folder" in error(open_rows, found[0].path)
    # A folder on the way may become a link, too.
    path.unlink()
    path.write_bytes(secret.read_bytes())
    (tmp_path / "in").rename(tmp_path / "moved")
    (tmp_path / "in").symlink_to(tmp_path / "home")
    secret.rename(tmp_path / "home" / f"a.{suffix}")
    with pytest.raises(UnreadableFileError, match="a link out of the folder"):
        list(extract(found[0].path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_no_file_is_waited_for(tmp_path, monkeypatch):
    make(tmp_path, ["kept.txt"])
    os.mkfifo(tmp_path / ".gitignore")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "input.txt").symlink_to("/dev/stdin")
    assert names(tmp_path, follow_links=True) == ["kept.txt"]
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        list(extract(str(tmp_path / "pipe.txt")))
    monkeypatch.setattr("ctx_embed.reading.decoding.SECONDS", 0)
    with pytest.raises(UnreadableFileError, match="takes longer than 0 s"):
        list(extract(str(tmp_path / "kept.txt")))


def test_files_of_any_date_come_sorted_by_their_whole_path(tmp_path):
    files = ["a/z", "a.b", "b/c/d", "b-", "b0", "é", "Z", "a b/x"]
    make(tmp_path, files)
    os.utime(tmp_path / "Z", (10**10, 10**10))
    first, *others = walk(tmp_path)
    assert (first.source, first.modified) == ("Z", 2**63 - 1)
    assert [first.source, *(file.source for file in others)] == sorted(files)


def test_what_is_left_out(tmp_path):
    kept = ["kept.md", "sub/kept.txt"]
    make(tmp_path, [*kept, ".hidden", ".git/config", "~$kept.docx", "notes.index/index.sqlite", "a.log", "b.tmp"])
    make(tmp_path, {".gitignore": "*.log"})
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    (tmp_path / "linked.md").symlink_to(tmp_path / "kept.md")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    assert names(tmp_path, exclude=["*.tmp"]) == ["kept.md", "linked.md", "sub/kept.txt"]
    assert skipped(tmp_path, exclude=["*.tmp"]) == {
        **dict.fromkeys((".git", ".gitignore", ".hidden", "~$kept.docx"), "hidden"),
        "a.log": "ignored by .gitignore",
        "b.tmp": "excluded",
        "notes.index": "search index",
        "link": "link to a folder",
        "dangling": "cannot be read (No such file or directory)",
        "pipe": "not a regular file",
    }
    try:
        open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "w").close()
    except OSError:
        return  # The file system allows no such name.
    assert "its name is not UTF-8" in skipped(tmp_path).values()


def test_files_that_programs_write_are_left_out(tmp_path):
    code = "function add(first, second) {\n  return first + second;\n}\n"
    written = ["lib/jquery.min.js", "app.css.map", "package-lock.json", "Cargo.lock", "api_pb2.py", "go.sum"]
    make(tmp_path, {**dict.fromkeys(written, "x"), "lib/lock.py": "x = 1", "min.js": code, "locks.md": "x"})
    assert names(tmp_path) == ["lib/lock.py", "locks.md", "min.js"]
    assert skipped(tmp_path) == dict.fromkeys(written, "generated")
    # Whoever asks for them gets them.
    assert names(tmp_path, include=["*.lock"]) == ["Cargo.lock"]
    for name, content, reason in (
        ("bundle.js", code.replace("\n", "") * 200, "minified"),
        ("bundle.css", "a{b:c}" * 500, "minified"),
        ("api.go", f"// Code generated by protoc-gen-go. DO NOT EDIT.\n{code}", "generated"),
        ("page.py", "# @generated by a tool\nx = 1\n", "generated"),
        ("data.sql", "insert into a values (1);" * 100, ""),
        ("one.js", code.replace("\n", ""), ""),
        ("a.py", "# how code is generated\n", ""),
    ):
        make(tmp_path, {name: content})
        if not reason:
            assert list(extract(str(tmp_path / name)))
            continue
        with pytest.raises(UnreadableFileError, match=f"^{reason}$") as caught:
            list(extract(str(tmp_path / name)))
        assert caught.value.counted


def test_include_and_exclude(tmp_path):
    make(tmp_path, ["a.md", "b.txt", "drafts/c.md", "sub/d.md", "sub/deep/e.md"])
    assert names(tmp_path, include=["*.md"]) == ["a.md", "drafts/c.md", "sub/d.md", "sub/deep/e.md"]
    assert names(tmp_path, include=["*.md"], exclude=["drafts/", "sub/deep"]) == ["a.md", "sub/d.md"]
    assert names(tmp_path, exclude=["./drafts/", "./*.md"]) == ["b.txt", "sub/d.md", "sub/deep/e.md"]
    assert names(tmp_path, include=["sub/**/*.md", "b.*"]) == ["b.txt", "sub/d.md", "sub/deep/e.md"]
    assert "must be globs such as" in error(names, tmp_path, include=["!"])
    assert "cannot be listed" in error(names, tmp_path / "missing")
    folder = tmp_path / "deep"
    with suppress(OSError):
        for _ in range(60):
            os.mkdir(folder)
            folder /= "d"
    assert names(tmp_path, include=["*.txt"]) == ["b.txt"]


NAMES = ["a", "b", "ab", "a.txt", "b.log", "doc", "é", "日b", "a b", "x[1]", "#c", "!d", "e ", "A", "a\\\\b"]
SIGNS = r"""* ** ? *.txt a* *b ?b [ab] [!a] [^a]* [a-c]* []a]* [a [b-]* [b-a] *.* [[:alpha:]] [[:punct:]x]* x\[1\]
x[[]1] \#c \!d \a **b *** e\_ [é]* [a/b]"""
CLASSES = "alnum alpha blank cntrl digit graph lower print punct space upper xdigit"


def rule(random) -> str:
    signs = [sign.replace("_", " ") for sign in SIGNS.split()]
    name = "/".join(random.choice(NAMES + signs) for _ in range(random.choice((1, 1, 1, 2, 3))))
    start, end = random.choice(("", "", "", "!", "/", "!/", "#")), random.choice(("", "", "", "/", " ", "  ", "\\"))
    return start + name + end


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_rules_are_those_of_git(tmp_path):
    """Random trees, with .gitignore files in any folder, some with a byte order mark, CRLF or no line end."""
    random = Random(7)
    for tree in range(60):
        folders = {""}
        for _ in range(10):
            path = tmp_path / str(tree) / "/".join(random.choices(NAMES, k=random.randint(1, 4)))
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                folders.add(str(path.parent.relative_to(tmp_path / str(tree))))
        for folder in folders:
            if not folder or random.random() < 0.3:
                end = random.choice(("\n", "\r\n"))
                content = end.join(rule(random) for _ in range(random.randint(1, 5))) + random.choice((end, ""))
                written = random.choice((b"", b"\xef\xbb\xbf")) + content.encode()
                (tmp_path / str(tree) / folder / ".gitignore").write_bytes(written)
    # Each class of characters, and a name for each character; of what is a space, git has a table of its own.
    for name in CLASSES.split():
        make(tmp_path / name, {chr(code): "x" for code in range(1, 128) if chr(code) not in "./\v\f"})
        (tmp_path / name / ".gitignore").write_text(f"[[:{name}:]]\n")
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    files = [path for path in files if not path.endswith("/.gitignore")]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    command = ["git", "-C", tmp_path, "-c", f"core.excludesFile={os.devnull}", "check-ignore", "--stdin", "-z"]
    said = subprocess.run(command, input="\0".join(files).encode(), capture_output=True).stdout.decode().split("\0")
    assert 30 < len(said) < len(files)
    assert sorted(set(files) - set(said)) == names(tmp_path)


def test_names_are_compared_in_nfc(tmp_path):
    decomposed = unicodedata.normalize("NFD", "privé/thé.md")
    make(tmp_path, {decomposed: "x", "sub/a.md": "x", f"sub/{decomposed}": "x"})
    assert names(tmp_path) == ["privé/thé.md", "sub/a.md", "sub/privé/thé.md"]
    for glob in ("privé/", "thé.*", decomposed, "*é", "priv?"):
        anchored = ["sub/privé/thé.md"] if "/thé" in unicodedata.normalize("NFC", glob) else []
        assert names(tmp_path, exclude=[glob]) == sorted(["sub/a.md", *anchored])
    (tmp_path / ".gitignore").write_text("privé\n")
    assert names(tmp_path) == ["sub/a.md"]
    assert on_disk(str(tmp_path), "privé/thé.md") == str(tmp_path / decomposed)
    make(tmp_path, ["b/é", unicodedata.normalize("NFD", "b/é")])
    if len(os.listdir(tmp_path / "b")) == 2:
        assert names(tmp_path / "b") == ["é"]
        assert list(skipped(tmp_path / "b")) == ["é"]
