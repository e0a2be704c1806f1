"""Every format is read from a real file, whole and in reading order; broken files have a reason."""

import gzip
import json
import re
import zipfile

import pytest

from ctx_embed.documents.blocks import markdown
from ctx_embed.documents.decoding import MOST_BYTES, UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import extract
from ctx_embed.rows.encodings import WrongBytesWarning
from tests.documents.samples import FIRST, SECOND, TITLE, WRITERS, odt, pdf


@pytest.fixture(scope="module")
def extraction():
    with Extraction(workers=1, seconds=30) as extraction:
        yield extraction


def texts(path) -> list:
    return list(extract(str(path)))


def reason(path) -> str:
    with pytest.raises(UnreadableFileError) as caught:
        texts(path)
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
    (found,) = texts(path)
    for wanted in (FIRST, SECOND, SPECIAL.get(name, "")):
        assert wanted in found.text
    assert found.title == TITLE
    assert found.pages == (name in ("pdf", "pptx"))
    if name not in ("pdf", "pptx"):
        assert "## Markets\n\n" in found.text
    for unwanted in ("Home", "alert", "color", "rights", "root:", "secret", "<i>", "\0"):
        assert unwanted not in found.text


def test_encodings(tmp_path):
    for written, expected in (
        (b"\xef\xbb\xbfcaf\xc3\xa9\r\nb\rc", "café\nb\nc"),
        ("été".encode("utf-16"), "été"),
        ("Le garçon a mangé des crêpes.".encode("cp1252"), "Le garçon a mangé des crêpes."),
        (gzip.compress(b"packed", mtime=0), "packed"),
    ):
        (tmp_path / "a.txt").write_bytes(written)
        assert [found.text for found in texts(tmp_path / "a.txt")] == [expected]


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
            assert name in ("html", "md", "py", "pdf"), found


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
    assert [found.text for found in texts(tmp_path / "a.html")] == ["text"]


def test_a_lone_surrogate_is_replaced(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "a \ud800 b"}], "metadata": {}}))
    assert [found.text for found in texts(path)] == ["a � b"]


# Documents come whole and in reading order

W = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" xmlns:v="urn:schemas-microsoft-com:vml"'
)


def w(tag: str, *content: str) -> str:
    """Return an element of Word."""
    return f"<w:{tag}>{''.join(content)}</w:{tag}>"


def run(text: str) -> str:
    return w("r", w("t", text))


def control(content: str) -> str:
    return w("sdt", w("sdtContent", content))


A, B = w("p", run("a")), w("p", run("b"))
BOX = w("txbxContent", w("p", run("boxed")))
CHOICE = f"<mc:Choice>{BOX}</mc:Choice><mc:Fallback>{w('pict', BOX)}</mc:Fallback>"
LINK = w("r", "<w:tab/>", w("t", "x"), "<w:noBreakHyphen/>", w("t", "y"))
# Parts of a body of Word, and what is read of each.
WORD = {
    "insertions": (w("p", run("a "), w("ins", run("new"))), "a new"),
    "deletions": (w("p", w("del", w("r", w("delText", "gone")), run("gone")), run("stays")), "stays"),
    "moves": (w("p", w("moveFrom", run("old"))) + w("p", w("moveTo", run("new"))), "new"),
    "fields": (w("p", run("Name: "), control(run("Ana")), w("r", w("instrText", "X")), run(" B")), "Name: Ana B"),
    "content controls": (control(A + control(B)), "a\n\nb"),
    "controlled rows": (w("tbl", control(w("tr", w("tc", A), control(w("tc", B))))), "| a | b |"),
    "text boxes": (
        w("p", run("around"), w("r", f"<mc:AlternateContent>{CHOICE}</mc:AlternateContent>")),
        "around\n\nboxed",
    ),
    "old text boxes": (w("p", w("r", w("pict", f"<v:shape><v:textbox>{BOX}</v:textbox></v:shape>"))), "boxed"),
    "nested tables": (w("tbl", w("tr", w("tc", A), w("tc", w("tbl", w("tr", w("tc", B))), "<w:p/>"))), "| a | b |"),
    "deleted rows": (w("tbl", w("tr", w("trPr", "<w:del/>"), w("tc", A)), w("tr", w("tc", B))), "b"),
    "layout tables": (w("tbl", w("tr", w("tc", A + B))), "a\n\nb"),
    "links and wrappers": (w("p", w("hyperlink", run("li")), w("smartTag", run("nk")), LINK), "link x-y"),
}


