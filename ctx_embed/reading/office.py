r"""Word, PowerPoint, OpenDocument and EPUB as Markdown, with all words in reading order, and the pages of PDF.

One walk through the XML serves the first three. Text stands in paragraphs, and paragraphs in elements of any kind:
sections, content controls, groups, text boxes. So the walk names only what it leaves out: deleted text, and second
versions of a text. Notes, comments, headers, charts and diagrams are in other files of the archive, found by reference.
"""

import ctypes
import os
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from ctx_embed.reading.decoding import Extracted, UnreadableFileError, decode, member, opened_archive, parsed, read_text
from ctx_embed.reading.formats import inside
from ctx_embed.reading.opening import opened
from ctx_embed.reading.web import scanned

# Elements are known by their names without namespaces; the names of these formats do not clash.
_UNREAD = {"del", "moveFrom", "tracked-changes", "Fallback", "pPr", "script", "binary-data"}
_PARAGRAPHS, _TABLES, _ROWS, _CELLS = {"p", "h"}, {"tbl", "table"}, {"tr", "table-row"}, {"tc", "table-cell"}
_LETTERS = {**dict.fromkeys(("tab", "ptab", "br", "cr", "s", "line-break"), " "), "noBreakHyphen": "-"}
_MARKS = {"note": "Note", "annotation": "Comment"}
# References of Word to notes: the file, and the mark.
_REFERENCES = {
    "footnoteReference": ("footnotes", "Note"),
    "endnoteReference": ("endnotes", "Note"),
    "commentReference": ("comments", "Comment"),
}
_CONTAINER = "META-INF/container.xml"
_DRAWN = {"chart", "chartEx", "diagramData"}
_ODT_MARGINS = ({"header", "header-first", "header-left"}, {"footer", "footer-first", "footer-left"})
# A PDF ends with this mark. In a download that was cut short, objects follow the last mark, if there is any.
_END, _OBJECT = b"%%EOF", b"obj"
_TAIL_BYTES = 1 << 16
# Flags of hidden annotations, and the types of fields with words: boxes to choose from, and to write into.
_HIDDEN, _FIELDS = 0x22, (4, 5, 6)


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def value_of(element: Element | None, name: str = "val") -> str:
    """Return the value of an attribute, named without its namespace; empty if there is none."""
    found = () if element is None else element.items()
    return next((value for key, value in found if key.rpartition("}")[2] == name), "")


def _child(element: Element | None, name: str) -> Element | None:
    return None if element is None else next((child for child in element if _name(child) == name), None)


def elements(element: Element, names: Iterable[str]) -> list[Element]:
    """Return all elements of these names, in order."""
    return [found for found in element.iter() if _name(found) in names]


def _nearest(parent: Element, names: set[str]) -> Iterator[Element]:
    """Yield the elements of these names that are not inside another of them."""
    for child in parent:
        if _name(child) in names:
            yield child
        elif _name(child) not in _UNREAD:
            yield from _nearest(child, names)


