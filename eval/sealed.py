"""Files that tell when they are damaged: the sha256 of the content stands behind it, on a line of its own."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ctx_embed.files import replaced_file


def _seal(content: bytes) -> bytes:
    return b"\n" + hashlib.sha256(content).hexdigest().encode()


def write_sealed(path: Path, content: bytes) -> None:
    """Write ``content`` and its seal; errors as :func:`ctx_embed.files.replaced_file`."""
    with replaced_file(path) as beside:
        beside.write_bytes(content + _seal(content))


def read_sealed(path: Path) -> bytes | None:
    """The content; None where the file is absent or damaged."""
    try:
        sealed = path.read_bytes()
    except OSError:
        return None
    length = max(0, len(sealed) - len(_seal(b"")))
    return sealed[:length] if sealed[length:] == _seal(sealed[:length]) else None