@pytest.mark.parametrize("kind", WORD)
def test_word(tmp_path, kind):
    import docx
    from docx.oxml import parse_xml

    xml, expected = WORD[kind]
    document = docx.Document()
    for part in reversed(parse_xml(f"<w:body {W}>{xml}</w:body>")):
        document.element.body.insert(0, part)
    document.save(tmp_path / "a.docx")
    assert [found.text for found in texts(tmp_path / "a.docx")] == [expected]


def test_word_around_the_text(tmp_path):
    """Headers come first, footers last, notes and comments, marked, after the paragraph that refers to them."""
    import docx

    document = docx.Document()
    document.sections[0].header.paragraphs[0].text = "Secret"
    document.sections[0].footer.paragraphs[0].text = "Page"
    document.add_paragraph("Plan", style="Title")
    paragraph = document.add_paragraph("We sail.")
    document.add_comment(paragraph.runs, text="When?", author="Ana")
    document.add_paragraph("bread", style="List Bullet")
    document.add_paragraph("fish", style="List Bullet")
    document.save(tmp_path / "a.docx")
    note = f'<w:footnotes {W}><w:footnote w:id="2"><w:p><w:r><w:t>At dawn.</w:t></w:r></w:p></w:footnote></w:footnotes>'
    with zipfile.ZipFile(tmp_path / "a.docx") as old, zipfile.ZipFile(tmp_path / "b.docx", "w") as new:
        for name in old.namelist():
            content = old.read(name).decode("utf-8", "surrogateescape")
            if name == "word/_rels/document.xml.rels":
                added = '<Relationship Id="n" Type="http://x/footnotes" Target="/word/footnotes.xml"/>'
                content = content.replace("</Relationships>", f"{added}</Relationships>")
            if name == "word/document.xml":
                content = content.replace("We sail.</w:t>", 'We sail.</w:t><w:footnoteReference w:id="2"/>')
            new.writestr(name, content.encode("utf-8", "surrogateescape"))
        new.writestr("word/footnotes.xml", note)
    (found,) = texts(tmp_path / "b.docx")
    expected = "Secret|# Plan|We sail.|Note: At dawn.|Comment: When?|- bread\n- fish|Page"
    assert found.text == expected.replace("|", "\n\n")
    assert found.title == "Plan"


def test_powerpoint(tmp_path):
    import pptx
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    presentation = pptx.Presentation()
    presentation.core_properties.title = ""
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    outer = slide.shapes.add_group_shape()
    outer.shapes.add_textbox(0, 0, 1, 1).text_frame.text = "grouped"
    outer.shapes.add_group_shape().shapes.add_textbox(0, 0, 1, 1).text_frame.text = "deeply"
    table = slide.shapes.add_table(1, 2, 0, 0, 9, 9).table
    table.cell(0, 0).text, table.cell(0, 1).text = "cod", "3 euros"
    data = CategoryChartData()
    data.categories = ["East", "West"]
    data.add_series("Sales", (1, 2))
    chart = slide.shapes.add_chart(XL_CHART_TYPE.PIE, 0, 0, 9, 9, data).chart
    chart.has_title, chart.chart_title.text_frame.text = True, "By coast"
    slide.shapes.title.text = "Fish"
    slide.notes_slide.notes_text_frame.text = "Pause."
    presentation.save(tmp_path / "a.pptx")
    (found,) = texts(tmp_path / "a.pptx")
    assert found.text.split("\n\n") == [
        *("# Fish", "grouped", "deeply", "| cod | 3 euros |", "By coast", "Sales, East, West", "Pause.")
    ]
    assert found.title == "Fish"


ODT = """<text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion>
</text:changed-region></text:tracked-changes><text:p>Fog<text:note><text:note-citation>1</text:note-citation>
<text:note-body><text:p>Thick.</text:p></text:note-body></text:note> came<office:annotation><text:p>When?</text:p>
</office:annotation>.</text:p><text:p>frame<draw:frame><draw:text-box><text:p>boxed</text:p></draw:text-box></draw:frame>
</text:p><text:list><text:list-item><text:p>one</text:p><text:list><text:list-item><text:p>two</text:p></text:list-item>
</text:list></text:list-item></text:list>"""


