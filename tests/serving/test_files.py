"""The files behind hits: only those that an index has read, only on this machine, and harmless in a browser."""

import gzip
import os
import re
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")

import ctx_embed
from ctx_embed import SearchIndex
from ctx_embed.reading.formats import FORMATS
from tests.serving.server import answering, serving

TEXT = "The ferry leaves at noon, and the harbour is empty afterwards."
DOWNLOAD = "application/octet-stream"
# Each file that is read, and the type with which a browser gets it.
TYPES = {
    **dict.fromkeys(("a.md", "deep/er/ü b#?&.txt", "data.xml", "code.js", "no_suffix"), "text/plain; charset=utf-8"),
    "latin café crème.txt": "text/plain; charset=cp1252",
    **dict.fromkeys(("page.html", "page.HTM"), "text/html; charset=utf-8"),
    "declared.html": "text/html",
    **dict.fromkeys(("mail.eml", "packed.txt.gz"), DOWNLOAD),
}
LOST = ("replaced.txt", "gone.txt", "folder.txt", "pipe.txt")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder, an index of it, an index of another folder, and a server of both."""
    path = tmp_path_factory.mktemp("files")
    shelf, secret = path / "shelf", path / "other" / "secret.txt"
    (shelf / "deep" / "er").mkdir(parents=True)
    for name in TYPES:
        head = "Subject: the ferry\n\n" if name.endswith(".eml") else ""
        head += '<meta charset="utf-8">' * name.startswith("declared")
        content = f"{head}{TEXT} {name}\n".encode("cp1252" if "latin" in name else "utf-8")
        (shelf / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    for name in ("left.txt", *LOST):
        (shelf / name).write_text(TEXT + name)
    (shelf / "picture.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    secret.parent.mkdir()
    secret.write_text("A secret of another index.")
    (shelf / "link.txt").symlink_to(secret)
    for name in ("shelf", "other"):
        with SearchIndex.create(path / f"{name}.index") as index:
            index.sync(path / name)
    with SearchIndex.open(path / "shelf.index") as index:
        index.add(["by hand"], metadata=[{"source": "left.txt/../../other/secret.txt"}])
    with (
        serving(path / "shelf.index", path / "other.index") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        # What becomes of the files while they are served.
        for name in LOST:
            (shelf / name).unlink()
        (shelf / "replaced.txt").symlink_to(secret)
        (shelf / "folder.txt").mkdir()
        os.mkfifo(shelf / "pipe.txt")
        yield path, client


def asked(client, source, name="shelf.index", **options):
    return client.get(f"/v1/indexes/{name}/file", params={"source": source}, **options)


@pytest.mark.parametrize(("name", "kind"), TYPES.items())
def test_a_file_comes_as_it_is_and_harmless(shelf, name, kind):
    path, client = shelf
    answer = asked(client, name, headers={"Accept-Encoding": "identity"})
    assert (answer.status_code, answer.content) == (200, (path / "shelf" / name).read_bytes())
    headers = answer.headers
    assert (headers["content-type"], headers["cache-control"]) == (kind, "no-store")
    assert headers["content-disposition"].startswith("attachment" if kind == DOWNLOAD else "inline")
    policy = headers["content-security-policy"].split("; ")
    assert {"sandbox", "default-src 'none'", "form-action 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert not any("script" in part or "allow" in part for part in policy)
    assert (headers["x-content-type-options"], headers["cross-origin-resource-policy"]) == ("nosniff", "same-origin")
    assert headers["referrer-policy"] == "no-referrer"


def test_nothing_but_files_that_the_index_has_read_is_returned(shelf):
    path, client = shelf
    secret = path / "other" / "secret.txt"
    sources = [
        *("", ".", "..", "/", "deep", "deep/er", "picture.svg", "link.txt", "a.md\0", "A.MD", "a.md/", "a.md//"),
        *("../other/secret.txt", "deep/../a.md", "deep/../../other/secret.txt", "..\\other\\secret.txt", "secret.txt"),
        *("%2e%2e/other/secret.txt", "left.txt/../../other/secret.txt", "shelf/a.md", "../shelf.index/index.db"),
        *(str(secret), f"/{secret}", secret.as_uri(), str(path / "shelf" / "a.md"), "/etc/passwd", "x" * 5000),
        *("./a.md", *LOST),
    ]
    returned = {source: answer.text for source in sources if (answer := asked(client, source)).status_code != 404}
    # What follows the name of a file could be a place in an archive: it is the file itself.
    inside = {"a.md/": "a.md", "a.md//": "a.md", "left.txt/../../other/secret.txt": "left.txt"}
    assert returned == {source: (path / "shelf" / name).read_text() for source, name in inside.items()}
    assert asked(client, "secret.txt", "other.index").text == secret.read_text()


# The file of an answer is closed by the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_folder_that_was_replaced_by_a_link_has_no_files(tmp_path):
    for name in ("shown", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    with SearchIndex.create(tmp_path / "index") as index:
        index.sync(tmp_path / "shown")
    with answering(tmp_path / "index") as client:
        assert asked(client, "a.txt", "index").text == "shown"
        (tmp_path / "shown").rename(tmp_path / "before")
        (tmp_path / "shown").symlink_to(tmp_path / "hidden")
        assert asked(client, "a.txt", "index").status_code == 404


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
def test_only_this_machine_gets_files(shelf, tmp_path):
    path, client = shelf
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"):
        assert asked(client, "a.md", headers={"Host": host}).status_code == 403
    assert client.get("/v1/indexes/shelf.index").json()["files"]
    keys = tmp_path / "keys"
    keys.write_text("write secret\n")
    for settings in ({"api_key_file": keys}, {"no_keys": True}, {"root_path": "/x"}, {"cors": ["http://a.example"]}):
        with answering(path / "shelf.index", **settings) as other:
            key = {"Authorization": "Bearer secret"}
            assert asked(other, "a.md", headers=key).json()["error"]["code"] == "not_local"
            assert not other.get("/v1/indexes/shelf.index", headers=key).json()["files"]


def test_the_page_knows_what_is_code():
    script = (Path(ctx_embed.__file__).parent / "serving" / "page" / "text.js").read_text(encoding="utf-8")
    shown = set(re.search(r"CODE = new Set\(\s*`([^`]*)`", script)[1].split())
    assert shown == {suffix for suffix, form in FORMATS.items() if form.reader == "code"} | {".json"}
