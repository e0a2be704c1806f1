"""Every format is read from a real file, and broken files of each are named with a reason."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest

from ctx_embed.documents.blocks import code
from ctx_embed.documents.extracted import MOST_BYTES, UnreadableFileError
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_each_format(tmp_path, name):
    path = tmp_path / f"report.{name}"
    WRITERS[name](path)
    texts = list(extract(str(path)))
    assert FIRST in texts[0].text
    assert SECOND in texts[0].text
    assert texts[0].title == TITLE
    if name in ("html", "rst", "docx", "odt", "epub", "ipynb"):
        assert "## Markets\n\n" in texts[0].text
    for unwanted in ("Home", "alert", "color", "rights", "root:", "secret", "<i>", "\0"):
        assert unwanted not in texts[0].text


@pytest.mark.filterwarnings("ignore")
def test_what_is_special_about_formats(tmp_path):
    def read(name):
        path = tmp_path / f"report.{name}"
        WRITERS[name](path)
        return list(extract(str(path)))

    assert read("pdf")[0].text.split("\f") == [FIRST, SECOND]
    slides = read("pptx")[0]
    assert slides.pages
    assert slides.text.split("\f")[1] == f"# Markets\n\n{SECOND}\n\nThank the port."
    assert "| cod | 3 euros |" in read("docx")[0].text
    assert "- cod\n\n| cod | 3 euros |" in read("odt")[0].text
    assert "```\na\n  b\n```" in read("epub")[0].text
    assert "```python\nx = 1\n```" in read("ipynb")[0].text


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
    assert found.text == MARKDOWN
    assert found.title == "Report"
    assert found.line == 1


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
    path = tmp_path / "old.docx"
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600)
    assert reason(path) == "password-protected, or of an old format"
    path.write_text("plain text")
    assert reason(path) == "not Word (File is not a zip file)"
    path = tmp_path / "a.ipynb"
    path.write_text("[]")
    assert reason(path) == "not a notebook"
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(b"line\n" * 999)[:-12])
    assert reason(path).startswith("broken gzip (")
    path.write_bytes(b"a\0b")
    assert reason(path) == "binary"


def test_bombs(tmp_path, extraction):
    """Archives that unpack to more than allowed, deep nesting, and entities that grow."""
    for name, member in (
        ("a.odt", "content.xml"),
        ("a.epub", "META-INF/container.xml"),
        ("a.docx", "word/document.xml"),
    ):
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


def test_python_that_would_be_hard_to_parse(tmp_path):
    for content in ("(" * 50_000, "-" * 50_000 + "1", "1+" * 50_000 + "1", "a" + ".b" * 50_000, "x = '\\d'\n", "a\0"):
        path = tmp_path / "a.py"
        path.write_text(content)
        assert code(content)


def test_a_lone_surrogate_in_a_notebook(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "a \ud800 b"}], "metadata": {}}))
    assert [found.text for found in extract(str(path))] == ["a � b"]