class _Walk(NamedTuple):
    """A walk through XML that returns the blocks of a document as Markdown."""

    # Returns the mark of a paragraph, such as ``## `` of a heading.
    mark_of: Callable[[Element], str]
    # Returns the note or file to which a reference of Word points, as blocks.
    parts: Callable[[Element], list[str]] = lambda _: []
    # Whether all text in a paragraph counts, as in OpenDocument, or only that in elements ``t``.
    everywhere: bool = False

    def blocks(self, parent: Element, mark: str = "") -> list[str]:
        """Return the blocks in an element. Each paragraph without a mark of its own gets ``mark``."""
        found: list[list[str]] = []
        for child in parent:
            for block in self._block(child, mark):
                # The items of a list are one block.
                if found and block.startswith("- ") and found[-1][0].startswith("- "):
                    found[-1].append(block)
                else:
                    found.append([block])
        return ["\n".join(blocks) for blocks in found]

    def _block(self, element: Element, mark: str = "") -> list[str]:
        name = _name(element)
        if name in _UNREAD:
            return []
        if name in _PARAGRAPHS:
            inside: list[str] = []
            text = " ".join(self._words(element, inside).split())
            return [f"{self.mark_of(element) or mark}{text}", *inside] if text else inside
        if name in _TABLES:
            rows = [
                [self.blocks(cell) for cell in _nearest(row, _CELLS)]
                for row in _nearest(element, _ROWS)
                if _child(_child(row, "trPr"), "del") is None
            ]
            if all(len(row) < 2 for row in rows):
                # Rows of one cell are a frame around text rather than a table.
                return [block for row in rows for cell in row for block in cell]
            lines = [[" ".join(" ".join(cell).split()) for cell in row] for row in rows if any(row)]
            return ["\n".join(f"| {' | '.join(line)} |" for line in lines)] if lines else []
        if name == "altChunk":
            return self.parts(element)
        if name in _MARKS:
            return _marked(_MARKS[name], self.blocks(element))
        return self.blocks(element, "- " if name == "list-item" else mark)

    def _words(self, element: Element, inside: list[str]) -> str:
        """Return the text of a paragraph; blocks in it, such as text boxes and notes, are added to ``inside``."""
        parts = [element.text or ""] if self.everywhere or _name(element) == "t" else []
        for child in element:
            name = _name(child)
            if name in _REFERENCES:
                inside += self.parts(child)
            elif name in _PARAGRAPHS or name in _TABLES or name in _MARKS:
                inside += self._block(child)
            elif name not in _UNREAD:
                parts.append(_LETTERS.get(name) or self._words(child, inside))
            if self.everywhere:
                parts.append(child.tail or "")
        return "".join(parts)


def _marked(mark: str, blocks: list[str]) -> list[str]:
    return [f"{mark}: {' '.join(blocks)}"] if blocks else []


def _heading(level: str) -> str:
    """Return the mark of a heading of this level, from 1; empty for any other value."""
    return f"{'#' * min(int(level), 6)} " if level.isdecimal() and len(level) < 9 and 0 < int(level) < 10 else ""


def _title(stated: Element | None, blocks: Iterable[str]) -> str | None:
    """Return the title that a file states, else its first heading."""
    title = "" if stated is None else " ".join("".join(stated.itertext()).split())
    headings = (line.lstrip("# ") for block in blocks for line in block.split("\n") if line.startswith("#"))
    return title or next(headings, None)


# Files of Microsoft Office


def references(archive: zipfile.ZipFile, part: str) -> list[tuple[str, str, str]]:
    """Return the kind, id and name of each file of the archive to which a part refers."""
    folder, name = posixpath.split(part)
    references = posixpath.join(folder, "_rels", f"{name}.rels")
    members = archive.NameToInfo
    if references not in members:
        return []
    found = []
    for each in parsed(archive, references):
        target = posixpath.normpath(unquote(posixpath.join("/", folder, value_of(each, "Target")))).lstrip("/")
        if target in members:
            found.append((value_of(each, "Type").rpartition("/")[2], value_of(each, "Id"), target))
    return found


def _unread(archive: zipfile.ZipFile, part: str, seen: set[str]) -> list[tuple[str, str]]:
    """Return the kind and name of each file to which a part refers and that is not in ``seen``, and add it there."""
    found = {target: kind for kind, _, target in references(archive, part) if target not in seen}
    seen.update(found)
    return [(kind, target) for target, kind in found.items()]


def _main(archive: zipfile.ZipFile, format_name: str) -> tuple[str, Element | None]:
    """Return the name of the main part and the title that the file states."""
    related = {kind: target for kind, _, target in references(archive, "")}
    if "officeDocument" not in related:
        raise UnreadableFileError(f"not {format_name} (it names no main part)")
    core = related.get("core-properties")
    return related["officeDocument"], None if core is None else _child(parsed(archive, core), "title")


