"""Results stored one by one, so that an interrupted run resumes: the embeddings of each encoder, and the scores."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed import __version__
from ctx_embed.encoders import Encoder, embed
from ctx_embed.files import replaced_file
from ctx_embed.fingerprint import identity

# Increase this when a change of the code changes scores, so that stored ones are computed again.
FORMAT = 3


def _seal(content: bytes) -> bytes:
    return b"\n" + hashlib.sha256(content).hexdigest().encode()


def write_sealed(path: Path, content: bytes) -> None:
    """Write ``content`` and its checksum; errors are those of :func:`ctx_embed.files.replaced_file`."""
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


def stored_score(
    folder: Path | None, key: tuple[Any, ...] | None, make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the JSON value stored under everything that determines it, else call ``make`` and store its result.

    Nothing is stored without a folder or a key.
    """
    if folder is None or key is None:
        return make()
    path = folder / f"{identity(__version__, FORMAT, *key)[:40]}.json"
    if (content := read_sealed(path)) is not None:
        stored: dict[str, Any] = json.loads(content)
        return stored
    made = make()
    write_sealed(path, json.dumps(made).encode())
    return made


class EmbeddingCache:
    """The embeddings of one encoder: it embeds each text once, and later runs read them from disk.

    An encoder with a key has them in ``FOLDER/<its key>/<hash of the texts>.npy``; without a folder none are stored.
    """

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self.encoder = encoder
        self.folder = folder / encoder.key[:32] if folder is not None and encoder.key else None
        self._rows: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return the embeddings of ``texts``, (n, d), see :func:`embed`; sparse if the encoder is fitted on them."""
        if self.encoder.fit is not None:
            rows = np.arange(len(texts))
            return self.encoder.fit(texts)(rows, rows)[1]
        path = None
        if self.folder is not None:
            digest = hashlib.sha256()
            for text in texts:
                data = text.encode("utf-8", "surrogatepass")
                digest.update(f"{len(data)} ".encode() + data)
            path = self.folder / f"{digest.hexdigest()[:32]}.npy"
            if (content := read_sealed(path)) is not None:
                return np.load(io.BytesIO(content))
        unseen = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if unseen:
            self._rows.update(zip(unseen, embed(self.encoder, unseen), strict=True))
        embeddings = np.stack([self._rows[text] for text in texts])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = io.BytesIO()
            np.save(stream, embeddings)
            write_sealed(path, stream.getvalue())
        return embeddings
