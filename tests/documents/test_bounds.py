"""Hostile files are read in time that grows with their size, not with its square."""

import gc
import json
import time
from contextlib import suppress

import pytest

from ctx_embed.documents.blocks import KINDS
from ctx_embed.documents.decoding import UnreadableFileError
from ctx_embed.documents.formats import extract
from ctx_embed.documents.formats.web import scanned
from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_documents, read_labelled_rows

RECORDS = {
    "columns.csv": lambda n: ",".join(map(str, range(n))) + "\n",
    "quote.csv": lambda n: 'text\n"' + "a\n" * n,
    "digits.csv": lambda n: "text,n\na," + "9" * n + "\n",
    "deep.jsonl": lambda n: "[" * n,
    "wide.jsonl": lambda n: json.dumps({"text": "a", **{str(number): number for number in range(n)}}),
    "spaces.jsonl": lambda n: " " * n + "x",
    "labelled.tsv": lambda n: "a\tb\t" * n,
}
PARTS = [" ", "a ", "\n", "`", "#", " \n", "(", "a(", "class A {", "public ", "{\n", "x = (", "a(" + ")" * 300 + "\n"]
PARTS += ["a\f\n", "---\n", "x=1\n#c\n", "//c\n"]
FILES = {
    "heading.md": lambda n: "# " + "#" * n + " " * n + "x",
}
PAGES = ["<!--", "<a ", "<a b='", "<![CDATA[", "<?", "<", "</", "<script>", "<script></", "<a b=\"'>", "&#", "< "]


def require_linear(read, content, smaller: int = 4000) -> None:
    """Compare the time for n and 4n, of which a quadratic reader takes 16 times as much, twice if need be."""

    def seconds(size: int) -> float:
        made = content(size)
        start = time.process_time()
        read(made)
        return time.process_time() - start

    # Collecting garbage takes the longer, the more tests ran before.
    gc.disable()
    try:
        assert any(seconds(4 * smaller) < 9 * seconds(smaller) + 0.3 for _ in range(2))
    finally:
        gc.enable()


@pytest.mark.parametrize("name", RECORDS)
def test_records(name, tmp_path):
    reader = read_labelled_rows if name == "labelled.tsv" else read_documents

    def read(content):
        (tmp_path / name).write_text(content)
        with suppress(InputError):
            list(reader(tmp_path / name))

    require_linear(read, RECORDS[name], 20_000)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks(kind):
    for part in PARTS:
        require_linear(KINDS[kind], lambda n, part=part: (part * n)[: 3 * n] + "a", 10_000)
    for content in (lambda n: "a\n" + "-" * n + " " * n + "x", lambda n: "```\n" + " " * n + "x\n"):
        require_linear(KINDS[kind], content, 10_000)


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    def read(content):
        (tmp_path / name).write_text(content)
        with suppress(UnreadableFileError):
            list(extract(str(tmp_path / name)))

    require_linear(read, FILES[name])


@pytest.mark.parametrize("part", PAGES)
def test_pages(part):
    require_linear(scanned, lambda n: part * n)


@pytest.mark.parametrize(
    "page",
    [
        "<nav>no</nav><p>The ferry</p>" + "<p>a" * 100_000,
        "<p " + " ".join(f"a{n}=''" for n in range(150_000)) + ">The ferry",
    ],
    ids=["tags", "attributes"],
)
def test_huge_pages_are_read_quickly(page, tmp_path):
    """libxml2 would take 25 s for these attributes."""
    (tmp_path / "a.html").write_text(page)
    start = time.process_time()
    (found,) = extract(str(tmp_path / "a.html"))
    assert found.text.startswith("The ferry")
    assert time.process_time() - start < 5


def test_broken_pages_keep_their_text():
    page = "<p title='a > b'>One &amp; <b>two</b></p><!-- no --><script>if (a < b) {}</script><p>a < b<br>c</P><p"
    assert scanned(page).markdown() == "One & two\n\na < b\nc"
    assert (
        scanned("<h2>Title</h2><ul><li>x<li>y</ul><style>p {}</style><td>1</td>").markdown()
        == "## Title\n\n- x\n- y\n\n1"
    )