def _drawn(archive: zipfile.ZipFile, related: list[tuple[str, str]], walk: _Walk) -> list[str]:
    """Return the words of charts and diagrams: titles, names of series and categories, labels."""
    found = []
    for root in (parsed(archive, target) for kind, target in related if kind in _DRAWN):
        named = [value for cache in _nearest(root, {"strCache", "lvl"}) for value in elements(cache, {"v", "pt"})]
        words = dict.fromkeys(value.text for value in named if value.text and value.text.strip())
        found += [*walk.blocks(root), ", ".join(words)]
    return list(filter(None, found))


def docx(path: str) -> Iterator[Extracted]:
    """Yield a Word document with its headers, text boxes, notes and comments, without what was deleted."""
    with opened_archive(path, "Word") as archive:
        main, title = _main(archive, "Word")
        related = _unread(archive, main, set())
        # Each file of another format is read once, whatever refers to it.
        chunks = {target: identifier for kind, identifier, target in references(archive, main) if kind == "aFChunk"}
        chunks = {identifier: target for target, identifier in chunks.items()}
        parts: dict[str, list[Element]] = {}
        for kind, target in related:
            if kind in ("styles", "header", "footer", "footnotes", "endnotes", "comments"):
                parts.setdefault(kind, []).append(parsed(archive, target))
        # The mark of each style of paragraphs, which may come from the style that it is based on.
        marks, styles = {}, {}
        for style in parts["styles"][0] if "styles" in parts else ():
            if _name(style) == "style":
                name = value_of(_child(style, "name")).lower()
                mark = _heading("1" if name == "title" else name.removeprefix("heading "))
                base = value_of(_child(style, "basedOn"))
                styles[value_of(style, "styleId")] = (mark or _mark(_child(style, "pPr")), base)
        for identifier, (mark, base) in styles.items():
            steps = 19
            while not mark and base in styles and (steps := steps - 1):
                mark, base = styles[base]
            marks[identifier] = mark
        notes_of = [(kind, root) for kind in ("footnotes", "endnotes", "comments") for root in parts.get(kind, [])]
        waiting = {(kind, value_of(note, "id")): note for kind, root in notes_of for note in root}

        def mark_of(paragraph: Element) -> str:
            properties = _child(paragraph, "pPr")
            return _mark(properties) or marks.get(value_of(_child(properties, "pStyle")), "")

        def parts_of(reference: Element) -> list[str]:
            if _name(reference) == "altChunk":
                chunk = chunks.pop(value_of(reference, "id"), None)
                return [] if chunk is None else [found.text for found in inside(path, chunk, member(archive, chunk))]
            kind, mark = _REFERENCES[_name(reference)]
            # Each note is read once, whatever refers to it.
            note = waiting.pop((kind, value_of(reference, "id")), None)
            return [] if note is None else _marked(mark, walk.blocks(note))

        walk = _Walk(mark_of, parts_of)
        body = walk.blocks(parsed(archive, main))
        margins = [
            list(dict.fromkeys(block for root in parts.get(kind, []) for block in walk.blocks(root)))
            for kind in ("header", "footer")
        ]
        text = "\n\n".join([*margins[0], *body, *_drawn(archive, related, walk), *margins[1]])
    yield Extracted(text, "markdown", _title(title, body))


def _mark(properties: Element | None) -> str:
    """Return the mark that a paragraph's or style's own properties give it."""
    level = value_of(_child(properties, "outlineLvl"))
    if level.isdecimal() and len(level) < 9 and int(level) < 9:
        return _heading(str(int(level) + 1))
    return "- " if _child(properties, "numPr") is not None else ""


