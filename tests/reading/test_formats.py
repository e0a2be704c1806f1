"""Every format is read whole and in reading order; broken files have a reason; workers limit time and memory."""

import email.policy
import gzip
import json
import mailbox as stdlib_mailbox
import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from email.message import EmailMessage

import lxml.etree
import openpyxl
import psutil
import pytest
import yaml
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt

from ctx_embed.reading.decoding import UnreadableFileError
from ctx_embed.reading.encodings import WrongBytesWarning
from ctx_embed.reading.formats import extract
from ctx_embed.reading.markup import front_matter, plain_markdown
from ctx_embed.reading.rows import Fields, read_documents
from ctx_embed.reading.units import documents_of, is_prose, records_of
from ctx_embed.reading.walking import walk
from ctx_embed.reading.web import scanned
from ctx_embed.reading.workers import Extraction, Worker
from tests.helpers.errors import error
from tests.reading.samples import FIRST, SECOND, TITLE, WRITERS, dictionary, eml, epub, ipynb, odt, pdf


@pytest.fixture(scope="module")
def in_worker():
    """Returns the texts of a file, read in a worker, or the error."""
    with Extraction(workers=1, seconds=30) as extraction:
        yield lambda path: next(result for _, result in list(extraction.read([(None, str(path))])))


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
    "eml": f"{FIRST}\n\n## Catch",
    "mbox": f"{FIRST}\n\n## Catch",
    "rtf": f"{FIRST}\n\nNote: café 漢\n\n",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_each_format(tmp_path, name):
    path = tmp_path / f"report.{name}"
    WRITERS[name](path)
    (found,) = texts(path)
    for wanted in (FIRST, SECOND, SPECIAL.get(name, ""), "" if name in ("pdf", "pptx", "rtf") else "## Markets\n\n"):
        assert wanted in found.text
    assert (found.title, found.pages) == (TITLE, name in ("pdf", "pptx"))
    for unwanted in ("Home", "alert", "color", "rights", "root:", "secret", "<i>", "\0"):
        assert unwanted not in found.text


def test_encodings(file):
    surrogate = json.dumps({"cells": [{"cell_type": "markdown", "source": "a \ud800 b"}]})
    for name, written, expected in (
        ("a.txt", b"\xef\xbb\xbfcaf\xc3\xa9\r\nb\rc", "café\nb\nc"),
        ("a.txt", "été".encode("utf-16"), "été"),
        ("a.txt", "Le garçon a mangé des crêpes.".encode("cp1252"), "Le garçon a mangé des crêpes."),
        ("a.txt", gzip.compress(b"packed", mtime=0), "packed"),
        ("a.ipynb", surrogate, "a � b"),
    ):
        assert [found.text for found in texts(file(written, name))] == [expected]


