"""A small file of each format, written with the writing side of the libraries or by hand; each says the same."""

import json
import zipfile
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from docx import Document
from pptx import Presentation
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

TITLE = "Harbour report"
FIRST = "The ferry was late because of fog."
SECOND = "Prices of fish rose again in spring."


def html(path: Path) -> None:
    menu = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("Home", "About", "Contact"))
    path.write_text(
        f"<html><head><title>{TITLE}</title><style>p {{color: red}}</style></head><body><nav><ul>{menu}</ul></nav>"
        f"<main><article><h1>{TITLE}</h1><p>{FIRST} {FIRST}</p><h2>Markets</h2><p>{SECOND} {SECOND}</p></article>"
        "</main><footer>All rights reserved.</footer><script>alert(1)</script></body></html>"
    )


def dictionary(**items: Any) -> DictionaryObject:
    """Return a dictionary of PDF; plain strings are names."""
    names = {key: NameObject(f"/{value}") for key, value in items.items() if type(value) is str}
    return DictionaryObject({NameObject(f"/{key}"): value for key, value in (items | names).items()})


def pdf(
    path: Path,
    pages: tuple[str, ...] = (FIRST, SECOND),
    password: str | None = None,
    algorithm: str = "RC4-128",
    title: str = TITLE,
) -> None:
    writer = PdfWriter()
    font = dictionary(Type="Font", Subtype="Type1", BaseFont="Helvetica")
    for text in pages:
        drawn = DecodedStreamObject()
        drawn.set_data(f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode())
        page = writer.add_blank_page(612, 792)
        page.update(dictionary(Resources=dictionary(Font=dictionary(F1=font)), Contents=writer._add_object(drawn)))
    writer.add_metadata({"/Title": title})
    if password is not None:
        writer.encrypt(password, owner_password="owner", algorithm=algorithm)
    writer.write(path)


def docx(path: Path) -> None:
    document = Document()
    document.add_heading(TITLE, 1)
    document.add_paragraph(FIRST)
    document.add_heading("Markets", 2)
    document.add_paragraph(SECOND)
    table = document.add_table(1, 2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "cod", "3 euros"
    document.save(str(path))


def pptx(path: Path) -> None:
    presentation = Presentation()
    presentation.core_properties.title = TITLE
    for title, text in ((TITLE, FIRST), ("Markets", SECOND)):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
    slide.notes_slide.notes_text_frame.text = "Thank the port."
    presentation.save(str(path))


def odt(path: Path) -> None:
    names = ["office:1.0", "text:1.0", "table:1.0"]
    spaces = " ".join(f'xmlns:{name.split(":")[0]}="urn:oasis:names:tc:opendocument:xmlns:{name}"' for name in names)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr(
            "content.xml",
            f"<office:document-content {spaces}><office:body><office:text>"
            f'<text:h text:outline-level="1">{TITLE}</text:h><text:p>{FIRST}</text:p>'
            f'<text:h text:outline-level="2">Markets</text:h><text:section><text:p>Prices<text:s/>of '
            f"<text:span>fish</text:span> rose again in spring.</text:p></text:section>"
            f"<text:list><text:list-item><text:p>cod</text:p></text:list-item></text:list>"
            f"<table:table><table:table-row><table:table-cell><text:p>cod</text:p></table:table-cell>"
            f"<table:table-cell><text:p>3 euros</text:p></table:table-cell></table:table-row></table:table>"
            f"</office:text></office:body></office:document-content>",
        )


def epub(path: Path) -> None:
    container = "urn:oasis:names:tc:opendocument:xmlns:container"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr(
            "META-INF/container.xml",
            f'<container xmlns="{container}"><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>',
        )
        archive.writestr(
            "OPS/book.opf",
            f'<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
            f"<dc:title>{TITLE}</dc:title></metadata><manifest><item id='b' href='two.xhtml'/>"
            f"<item id='a' href='chapter%20one.xhtml'/></manifest><spine><itemref idref='a'/><itemref idref='b'/>"
            "</spine></package>",
        )
        page = "<html xmlns='http://www.w3.org/1999/xhtml'><head><title>x</title></head><body>{}</body></html>"
        archive.writestr("OPS/chapter one.xhtml", page.format(f"<h1>{TITLE}</h1><p>{FIRST}</p>"))
        archive.writestr("OPS/two.xhtml", page.format(f"<h2>Markets</h2><p>{SECOND}</p><pre>a\n  b</pre>"))


def ipynb(path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": [f"# {TITLE}\n", "\n", FIRST]},
        {"cell_type": "code", "metadata": {}, "source": "x = 1", "outputs": [{"text": "secret"}], "execution_count": 1},
        {"cell_type": "markdown", "metadata": {}, "source": f"## Markets\n\n{SECOND}"},
    ]
    kernel = {"kernelspec": {"language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))


def eml(path: Path) -> None:
    message = EmailMessage()
    message["Subject"], message["From"], message["Date"] = TITLE, "Zoë <zoe@b.org>", "Mon, 01 Jun 2026 10:00:00 +0200"
    message.set_content(f"{FIRST}\n\n## Markets\n\n{SECOND}\n")
    message.add_alternative("<p>secret</p>", subtype="html")
    message.add_attachment(f"<p>{FIRST}</p><h2>Catch</h2>", subtype="html", filename="catch.html")
    message.add_attachment(bytes(range(256)) * 9, maintype="image", subtype="png", filename="a.png")
    path.write_bytes(bytes(message))


def mbox(path: Path) -> None:
    eml(path)
    path.write_bytes(b"From a@b.org Mon Jun  1 10:00:00 2026\n" + path.read_bytes())


def rtf(path: Path) -> None:
    info, table = rf"{{\info{{\title {TITLE}}}}}", r"\trowd\cellx1000\cellx2000 cod\cell 3 euros\cell\row"
    text = rf"{FIRST}{{\footnote caf\'e9 \u28450?}}\par {{\b0\deleted secret}}{SECOND}\par {table}"
    path.write_text(rf"{{\rtf1\ansi\ansicpg1252{{\fonttbl{{\f0 <i>;}}}}{info}\f0 {text}}}")


def zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes/a.md", f"# {TITLE}\n\n{FIRST}\n\n## Markets\n\n{SECOND}\n")
        archive.writestr("__MACOSX/notes/._a.md", "secret")
        archive.writestr("icon.png", bytes(range(256)))


_ALL = (html, pdf, docx, pptx, odt, epub, ipynb, eml, mbox, rtf, zip)
WRITERS = {function.__name__: function for function in _ALL}