def test_opendocument(tmp_path):
    odt(tmp_path / "a.odt")
    with zipfile.ZipFile(tmp_path / "a.odt") as old, zipfile.ZipFile(tmp_path / "b.odt", "w") as new:
        content = old.read("content.xml").decode()
        space = 'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"'
        content = content.replace("<office:text>", f"<office:text {space}>" + ODT)
        new.writestr("content.xml", content)
        new.writestr(
            "styles.xml",
            '<x xmlns:s="s" xmlns:text="t"><s:header><text:p>Secret</text:p></s:header>'
            "<s:footer><text:p>Page</text:p></s:footer></x>",
        )
    (found,) = texts(tmp_path / "b.odt")
    expected = "Secret|Fog came.|Note: Thick.|Comment: When?|frame|boxed|- one\n- two|# Harbour report"
    assert found.text.startswith(expected.replace("|", "\n\n"))
    assert found.text.endswith("\n\nPage")


@pytest.mark.parametrize("algorithm", ["RC4-40", "RC4-128", "AES-128", "AES-256-R5", "AES-256"])
def test_a_pdf_that_needs_no_password(tmp_path, algorithm):
    pdf(tmp_path / "a.pdf", password="", algorithm=algorithm)
    assert [found.text for found in texts(tmp_path / "a.pdf")] == [f"{FIRST}\f{SECOND}"]
    pdf(tmp_path / "a.pdf", password="x", algorithm=algorithm)
    assert reason(tmp_path / "a.pdf") == "password-protected"


def test_a_pdf_that_was_cut_short_is_no_text(tmp_path):
    pdf(tmp_path / "a.pdf", pages=tuple(f"Page {number} of a long report." for number in range(40)))
    content = (tmp_path / "a.pdf").read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        (tmp_path / "a.pdf").write_bytes(content[: int(len(content) * share)])
        assert re.search("broken|incomplete", reason(tmp_path / "a.pdf"))


MARKDOWNS = [
    # Content, title, metadata, and the blocks.
    ("---\nThe river rose.\n\n---\n\nMore.\n", None, {}, ["---\nThe river rose.", "---", "More."]),
    ("---\n\n# Fog\n\n---\n", "Fog", {}, ["---", "# Fog", "---"]),
    ("***\n\nwords\n", None, {}, ["***", "words"]),
    ("---\ntitle: Fog\ndraft: true\n---\n# No\n", "Fog", {}, ["# No"]),
    (
        "---\ntags: [sea, 'cold fog']\naliases:\n  - Haar\n- Sea fret # Scots\n---\nIt came.\n",
        None,
        {"tags": ["sea", "cold fog"], "aliases": ["Haar", "Sea fret"]},
        ["tags: [sea, 'cold fog']", "aliases:\n  - Haar\n- Sea fret # Scots", "It came."],
    ),
    ("---\ntag: a, b\nalias: Fog, thick\n---\n", None, {"tags": ["a", "b"], "aliases": ["Fog, thick"]}, None),
    ("---\nTitle: >\n  The long\n  fog\n...\nx\n", "The long fog", {}, ["x"]),
    ("words\ntitle: no\n", None, {}, None),
    ("```sh\n# install\n```\n\n~~~\nNo\n==\n~~~\n\n# Yes #\n", "Yes", {}, None),
    ("```\n# install\n```\nReal\n====\n", "Real", {}, None),
    ("## Second\n\nwords", None, {}, None),
    ("<!--\n# Draft\n\n# Old\n-->\n# Fog\n", "Fog", {}, ["<!--\n# Draft\n\n# Old\n-->", "# Fog"]),
]


@pytest.mark.parametrize(("content", "title", "metadata", "blocks"), MARKDOWNS)
def test_markdown(tmp_path, content, title, metadata, blocks):
    (tmp_path / "a.md").write_text(content)
    (found,) = texts(tmp_path / "a.md")
    assert (found.title, found.metadata, found.text) == (title, metadata, content)
    if blocks is not None:
        assert [content[block.start : block.stop] for block in markdown(content)] == blocks