def test_reasons(file, in_worker):
    container = "META-INF/container.xml"
    for name, content, said in (
        ("old.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "password-protected, or of an old format"),
        ("old.docx", b"plain text", "not Word (File is not a zip file)"),
        ("a.docx", {"a": ""}, "not Word (it names no main part)"),
        ("a.epub", {"a": ""}, f"broken: it has no {container}"),
        ("a.epub", {container: "<container/>"}, "not EPUB (no root file)"),
        ("a.epub", {container: '<a><rootfile full-path="b"/></a>', "b": "<a/>"}, "not EPUB (no list of chapters)"),
        ("a.pdf", b"%PDF-1.4 nothing", "not PDF, or broken ("),
        ("a.eml", b"", "not a message ("),
        ("a.mbox", b"Subject: a\n", "not a mailbox ("),
        ("a.rtf", b"{}", "not RTF"),
        ("a.rtf", b"{\\rtf1 \\u99999999?}", "cannot be read (ValueError: chr() arg not in range"),
        ("a.ipynb", b"[]", "not a notebook"),
        ("a.txt", gzip.compress(b"line\n" * 999)[:-12], "broken gzip ("),
        ("a.txt", b"a\0b", "binary"),
        ("b.txt", b"\x7fELF\2\1\1" + b"\0" * 9 + b"\3\0>\0\1\0" * 90, "binary"),
        ("b.txt", b"\0" * 99, "binary"),
    ):
        assert re.fullmatch(f"{re.escape(said)}.*", str(in_worker(file(content, name))))


def test_no_more_bytes_and_characters_than_the_limits_are_read(file, monkeypatch):
    for limit, said in (
        ("decoding.MOST_BYTES", "larger than 0 MB"),
        ("formats.MOST_CHARACTERS", "more than 0 million"),
    ):
        for path in (file("abcdef"), file({"a.txt": "abc", "b.txt": "abc"}, "a.zip")):
            monkeypatch.setattr(f"ctx_embed.reading.{limit}", 6)
            assert sum(len(found.text) for found in texts(path)) == 6
            monkeypatch.setattr(f"ctx_embed.reading.{limit}", 5)
            assert reason(path).startswith(said)
        monkeypatch.undo()


SENTENCE = "The ferry was late."


def test_prose_is_sentences_of_which_most_differ():
    for values in (["one two three four"], ["It rained."], ["日本語日本語日本"], [SENTENCE, None], [SENTENCE] * 2):
        assert is_prose(values), values
    for text in ("one two three 4", "Rain.", "日本語日本語日", '["one", "two", "three", "four"]', ""):
        assert not is_prose([text]), text
    for values in (["see http://a.org http://b.org now today"], [SENTENCE, 1, 2], [SENTENCE] * 3, []):
        assert not is_prose(values), values


def test_an_array_of_json_with_one_column_of_prose_is_records_and_settings_are_text(file):
    for content, named, expected in (
        ([{"body": SENTENCE, "n": 1}], None, ("body",)),
        ([{"name": "a"}], None, None),
        ({"body": SENTENCE}, None, ("body",)),
        ({"name": "a"}, "question", None),
        ([{"body": SENTENCE, "more": SENTENCE}], None, "2 columns of prose; name one or more of 'body', 'more'"),
        # Rows that lack the named field are not text in silence.
        ([{"text": SENTENCE}], "question", "no field 'question'"),
        ([{"body": SENTENCE}], "question", "no field 'question'"),
    ):
        is_wrong = isinstance(expected, str)
        with pytest.raises(UnreadableFileError, match=expected) if is_wrong else nullcontext():
            found = records_of(str(file(json.dumps(content), "a.json")), None, Fields(named))
            assert (found and found[0].text) == expected


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
    "text boxes": (w("p", w("r", f"<mc:AlternateContent>{CHOICE}</mc:AlternateContent>"), run("a")), "a\n\nboxed"),
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


def test_word_around_the_text(tmp_path, file, members):
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
    parts = members(tmp_path / "a.docx")
    reference = b'We sail.</w:t><w:footnoteReference w:id="2"/>'
    parts["word/document.xml"] = parts["word/document.xml"].replace(b"We sail.</w:t>", reference)
    added = b'<Relationship Id="n" Type="http://x/footnotes" Target="/word/my%20notes.xml"/></Relationships>'
    references = "word/_rels/document.xml.rels"
    parts[references] = parts[references].replace(b"</Relationships>", added)
    parts["word/my notes.xml"] = (
        f'<w:footnotes {W}><w:footnote w:id="2">{w("p", run("At dawn."))}</w:footnote></w:footnotes>'
    )
    (found,) = texts(file(parts, "a.docx"))
    expected = "Secret|# Plan|We sail.|Note: At dawn.|Comment: When?|- bread\n- fish|Page"
    assert (found.title, found.text) == ("Plan", expected.replace("|", "\n\n"))


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
    expected = "# Fish|grouped|deeply|/ cod / 3 euros /|By coast|Sales, East, West|Pause."
    assert (found.title, found.text) == ("Fish", expected.replace("|", "\n\n").replace("/", "|"))


ODT = """<text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion>
</text:changed-region></text:tracked-changes><text:p>Fog<text:note><text:note-citation>1</text:note-citation>
<text:note-body><text:p>Thick.</text:p></text:note-body></text:note> came<office:annotation><text:p>When?</text:p>
</office:annotation>.</text:p><text:p>frame<draw:frame><draw:text-box><text:p>boxed</text:p></draw:text-box></draw:frame>
</text:p><text:list><text:list-item><text:p>one</text:p><text:list><text:list-item><text:p>two</text:p></text:list-item>
</text:list></text:list-item></text:list>"""


def test_opendocument(tmp_path, file, members):
    odt(tmp_path / "a.odt")
    parts = members(tmp_path / "a.odt")
    space = '<office:text xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0">'
    parts["content.xml"] = parts["content.xml"].decode().replace("<office:text>", space + ODT)
    around = "<s:header><text:p>Secret</text:p></s:header><s:footer><text:p>Page</text:p></s:footer>"
    parts["styles.xml"] = f'<x xmlns:s="s" xmlns:text="t">{around}</x>'
    (found,) = texts(file(parts, "a.odt"))
    expected = "Secret|Fog came.|Note: Thick.|Comment: When?|frame|boxed|- one\n- two|# Harbour report"
    assert found.text.startswith(expected.replace("|", "\n\n"))
    assert found.text.endswith("\n\nPage")


def test_a_pdf_that_needs_a_password_or_has_no_text_or_is_cut_short(tmp_path, file):
    for algorithm in ("RC4-40", "RC4-128", "AES-128", "AES-256-R5", "AES-256"):
        pdf(tmp_path / "a.pdf", password="", algorithm=algorithm)
        assert [found.text for found in texts(tmp_path / "a.pdf")] == [f"{FIRST}\f{SECOND}"]
        pdf(tmp_path / "a.pdf", password="x", algorithm=algorithm)
        assert reason(tmp_path / "a.pdf") == "password-protected"
    pdf(tmp_path / "a.pdf", pages=("",))
    assert reason(tmp_path / "a.pdf") == "no text, perhaps scanned pages"
    pdf(tmp_path / "a.pdf", pages=tuple(f"Page {number} of a long report." for number in range(40)))
    content = (tmp_path / "a.pdf").read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        assert re.search("broken|incomplete", reason(file(content[: int(len(content) * share)], "b.pdf")))


MARKDOWNS = [
    # Content, title, metadata, and the text; None for all of the content.
    ("---\nThe river rose.\n\n---\n\nMore.\n", None, {}, None),
    ("---\n\n# Fog\n\n---\n", "Fog", {}, None),
    ("***\n\nwords\n", None, {}, None),
    ("---\n---\nwords\n", None, {}, "words\n"),
    ("---\ntitle: Fog\ndraft: true\n---\n# No\n", "Fog", {"title": "Fog", "draft": True}, "# No\n"),
    ("---\ntitle: Fog: a study\n---\nIt came.\n", "Fog: a study", {"title": "Fog: a study"}, "It came.\n"),
    ("---\nday: 2026-13-45\n---\nx\n", None, {"day": "2026-13-45"}, "x\n"),
    ("---\nTitle: no\ntitle: >\n  The long\n  fog\n...\nx\n", "The long fog", None, "x\n"),
    ("+++\ntitle = 'Fog # 5'\nday = 2026-06-01\n+++\nx\n", "Fog # 5", {"title": "Fog # 5", "day": "2026-06-01"}, "x\n"),
    ("words\ntitle: no\n", None, {}, None),
    ("```sh\n# install\n```\n\n~~~\nNo\n==\n~~~\n\n# Yes #\n", "Yes", {}, None),
    ("```\n# install\n```\nReal\n====\n", "Real", {}, None),
    ("## Second\n\nwords", None, {}, None),
    ("<!--\n# Draft\n\n# Old\n-->\n# Fog\n", "Fog", {}, None),
    ("# Th&eacute;&acirc;tre\n", "Théâtre", {}, "# Théâtre\n"),
    ("[1]: http://x.org/a\n[^1]: Kept.\n", None, {}, "\n[^1]: Kept.\n"),
    ("a[0](x) ![p](data:image/png;base64,AA==) <img src='data:a/b,c' alt='d'>", None, {}, "a[0] ![p] <img alt='d'>"),
    ("- a\n\n    [b](c)\n\nd\n\n    [e](f)\n", None, {}, "- a\n\n    [b]\n\nd\n\n    [e](f)\n"),
    ("[a](\n<b c>) &#65;&#10;&notit; \\&amp;\n", None, {}, "[a]\n A &notit; \\&amp;\n"),
]


def test_markdown(file):
    for content, title, metadata, text in MARKDOWNS:
        (found,) = texts(file(content, "a.md"))
        assert (found.title, found.text) == (title, content if text is None else text), content
        assert metadata in (None, found.metadata)
        # Lines are those of the file.
        assert found.text.count("\n") + found.line - 1 == content.count("\n")


PLAIN = st.text("ab:#'\"\\é 1-&*[]{},", max_size=8)
SCALARS = st.one_of(PLAIN, st.integers(-(2**40), 2**40), st.booleans(), st.none(), st.dates(), st.floats(-9, 9))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3))


