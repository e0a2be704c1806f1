"""Files that hold others: mail with attachments, mailboxes, and zip archives."""

import email
import hashlib
import mimetypes
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from email.header import decode_header, make_header
from email.message import Message
from email.policy import Compat32
from email.utils import parsedate_to_datetime
from typing import Any

from ctx_embed.reading.decoding import Extracted, UnreadableFileError, decode, member, opened_archive, read_bytes
from ctx_embed.reading.formats import inside
from ctx_embed.reading.web import scanned
from ctx_embed.texts import composed

# Maximum number of files that are read from an archive.
_MOST_MEMBERS = 10_000
# The line above each message of a mailbox.
_FROM = re.compile(rb"(?:\A|(?<=\n)\r?\n)From [^\n]*\n")


class _Policy(Compat32):
    """Reads the beginnings of headers: Python takes quadratic time for long ones, above all for their parameters."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        """Return the name and the value of a header."""
        name, value = super().header_source_parse(sourcelines)
        return name, value[: 2_000 if name.lower().startswith("content-") else 10_000]


def mail(path: str) -> Iterator[Extracted]:
    """Yield a message with the texts of its attachments; subject, sender and date are metadata."""
    yield _message(path, read_bytes(path))


def mailbox(path: str) -> Iterator[Extracted]:
    """Yield the messages of a mailbox, each by the id that it states, else by a hash of its content."""
    first, *messages = _FROM.split(read_bytes(path))
    if first.strip():
        raise UnreadableFileError("not a mailbox (it does not begin with From)")
    seen: Counter[str] = Counter()
    for content in messages:
        found = _message(path, re.sub(rb"(?m)^>(>*From )", rb"\1", content))
        name = "".join(found.metadata.get("message_id", "").split()).strip("<>")
        name = name or hashlib.blake2b(content, digest_size=8).hexdigest()
        seen[name] += 1
        yield replace(found, part=f":{name}{f'-{seen[name]}' if seen[name] > 1 else ''}")


def archive(path: str) -> Iterator[Extracted]:
    """Yield the texts of the files of a zip archive, as of those of a folder; hidden ones are left out."""
    with opened_archive(path, "zip") as found:
        names = [info.filename for info in found.infolist() if not info.is_dir()]
        if len(names) > _MOST_MEMBERS:
            raise UnreadableFileError(f"more than {_MOST_MEMBERS:,} files")
        is_empty = True
        for name in sorted(set(names)):
            if not any(part.startswith((".", "~$", "__MACOSX")) for part in name.split("/")):
                for text in inside(path, name, member(found, name)):
                    yield replace(text, part=f"/{composed(name)}{text.part}")
                    is_empty = False
    if is_empty:
        raise UnreadableFileError("holds no file that can be read")


def _message(path: str, content: bytes) -> Extracted:
    message = email.message_from_bytes(content, policy=_Policy())
    if not message.keys():
        raise UnreadableFileError("not a message (it has no headers)")
    names = {"Subject": "subject", "From": "from", "To": "to", "Date": "date", "Message-ID": "message_id"}
    headers = {name: " ".join(_header(message[field]).split()) for field, name in names.items() if message[field]}
    with suppress(ValueError, TypeError, OverflowError):
        headers["date"] = parsedate_to_datetime(headers.get("date", "")).isoformat()
    texts = list(_texts(path, message))
    kind = "markdown" if any(text.kind == "markdown" for text in texts) else "prose"
    text = "\n\n".join(text.text.strip("\n") for text in texts) or headers.get("subject", "")
    return Extracted(text, kind, headers.get("subject"), metadata=headers)


def _header(value: Any) -> str:
    """Return a field of a header, decoded if it can be."""
    with suppress(ValueError, LookupError):
        return str(make_header(decode_header(str(value))))
    return str(value)


def _texts(path: str, part: Message) -> Iterator[Extracted]:
    """Yield the texts of a part of a message: of several forms of one text the plain one."""
    payload: Any = part.get_payload()
    kind, name = part.get_content_type(), part.get_filename()
    if part.is_multipart():
        if kind == "multipart/alternative":
            plain = [each for each in payload if each.get_content_type() == "text/plain" and each.get_payload().strip()]
            payload = plain[:1] or payload[-1:]
        elif kind == "message/rfc822":
            yield Extracted(_header(payload[0]["Subject"] or ""))
        for each in payload:
            yield from _texts(path, each)
        return
    raw: Any = part.get_payload(decode=True) or b""
    if name is None and kind in ("text/plain", "text/html"):
        try:
            text = decode(raw, part.get_content_charset() if raw else None)
        except (UnreadableFileError, LookupError):
            text = decode(raw)
        yield Extracted(scanned(text).markdown(), "markdown") if kind == "text/html" else Extracted(text)
    elif kind != "text/css":
        yield from inside(path, _header(name) if name else f"attachment{mimetypes.guess_extension(kind) or ''}", raw)