def pptx(path: str) -> Iterator[Extracted]:
    """Yield the slides of a presentation: titles, texts, groups, tables, charts, diagrams, notes and comments."""
    with opened_archive(path, "PowerPoint") as archive:
        main, title = _main(archive, "PowerPoint")
        targets = {identifier: target for kind, identifier, target in references(archive, main) if kind == "slide"}
        order = [
            next((value for key, value in each.items() if key.endswith("}id")), "")
            for each in elements(parsed(archive, main), {"sldId"})
        ]
        slides = []
        seen: set[str] = set()
        for part in dict.fromkeys(targets[name] for name in order if name in targets):
            blocks = []
            walk = _Walk(lambda _: "")
            root, related = parsed(archive, part), _unread(archive, part, seen)
            for heading in _titles(root):
                if text := " ".join(walk.blocks(heading)):
                    blocks.append(f"# {text}")
                heading.clear()
            blocks += walk.blocks(root)
            blocks += _drawn(archive, related, walk)
            for kind, target in related:
                if kind == "notesSlide":
                    notes = parsed(archive, target)
                    _titles(notes)
                    blocks += walk.blocks(notes)
                elif kind == "comments":
                    for comment in parsed(archive, target):
                        said = walk.blocks(comment) or [found.text or "" for found in elements(comment, {"text"})]
                        blocks += _marked("Comment", said)
            slides.append("\n\n".join(blocks))
    yield Extracted("\f".join(slides), "markdown", _title(title, slides), pages=True)


def _titles(root: Element) -> list[Element]:
    """Return the titles of a slide, after removing the text of the slide number."""
    kinds = [
        (shape, next((value_of(found, "type") for found in elements(shape, {"ph"})), ""))
        for shape in _nearest(root, {"sp"})
    ]
    for shape, kind in kinds:
        if kind == "sldNum":
            shape.clear()
    return [shape for shape, kind in kinds if kind in ("title", "ctrTitle")]


# OpenDocument


def odt(path: str) -> Iterator[Extracted]:
    """Yield an OpenDocument text with its headers, frames, notes and comments, without what was deleted."""
    with opened_archive(path, "OpenDocument") as archive:
        members = archive.namelist()
        content = parsed(archive, "content.xml")
        bodies = [text for body in elements(content, {"body"}) for text in body if _name(text) == "text"]
        titles = elements(parsed(archive, "meta.xml"), {"title"}) if "meta.xml" in members else []
        styles = parsed(archive, "styles.xml") if "styles.xml" in members else Element("styles")
    if not bodies:
        raise UnreadableFileError("not an OpenDocument text")
    walk = _Walk(
        lambda paragraph: _heading(value_of(paragraph, "outline-level") or "1") if _name(paragraph) == "h" else "",
        everywhere=True,
    )
    body = walk.blocks(bodies[0])
    header, footer = (
        list(dict.fromkeys(block for part in _nearest(styles, names) for block in walk.blocks(part)))
        for names in _ODT_MARGINS
    )
    title = _title(titles[0] if titles else None, body)
    yield Extracted("\n\n".join([*header, *body, *footer]), "markdown", title)


# EPUB


def epub(path: str) -> Iterator[Extracted]:
    """Yield the chapters of an EPUB book, in reading order, as one Markdown text."""
    with opened_archive(path, "EPUB") as book:
        root = next((value_of(found, "full-path") for found in elements(parsed(book, _CONTAINER), {"rootfile"})), "")
        if not root:
            raise UnreadableFileError("not EPUB (no root file)")
        package = parsed(book, root)
        manifest, spine, metadata = (_child(package, name) for name in ("manifest", "spine", "metadata"))
        if manifest is None or spine is None:
            raise UnreadableFileError("not EPUB (no list of chapters)")
        places = {value_of(item, "id"): value_of(item, "href") for item in manifest}
        chapters = [places.get(value_of(item, "idref"), "") for item in spine]
        named = [posixpath.join(posixpath.dirname(root), unquote(name)) for name in chapters if name]
        there = [name for name in dict.fromkeys(map(posixpath.normpath, named)) if name in book.NameToInfo]
        texts = [scanned(decode(member(book, name))).markdown() for name in there]
        title = _child(metadata, "title")
        stated = "" if title is None else unescape(title.text or "")
    yield Extracted("\n\n".join(texts), "markdown", title=" ".join(stated.split()) or None)


# PDF