@given(st.dictionaries(st.text("abc_ ", min_size=1, max_size=5), VALUES, min_size=1, max_size=4), st.booleans())
def test_front_matter_is_what_yaml_says(fields, flow):
    matter = yaml.safe_dump(fields, allow_unicode=True, default_flow_style=flow)
    start, found = front_matter(f"---\n{matter}---\nThe text.\n")
    assert start == len(matter) + 8
    assert found == json.loads(json.dumps(yaml.safe_load(matter), default=str))


def test_hostile_front_matter_is_bounded():
    grown = "a: &a [x, x, x, x]\n" + "".join(f"k{n}: &k{n} [*{f'k{n - 1}' if n else 'a'}, *a]\n" for n in range(60))
    wide = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    for matter in (grown, wide, "a: &a [*a]\n", "a: " + "[" * 9000 + "\n", "a: !!binary x\n", f"a: {'9' * 9000}\n"):
        start = time.process_time()
        assert len(json.dumps(front_matter(f"---\n{matter}---\n")[1])) < 100_000
        assert time.process_time() - start < 2


PIECES = ["one", "two", "&amp;", "&eacute;", "&#233;", "&nope;", "&ampx", "`&lt;`", "[in](http://x.org/out)"]
PIECES += ["![alt](a.png 'no')", "``a ` &gt;``", "\\&copy;", "[l](<b c>)", "[l](b c)", "f(x)", "a[b]", "*em*", "`"]
BLOCKS = ["\n\n# ", "\n\n- ", "\n\n```\n&amp; [x](y)\n```\n\n", "\n\n    &amp; [x](y)\n\n", "\n\n[ref]: target\n\n"]


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from([" ", " ", " ", "\n\n", *BLOCKS])), max_size=12))
def test_the_words_of_markdown_are_those_of_commonmark(parts):
    text = "".join(piece + after for piece, after in parts)

    def inline(tokens) -> str:
        said = (inline(each.children) or ("\n" if "break" in each.type else each.content) for each in tokens or ())
        return "".join(said)

    expected = " ".join(inline(each.children or [each]) for each in MarkdownIt().parse(text))
    assert re.findall(r"\w+", plain_markdown(text)) == re.findall(r"\w+", expected)


