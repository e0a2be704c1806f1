"""Every format is read from a real file, and broken files of each are named with a reason."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest

from ctx_embed.documents.decoding import MOST_BYTES, UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import extract
from tests.documents.samples import FIRST, SECOND, TITLE, WRITERS, pdf


@pytest.fixture(scope="module")
def extraction():
    with Extraction(workers=1, seconds=30) as extraction:
        yield extraction


def reason(path) -> str:
    with pytest.raises(UnreadableFileError) as caught:
        list(extract(str(path)))
    return str(caught.value)


# What is special about some formats.
SPECIAL = {
    "pdf": f"{FIRST}\f{SECOND}",
    "pptx": f"\f# Markets\n\n{SECOND}\n\nThank the port.",
    "docx": "| cod | 3 euros |",
    "odt": "- cod\n\n| cod | 3 euros |",
    "epub": "```\na\n  b\n```",
    "ipynb": "```python\nx = 1\n```",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_each_format(tmp_path, name):
    path = tmp_path / f"report.{name}"
    WRITERS[name](path)
    (found,) = extract(str(path))
    for wanted in (FIRST, SECOND, SPECIAL.get(name, "")):
        assert wanted in found.text
    assert found.title == TITLE
    assert found.pages == (name in ("pdf", "pptx"))
    if name not in ("pdf", "pptx"):
        assert "## Markets\n\n" in found.text
    for unwanted in ("Home", "alert", "color", "rights", "root:", "secret", "<i>", "\0"):
        assert unwanted not in found.text


REST = """\
.. _start:

======
Report
======

See :func:`~os.path.join`, `the
manual <http://example.org>`_ and ``x * y``.

.. a comment
   of two lines
.. note:: Mind the gap.

Code
====

Like this::

    # no heading
    `x`_

.. code-block:: python
   :linenos:

   y = 2

Table
-----

===  ===
cod  3
===  ===
"""
# The lines stay where they are.
MARKDOWN = """\



# Report


See os.path.join, the
manual and ``x * y``.



note: Mind the gap.

## Code


Like this:
```
    # no heading
    x
```
```python


   y = 2
```
### Table



cod  3

"""


def test_restructured_text_keeps_its_lines(tmp_path):
    path = tmp_path / "a.rst"
    path.write_text(REST)
    (found,) = extract(str(path))
    assert (found.text, found.title, found.line) == (MARKDOWN, "Report", 1)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"caf\xc3\xa9\r\nb\rc", "café\nb\nc"),
        (b"\xef\xbb\xbfmark", "mark"),
        ("été".encode("utf-16"), "été"),
        ("été".encode("utf-32"), "été"),
        ("Le garçon a mangé des crêpes.".encode("latin-1"), "Le garçon a mangé des crêpes."),
        ("a café, naïve …".encode("cp1252"), "a café, naïve …"),
        ("Он сказал, что придёт завтра.".encode("cp1251"), "Он сказал, что придёт завтра."),
        ("Wczoraj przyszedł późno.".encode("cp1250"), "Wczoraj przyszedł późno."),
        (gzip.compress(b"packed", mtime=0), "packed"),
    ],
)
def test_encodings(tmp_path, written, expected):
    path = tmp_path / "a.txt"
    path.write_bytes(written)
    (found,) = extract(str(path))
    assert found.text == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*WRITERS, "md", "py"])
def test_broken_files_have_a_reason(tmp_path, extraction, name):
    """Truncated, empty, and with the suffix of another format: one line each, never another exception."""
    whole = tmp_path / f"whole.{name}"
    WRITERS.get(name, lambda path: path.write_text("# text\n" * 100))(whole)
    content = whole.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"PK\x03\x04" + b"x" * 99, b"%PDF-1.4 nothing", b"{}"):
        path = tmp_path / f"broken.{name}"
        path.write_bytes(broken)
        ((_, found),) = extraction.read([(None, str(path))])
        if isinstance(found, Exception):
            assert str(found)
            assert "\n" not in str(found)
        # Formats that are text may still find some.
        elif found:
            assert name in ("html", "rst", "md", "py", "pdf"), found


def test_reasons(tmp_path):
    path = tmp_path / "scanned.pdf"
    pdf(path, pages=("",))
    assert reason(path) == "no text, perhaps scanned pages"
    for name, content, said in (
        ("old.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "password-protected, or of an old format"),
        ("old.docx", b"plain text", "not Word (File is not a zip file)"),
        ("a.ipynb", b"[]", "not a notebook"),
        ("a.txt", gzip.compress(b"line\n" * 999)[:-12], "broken gzip ("),
        ("a.txt", b"a\0b", "binary"),
        ("b.txt", bytes(range(256)) * 40, "binary"),
        ("b.txt", b"\x7fELF\2\1\1" + b"\0" * 9 + b"\3\0>\0\1\0" * 90, "binary"),
        ("b.txt", b"\0" * 99, "binary"),
    ):
        (tmp_path / name).write_bytes(content)
        assert reason(tmp_path / name).startswith(said)


def test_bombs(tmp_path, extraction):
    """Archives that unpack to more than allowed, deep nesting, and entities that grow."""
    members = {"a.odt": "content.xml", "a.epub": "META-INF/container.xml", "a.docx": "word/document.xml"}
    for name, member in members.items():
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, b" ")
            archive.infolist()[0].file_size = MOST_BYTES + 1
        assert reason(tmp_path / name) == "larger than 256 MB when unpacked"
    (tmp_path / "a.ipynb").write_text("[" * 100_000)
    (tmp_path / "a.html").write_text("<div>" * 90_000 + "text")
    entities = "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 10))
    with zipfile.ZipFile(tmp_path / "b.odt", "w") as archive:
        archive.writestr("content.xml", f"<!DOCTYPE x [<!ENTITY a0 'aaaaaaaaaa'>{entities}]><x>&a9;</x>")
    for name in ("a.ipynb", "b.odt"):
        ((_, found),) = extraction.read([(None, str(tmp_path / name))])
        assert isinstance(found, UnreadableFileError), name
    assert [found.text for found in extract(str(tmp_path / "a.html"))] == ["text"]


def test_a_lone_surrogate_is_replaced(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "a \ud800 b"}], "metadata": {}}))
    assert [found.text for found in extract(str(path))] == ["a � b"]
