r"""Documents with pages: PDF and PowerPoint. Form feeds (``\f``) separate pages or slides."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.formats.zipped import opened


def _page(text: str) -> str:
    return text.replace("\f", "\n").strip()


def pdf(path: str) -> Iterator[Extracted]:
    """Yield the pages of a PDF; scanned pages have no text."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(path)
        # Many PDFs are encrypted with an empty password, so that anybody may read them.
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableFileError("password-protected")
        pages = [_page(page.extract_text()) for page in reader.pages]
        title = str(reader.metadata.title or "").strip() if reader.metadata else ""
    except DependencyError:
        raise UnreadableFileError("password-protected") from None
    except PyPdfError as error:
        raise UnreadableFileError(f"not PDF, or broken ({error})") from None
    if not any(pages):
        raise UnreadableFileError("no text, perhaps scanned pages")
    yield Extracted("\f".join(pages), title=title or None, pages=True)


def pptx(path: str) -> Iterator[Extracted]:
    """Yield the slides of a presentation: titles, texts, tables and notes."""
    from pptx import Presentation
    from pptx.exc import PackageNotFoundError

    with opened(path, "PowerPoint"):
        pass
    try:
        presentation = Presentation(path)
        slides = [_page("\n\n".join(_slide(slide))) for slide in presentation.slides]
        title = presentation.core_properties.title.strip()
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise UnreadableFileError(f"not PowerPoint ({error})") from None
    yield Extracted("\f".join(slides), "markdown", title=title or None, pages=True)


def _slide(slide: object) -> Iterator[str]:
    shapes = slide.shapes  # type: ignore[attr-defined]
    heading = shapes.title
    if heading is not None and heading.text_frame.text.strip():
        yield f"# {' '.join(heading.text_frame.text.split())}"
    for shape in shapes:
        if shape.has_text_frame and shape != heading:
            yield shape.text_frame.text.strip()
        elif shape.has_table:
            yield "\n".join(f"| {' | '.join(cell.text for cell in row.cells)} |" for row in shape.table.rows)
    if slide.has_notes_slide:  # type: ignore[attr-defined]
        yield slide.notes_slide.notes_text_frame.text.strip()  # type: ignore[attr-defined]