def test_the_parts_of_mail_and_archives(tmp_path, file):
    """Messages are documents by their own ids; members have paths, at any depth; what cannot be read is said."""
    eml(tmp_path / "a.eml")
    (mail,) = texts(tmp_path / "a.eml")
    assert mail.metadata == {"subject": TITLE, "from": "Zoë <zoe@b.org>", "date": "2026-06-01T10:00:00+02:00"}
    forwarded = EmailMessage()
    forwarded["Subject"], forwarded["Message-ID"] = "Fwd: Fog", "<7@b.org>"
    forwarded.set_content("See below.\nFrom here on it clears.")
    forwarded.add_attachment(email.message_from_bytes((tmp_path / "a.eml").read_bytes(), policy=email.policy.default))
    box = stdlib_mailbox.mbox(tmp_path / "a.mbox")
    for _ in range(2):
        box.add(forwarded)
    box.add(b"Subject: =?utf-8?q?No_=FF?=\nDate: soon\nContent-Type: text/html; charset=none\n\n<p>a<p>b")
    box.close()
    first, second, third = texts(tmp_path / "a.mbox")
    assert (first.part, second.part, len(third.part)) == (":7@b.org", ":7@b.org-2", 17)
    assert first.text.startswith(f"See below.\nFrom here on it clears.\n\n{TITLE}\n\n{FIRST}")
    assert (third.text, third.metadata["date"]) == ("a\n\nb", "soon")
    members = {"mail/a.mbox": (tmp_path / "a.mbox").read_bytes(), "e\u0301.docx": "broken", "../.env": "secret"}
    path = file({"b.zip": file(members, "b.zip").read_bytes()}, "a.zip")
    with pytest.warns(WrongBytesWarning, match=r"a.zip/b.zip/e\u0301.docx: not read \(not Word"):
        found = texts(path)
    assert [each.part for each in found[:2]] == ["/b.zip/mail/a.mbox:7@b.org", "/b.zip/mail/a.mbox:7@b.org-2"]
    document = next(documents_of(next(each for each in walk(tmp_path) if each.source == "a.zip"), found, None))
    assert (document.id, document.metadata["source"]) == (f"a.zip{found[0].part}",) * 2