def pdf(path: str) -> Iterator[Extracted]:
    """Yield the pages of a PDF; scanned pages have no text."""
    import pypdfium2

    try:
        with opened(path) as file:
            document = pypdfium2.PdfDocument(file)
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read()
            if tail.rfind(_END) <= tail.rfind(_OBJECT):
                raise UnreadableFileError("incomplete: its end is missing, as if a download was cut short")
            document.init_forms()
            texts = [_page(document, number) for number in range(len(document))]
            # PDFium writes U+0002 for a hyphen at a line's end, and the line end with it.
            texts = [re.sub("[\x02\ufffe]", "-\n", text).replace("\r\n", "\n") for text in texts]
            pages = [text.replace("\f", "\n").strip() for text in texts]
            title = document.get_metadata_value("Title").strip()
            document.close()
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise UnreadableFileError("password-protected") from None
        raise UnreadableFileError(f"not PDF, or broken ({str(error).rstrip('.')})") from None
    if not any(pages):
        raise UnreadableFileError("no text, perhaps scanned pages")
    yield Extracted("\f".join(pages), title=title or None, pages=True)


def _page(document: Any, number: int) -> str:
    """Return the text of a page of a PDF, with what its form fields and notes say."""
    from pypdfium2 import raw

    page = document[number]
    text: str = page.get_textpage().get_text_bounded()
    said = []
    for place in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, place)
        kind, is_hidden = raw.FPDFAnnot_GetSubtype(annotation), raw.FPDFAnnot_GetFlags(annotation) & _HIDDEN
        if kind == raw.FPDF_ANNOT_WIDGET and document.formenv and not is_hidden:
            if raw.FPDFAnnot_GetFormFieldType(document.formenv, annotation) in _FIELDS:
                said.append(_wide(raw.FPDFAnnot_GetFormFieldValue, document.formenv, annotation))
        elif kind not in (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP) and not is_hidden:
            contents = _wide(raw.FPDFAnnot_GetStringValue, annotation, b"Contents")
            said.append(contents if kind == raw.FPDF_ANNOT_FREETEXT or not contents else f"Comment: {contents}")
    if said:
        # Drawn into the page, fields stand beside their names.
        raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
        drawn = document[number].get_textpage().get_text_bounded()
        text = drawn if Counter(text.split()) <= Counter(drawn.split()) else text
    shown = " ".join(text.split())
    unseen = [words for words in dict.fromkeys(said) if " ".join(words.split()) not in shown]
    return "\n\n".join([text, *unseen])


def _wide(call: Callable[..., int], *arguments: Any) -> str:
    """Return the text that a function of PDFium writes into a buffer, as UTF-16 with NUL at its end."""
    buffer = bytearray(call(*arguments, None, 0))
    if len(buffer) < 2:
        return ""
    array = (ctypes.c_ushort * (len(buffer) // 2)).from_buffer(buffer)
    call(*arguments, array, len(buffer))
    return buffer[:-2].decode("utf-16-le", "replace")


# RTF


def rtf(path: str) -> Iterator[Extracted]:
    """Yield the text of RTF, with its notes, without what was deleted."""
    from striprtf.striprtf import rtf_to_text

    content = read_text(path, "latin-1")
    if not content.startswith("{\\rtf"):
        raise UnreadableFileError("not RTF")
    title = re.search(r"\{\\title ([^{}\\]*)\}", content)
    # Notes and comments become paragraphs. What follows \* in a group is left out.
    content = re.sub(r"(?:\\\*)?\\(?:footnote|annotation)(?![a-z0-9]) ?", r"\\par Note: ", content)
    content = re.sub(r"\\deleted(?![a-z0-9])", r"\\*", content)
    # striprtf looks for the end of each font up to the end of its line. Before paragraphs, new lines say nothing.
    head, mark, body = content.partition("\\par")
    content = re.sub(r"(?<!\\)(?=\\f\d)", "\n", head) + mark + body
    text = re.sub(r"\n\s*", "\n\n", rtf_to_text(content, errors="replace"))
    yield Extracted(text, title=title and title[1].strip())