@pytest.mark.parametrize(
    ("page", "title", "text"),
    [
        (f"<p>{FIRST}</p><p>{SECOND}</p>", None, f"{FIRST}\n\n{SECOND}"),
        (f"<h1>Fog</h1>{FIRST}", "Fog", f"# Fog\n\n{FIRST}"),
        ("<li>one<li>two", None, "- one\n- two"),
        ("just words", None, "just words"),
        ("<!-- <title>old</title> --><title>New</title><p>x</p>", "New", "x"),
        (f"<title>New</title><p>{FIRST}</p>", "New", FIRST),
        (f"<html><body><svg><title>icon</title></svg><p>{FIRST}</p></body></html>", None, FIRST),
        # Whole pages: tags that may be left out, menus by their roles, and menus without an end.
        (f"<html><head><title>New</title><body><p>{FIRST}", "New", FIRST),
        (
            f"<html><body><div role='navigation'><div>menu</div>menu</div>{FIRST}<footer>c</footer></body></html>",
            None,
            FIRST,
        ),
        (f"<html><body><nav>menu<p>{FIRST}</p></body></html>", None, f"menu\n\n{FIRST}"),
        (f"<html><head><script src='x.js'/></head><body><svg/><p>{FIRST}</p></body></html>", None, FIRST),
        (f"<html><form><h2>Fog&para;</h2>{FIRST}<dl><dt>a<dd>b</dl></form></html>", None, f"## Fog\n\n{FIRST}\n\na\nb"),
    ],
)
def test_html(tmp_path, page, title, text):
    (tmp_path / "a.html").write_text(page)
    (found,) = texts(tmp_path / "a.html")
    assert (found.text, found.title) == (text, title)


MENUS = (
    """role=navigation|class="top" role="navigation"|ROLE = 'Navigation' data-x|data-a="1>0" role="  banner  none\""""
)
OTHERS = (
    """role="main" role="navigation"|data-role="navigation"|title='role="navigation"'|role|role="note navigation\""""
)


@pytest.mark.parametrize(("menus", "text"), [(MENUS, FIRST), (OTHERS, f"menu\n\n{FIRST}")])
def test_menus_are_known_by_the_attribute_that_names_a_role(tmp_path, menus, text):
    for attributes in menus.split("|"):
        (tmp_path / "a.html").write_text(f"<html><body><div {attributes}>menu</div><p>{FIRST}</p></body></html>")
        (found,) = texts(tmp_path / "a.html")
        assert found.text == text, attributes


FRENCH = "Le garçon a mangé des crêpes à la crème.\n" * 3
BYTES = {
    "French": (FRENCH.encode() + b"\xe9t\xe9\n" + FRENCH.encode(), "été"),
    "cut within a character": (FRENCH.encode() + "Кошка €".encode()[:-1], "Кошка �"),
    "a lost byte": ("Кошка спит. ".encode() * 9 + "Кошка".encode()[1:], "�ошка"),
    "NUL bytes": (b"12:00 started\n12:05 " + b"\0" * 4000 + b"12:09 stopped\n", "12:05  12:09 stopped"),
    "an emptied log": (b"\0" * 200_000 + b"12:00 started again\n", "12:00 started"),
}


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("suffix", ["log", "ipynb"])
def test_wrong_bytes_cost_themselves_and_a_warning(tmp_path, extraction, kind, suffix):
    content, expected = BYTES[kind]
    path = tmp_path / f"a.{suffix}"
    if suffix == "ipynb":
        if b"\0" in content or kind.startswith("cut"):
            pytest.skip("JSON has no NUL bytes")
        written = json.dumps({"cells": [{"cell_type": "markdown", "source": "XX"}]}).encode()
        content = written.replace(b"XX", content.replace(b"\n", b" "))
    path.write_bytes(content)
    with pytest.warns(WrongBytesWarning) as said:
        ((_, found),) = extraction.read([(None, str(path))])
    assert not isinstance(found, Exception), found
    assert expected in found[0].text
    assert "\0" not in found[0].text
    assert len(said) == 1
    assert str(said[0].message).startswith(f"{path}, line ")
