r"""PDF: pages, separated by form feeds (``\f``)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ctx_embed.documents.decoding import opened
from ctx_embed.documents.extracted import Extracted, UnreadableFileError

# A PDF ends with a mark; a download that was cut short has at most earlier ones, before further objects.
_END, _OBJECT = b"%%EOF", b"obj"
_TAIL_BYTES = 1 << 16


def pdf(path: str) -> Iterator[Extracted]:
    """Yield the pages of a PDF; scanned pages have no text."""
    import pypdfium2

    try:
        with opened(path) as file:
            document = pypdfium2.PdfDocument(file)
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = file.read()
            if tail.rfind(_END) <= tail.rfind(_OBJECT):
                raise UnreadableFileError("incomplete: its end is missing, as if a download was cut short")
            texts = [page.get_textpage().get_text_bounded() for page in document]
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