@pytest.mark.filterwarnings("ignore::ctx_embed.reading.encodings.WrongBytesWarning")
def test_bombs(file, in_worker):
    """Archives that unpack to more than allowed, deep nesting, and entities that grow."""
    entities = "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 10))
    grown = f"<!DOCTYPE x [<!ENTITY a0 'aaaaaaaaaa'>{entities}]><x>&a9;</x>"
    deep = file({"a.txt": "text"}, "deep.zip")
    for _ in range(5):
        deep = file({"a.zip": deep.read_bytes()}, "deep.zip")
    nested = "".join(f'Content-Type: multipart/mixed; boundary="{n}"\n\n--{n}\n' for n in range(3000))
    for path, said in (
        (deep, "holds no file that can be read"),
        (file({f"{number}.txt": "" for number in range(10_001)}, "many.zip"), "more than 10,000 files"),
        (file({f"{n}.txt": b"a " * (30 << 20) for n in range(5)}, "large.zip"), "larger than 256 MB when unpacked"),
        (file(nested, "deep.eml"), "nested too deeply"),
        (file("[" * 100_000, "a.ipynb"), "not a notebook ("),
        (file({"content.xml": grown}, "a.odt"), "broken: content.xml is not XML ("),
        (file("Subject: " + "=?utf-8?q?=41?= " * 100_000 + "\n\nx", "long.eml"), ""),
        (file("<div>" * 90_000 + "text", "a.html"), ""),
    ):
        found = in_worker(path)
        assert isinstance(found, UnreadableFileError) == (said != ""), path.name
        assert not said or str(found).startswith(said)


def test_files_of_other_formats_in_word(tmp_path):
    """HTML, MHT and Word that Word shows in a document (altChunk), each once, and never without end."""
    import docx
    from docx.opc.packuri import PackURI
    from docx.opc.part import Part
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    page, path = "<p>The rent is <b>due</b>.</p>", tmp_path / "a.docx"
    mht = f"Content-Type: multipart/related; boundary=b\n\n--b\nContent-Type: text/html\n\n{page}\n--b--\n"
    for name, content in (("c.html", page), ("c.mht", mht), ("c.docx", "")) + (("d.docx", ""),) * 6:
        document = docx.Document()
        document.add_paragraph(name)
        written = path.read_bytes() if not content else content.encode()
        part = Part(PackURI(f"/word/{name}"), "text/html", written, document.part.package)
        for _ in range(2):
            chunk = OxmlElement("w:altChunk")
            chunk.set(qn("r:id"), document.part.relate_to(part, "http://x/aFChunk"))
            document.element.body.insert(1, chunk)
        document.save(path)
        if name != "d.docx":
            assert [found.text.split("\n\n")[-1] for found in texts(path)] == ["The rent is due."]
    with pytest.warns(WrongBytesWarning, match="more than 4 files deep"):
        assert [found.text.split() for found in texts(path)] == [["d.docx"] * 5]


def test_a_book_without_one_of_its_chapters(tmp_path, file, members):
    epub(tmp_path / "a.epub")
    parts = members(tmp_path / "a.epub")
    del parts["OPS/chapter one.xhtml"]
    # Some programs escape a title twice.
    parts["OPS/book.opf"] = re.sub(rb"(<dc:title[^>]*>)[^<]*", rb"\1Salt &amp;amp; sea", parts["OPS/book.opf"])
    (found,) = texts(file(parts, "a.epub"))
    assert (found.title, found.text.split("\n\n")[:2]) == ("Salt & sea", ["## Markets", SECOND])


