"""E-mail messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any

from ctx_embed.documents.decoding import decode, read_bytes
from ctx_embed.documents.extracted import Extracted, UnreadableFileError
from ctx_embed.documents.formats.web import text_of

_LONGEST_HEADER = 2000
# The standard library compares each line with the boundaries of all enclosing parts, so nesting must be limited.
_MOST_MULTIPARTS = 100
_MULTIPART = re.compile(rb"multipart/", re.IGNORECASE)


def message(path: str) -> Iterator[Extracted]:
    """Yield the subject and text of a message."""
    raw = read_bytes(path)
    if next(islice(_MULTIPART.finditer(raw), _MOST_MULTIPARTS, None), None):
        raise UnreadableFileError(f"more than {_MOST_MULTIPARTS} multiparts")
    mail = message_from_bytes(raw, policy=default)
    if not mail.keys():
        raise UnreadableFileError("not an e-mail")
    subject, sender, date = (_header(mail, name) for name in ("subject", "from", "date"))
    metadata: dict[str, Any] = {"from": sender} if sender else {}
    try:
        metadata["date"] = parsedate_to_datetime(date).isoformat() if date else None
    except ValueError:
        metadata["date"] = None
    metadata = {name: value for name, value in metadata.items() if value}
    text = "\n\n".join(filter(None, [f"# {subject}" if subject else "", _body(mail)]))
    yield Extracted(text, "markdown", title=subject or None, metadata=metadata)


def _header(mail: EmailMessage, name: str) -> str:
    try:
        raw = next((value for key, value in mail.raw_items() if key.lower() == name), "")
        # The standard library takes quadratic time to parse long headers.
        return " ".join(str(default.header_fetch_parse(name, str(raw)[:_LONGEST_HEADER])).split())
    except Exception:
        # The standard library raises many kinds of errors for malformed headers.
        return ""


def _body(mail: EmailMessage) -> str:
    try:
        part = mail.get_body(preferencelist=("plain", "html"))
    except Exception:
        part = None
    if part is None:
        return ""
    raw = part.get_payload(decode=True)
    if not isinstance(raw, bytes):
        return ""
    try:
        text = raw.decode(part.get_content_charset("utf-8"))
    except (LookupError, UnicodeDecodeError):
        text = decode(raw)
    text = text.replace("\r\n", "\n")
    return text_of(text) if part.get_content_type() == "text/html" else text.strip()
