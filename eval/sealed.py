"""Files with a checksum: the sha256 of the content follows it on a separate line, so that damage is detected."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ctx_embed.files import replaced_file


def _seal(content: bytes) -> bytes:
    return b"\n" + hashlib.sha256(content).hexdigest().encode()


def write_sealed(path: Path, content: bytes) -> None:
    """Write ``content`` and its checksum; raises as :func:`ctx_embed.files.replaced_file`."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(content + _seal(content))


def read_sealed(path: Path) -> bytes | None:
    """Return the content; None if the file is missing or damaged."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    length = max(0, len(sealed) - len(_seal(b"")))
    return sealed[:length] if sealed[length:] == _seal(sealed[:length]) else None