@pytest.mark.parametrize("shown", [True, False])
def test_forms_and_notes_of_a_pdf(tmp_path, shown):
    """What people typed or chose stands beside its name if the file draws it; hidden fields are not read."""
    from pypdf import PdfReader, PdfWriter
    from pypdf.annotations import FreeText, Text
    from pypdf.generic import ArrayObject, FloatObject, NameObject, NumberObject, TextStringObject

    pdf(tmp_path / "a.pdf", pages=("Name of the applicant:", "Page two"))
    writer = PdfWriter(PdfReader(tmp_path / "a.pdf"))
    writer.add_annotation(1, Text(rect=(50, 550, 100, 600), text="Ask the port."))
    writer.add_annotation(1, FreeText(rect=(50, 450, 200, 500), text="Seen by Ana."))
    fields = ArrayObject()
    for number, (kind, value, flags) in enumerate((("Tx", "Ottoline", 4), ("Ch", "Harbour", 4), ("Tx", "secret", 2))):
        rect = ArrayObject(map(FloatObject, (250, 715 - 60 * number, 400, 735 - 60 * number)))
        field = dictionary(Type="Annot", Subtype="Widget", FT=kind, Rect=rect, F=NumberObject(flags))
        field |= dictionary(
            T=TextStringObject(number), V=TextStringObject(value), DA=TextStringObject("/Helv 12 Tf 0 g")
        )
        fields.append(writer._add_object(field))
    writer.pages[0][NameObject("/Annots")] = fields
    writer.root_object[NameObject("/AcroForm")] = dictionary(Fields=fields)
    if shown:
        writer.update_page_form_field_values(writer.pages[0], {"0": "Ottoline"}, auto_regenerate=False)
    writer.write(tmp_path / "b.pdf")
    first, second = texts(tmp_path / "b.pdf")[0].text.split("\f")
    assert first.split() == ["Name", "of", "the", "applicant:", "Ottoline", "Harbour"]
    assert second == "Page two\n\nComment: Ask the port.\n\nSeen by Ana."


PHRASES = "a abbr b bdi cite code em i kbd mark q s samp small span strong sub sup time u var"
APART = """address article aside blockquote button center dd details dialog div dl dt fieldset figcaption figure form h1
h2 header legend li main menu ol optgroup option p section select summary td th ul"""


@given(
    st.recursive(
        st.sampled_from(["x", "y", " "]),
        lambda inner: st.tuples(st.sampled_from(f"{PHRASES} {APART}".split()), st.lists(inner, max_size=3)),
        max_leaves=12,
    )
)
def test_the_words_of_a_page_are_those_of_a_browser(tree):
    """All tags but those of the standard's phrases separate words, as lxml reads them."""

    def written(node) -> str:
        return node if isinstance(node, str) else f"<{node[0]}>{''.join(map(written, node[1]))}</{node[0]}>"

    def shown(element) -> str:
        inner = (element.text or "") + "".join(shown(child) + (child.tail or "") for child in element)
        return inner if element.tag in PHRASES.split() else f" {inner} "

    page = f"<html><body><main>{written(tree)}</main></body></html>"
    assert re.findall("[xy]+", scanned(page).markdown()) == re.findall("[xy]+", shown(lxml.etree.fromstring(page)))


def test_titles_that_programs_write_are_none(tmp_path):
    for titles, kept in (
        (("(Untitled)", "untitled-1", "Document2", "Microsoft Word - fog.doc"), False),
        (("1984", "Documents of 1984", "Untitled lives", " Fog\n"), True),
    ):
        for title in titles:
            pdf(tmp_path / "a.pdf", title=title)
            assert [found.title for found in texts(tmp_path / "a.pdf")] == [title.strip() if kept else None]


def test_html(file):
    broken = "One & two\n\na < b\nc"
    for page, title, text in (
        (f"<h1>Fog</h1>{FIRST}", "Fog", f"# Fog\n\n{FIRST}"),
        ("<li>one<li>two", None, "- one\n- two"),
        ("just words", None, "just words"),
        ("<header>x</header><article><header>By A</header>y<footer>z</footer></article>", None, "By A\n\ny\n\nz"),
        ("<header><h1>A</h1>b</header><blockquote>c<footer>d</footer></blockquote>", "A", "# A\n\nb\n\nc\n\nd"),
        ("<!-- <title>old</title> --><title>New</title><p>x</p>", "New", "x"),
        (f"<html><body><svg><title>icon</title></svg><p>{FIRST}</p></body></html>", None, FIRST),
        ("<p title='a > b'>One &amp; <b>two</b></p><script>if (a < b) {}</script><p>a < b<br>c</P><p", None, broken),
        ("<h2>Fog</h2><ul><li>x<li>y</ul><style>p {}</style><td>1</td>", None, "## Fog\n\n- x\n- y\n\n1"),
        # Whole pages: tags that may be left out, menus by their roles, and menus without an end.
        (f"<html><head><title>New</title><body><p>{FIRST}", "New", FIRST),
        (f"<html><div role='navigation'><div>menu</div>menu</div>{FIRST}<footer>c</footer></html>", None, FIRST),
        (f"<html><body><nav>menu<p>{FIRST}</p></body></html>", None, f"menu\n\n{FIRST}"),
        (f"<html><head><script src='x.js'/></head><body><svg/><p>{FIRST}</p></body></html>", None, FIRST),
        (f"<html><form><h2>Fog&para;</h2>{FIRST}<dl><dt>a<dd>b</dl></form></html>", None, f"## Fog\n\n{FIRST}\n\na\nb"),
    ):
        assert [(found.text, found.title) for found in texts(file(page, "a.html"))] == [(text, title)]


MENUS = """role=navigation|class="a" role="navigation"|ROLE = 'Navigation' data-x|data-a="1>0" role=" banner  none" b"""
OTHERS = (
    """role="main" role="navigation"|data-role="navigation"|title='role="navigation"'|role|role="no navigation" b"""
)


def test_menus_are_known_by_the_attribute_that_names_a_role(file):
    for menus, text in ((MENUS, FIRST), (OTHERS, f"menu\n\n{FIRST}")):
        for attributes in menus.split("|"):
            path = file(f"<html><body><div {attributes}>menu</div><p>{FIRST}</p></body></html>", "a.html")
            assert [found.text for found in texts(path)] == [text], attributes


FRENCH = "Le garçon a mangé des crêpes à la crème.\n" * 3
BYTES = {
    "French": (FRENCH.encode() + b"\xe9t\xe9\n" + FRENCH.encode(), "été"),
    "cut within a character": (FRENCH.encode() + "Кошка €".encode()[:-1], "Кошка �"),
    "a lost byte": ("Кошка спит. ".encode() * 9 + "Кошка".encode()[1:], "�ошка"),
    "NUL bytes": (b"12:00 started\n12:05 " + b"\0" * 4000 + b"12:09 stopped\n", "12:05  12:09 stopped"),
    "an emptied log": (b"\0" * 200_000 + b"12:00 started again\n", "12:00 started"),
}


@pytest.mark.parametrize(
    ("kind", "suffix"), [*((kind, "log") for kind in BYTES), ("French", "ipynb"), ("a lost byte", "ipynb")]
)
def test_wrong_bytes_cost_themselves_and_a_warning(file, in_worker, kind, suffix):
    content, expected = BYTES[kind]
    if suffix == "ipynb":
        written = json.dumps({"cells": [{"cell_type": "markdown", "source": "XX"}]}).encode()
        content = written.replace(b"XX", content.replace(b"\n", b" "))
    path = file(content, f"a.{suffix}")
    with pytest.warns(WrongBytesWarning, match=f"^{path}, line ") as said:
        (found,) = in_worker(path)
    assert expected in found.text
    assert "\0" not in found.text
    assert len(said) == 1


def workers() -> set[psutil.Process]:
    """Return the worker processes of this one."""
    return {child for child in psutil.Process().children() if "ctx_embed.reading.workers" in child.cmdline()}


def test_files_are_read_in_order_in_and_out_of_workers(tmp_path):
    paths = []
    for number in range(40):
        path = tmp_path / f"{number}.{'odt' if number % 3 else 'txt'}"
        odt(path) if number % 3 else path.write_text(f"text {number}")
        paths.append(str(path))
    paths[5:5] = [None]
    with Extraction(workers=2) as extraction:
        found = list(extraction.read(enumerate(paths)))
    assert [(item, len(texts)) for item, texts in found] == [(item, int(item != 5)) for item in range(41)]


SLOW = ("slow.html", "<p>some words of a page</p>" * 1_500_000, {"seconds": 2}, "takes longer than 2 s")
# A small file whose cells take 64 bytes each in memory.
CELLS = '{"cells": [' + ", ".join(["{}"] * 6_000_000) + "]}"
LARGE = ("a.ipynb", CELLS, {"megabytes": 350}, "needs more than 350 MB of memory")
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by the system")


@pytest.mark.parametrize(
    ("name", "content", "limit", "said"), [SLOW, pytest.param(*LARGE, marks=linux)], ids=["s", "MB"]
)
def test_a_file_that_takes_too_much_is_named_and_the_next_one_is_read(tmp_path, file, name, content, limit, said):
    ipynb(tmp_path / "good.ipynb")
    paths = [str(file(content, name)), str(tmp_path / "good.ipynb")]
    with Extraction(workers=1, **limit) as extraction:
        (_, bad), (_, good) = extraction.read(enumerate(paths))
    assert str(bad) == said
    assert FIRST in good[0].text


def test_time_counts_only_while_someone_waits_for_the_worker(tmp_path):
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for row in range(5000):
        sheet.append([f"row {row} of more than a pipe holds", row])
    book.save(tmp_path / "a.xlsx")
    with Worker(seconds=30) as worker:
        assert len(list(worker.ask(str(tmp_path / "a.xlsx")))) == 5000
        worker.seconds = 1
        rows = worker.ask(str(tmp_path / "a.xlsx"))
        next(rows)
        time.sleep(1.5)
        assert len(list(rows)) == 4999


def test_a_reader_that_crashes(tmp_path):
    path = tmp_path / "a.odt"
    odt(path)
    before = workers()
    with Extraction(workers=1) as extraction:
        list(extraction.read([(0, str(path))]))
        (worker,) = workers() - before
        worker.kill()
        ((_, found),) = extraction.read([(0, str(path))])
        assert str(found) == "ends the process that reads it"
        ((_, found),) = extraction.read([(0, str(path))])
        assert FIRST in found[0].text


def test_leaving_early_ends_all_workers(tmp_path):
    slow = tmp_path / "slow.odt"
    os.mkfifo(slow)
    begun, before = time.monotonic(), workers()
    with suppress(KeyboardInterrupt), Extraction(workers=2) as extraction:
        good = tmp_path / "good.odt"
        odt(good)
        reading = extraction.read((path, str(path)) for path in [good] + [slow] * 100)
        # Both workers are at work when this comes back.
        assert next(reading)[0] == good
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 20
    assert workers() <= before


def test_a_worker_imports_nothing_heavy(tmp_path):
    odt(tmp_path / "a.odt")
    command = [sys.executable, "-X", "importtime", "-m", "ctx_embed.reading.workers", "4096"]
    asked = json.dumps([str(tmp_path / "a.odt"), ""])
    done = subprocess.run(command, input=asked, capture_output=True, text=True)
    assert FIRST in json.loads(done.stdout.splitlines()[0])["text"]
    modules = set(re.findall(r"\w+$", done.stderr, re.MULTILINE))
    assert "zipfile" in modules
    assert modules.isdisjoint({"torch", "transformers", "faiss", "numpy", "sklearn", "pyarrow"})


def test_formats_without_their_library(tmp_path, in_worker, monkeypatch):
    monkeypatch.setattr("ctx_embed.reading.formats.find_spec", lambda module: None)
    assert str(in_worker(tmp_path / "a.pdf")) == ".pdf needs the extra documents"


@pytest.mark.parametrize("suffix", ["txt", "py", "html", "docx", "pdf", "jsonl", "parquet"])
def test_a_pointer_of_git_lfs_is_no_text(file, suffix):
    path = file(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 39\n", f"a.{suffix}")
    said = "a pointer of git-lfs in place of the file; fetch the file"
    assert suffix == "parquet" or reason(path).startswith(said)
    assert error(read_documents, path).startswith(f"{path}: {said}")
