"""Results stored one by one, so that an interrupted run resumes: the embeddings of each encoder, and the scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ctx_embed import __version__
from ctx_embed.encoders import Encoder, embed
from ctx_embed.files import replaced_file
from ctx_embed.fingerprint import identity

# Increase this when a change of the code changes scores, so that stored ones are computed again.
FORMAT = 3


def stored_score(
    folder: Path | None, key: tuple[Any, ...] | None, make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the JSON value stored under everything that determines it, else call ``make`` and store its result.

    Nothing is stored without a folder or a key.
    """
    if folder is None or key is None:
        return make()
    path = folder / f"{identity(__version__, FORMAT, *key)[:40]}.json"
    # A file that is missing or damaged is written again.
    with suppress(OSError, ValueError):
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return stored
    made = make()
    with replaced_file(path) as beside:
        beside.write_text(json.dumps(made), encoding="utf-8")
    return made


class EmbeddingCache:
    """The embeddings of one encoder: it embeds each text once, and later runs read them from disk.

    An encoder with a key has them in ``FOLDER/<its key>/<hash of the texts>.npz``; without a folder none are stored.
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
            path = self.folder / f"{digest.hexdigest()[:32]}.npz"
            with suppress(OSError, ValueError, LookupError, EOFError, BadZipFile), path.open("rb") as file:
                return np.load(file)["embeddings"]
        unseen = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if unseen:
            self._rows.update(zip(unseen, embed(self.encoder, unseen), strict=True))
        embeddings = np.stack([self._rows[text] for text in texts])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced_file(path) as beside, beside.open("wb") as file:
                np.savez(file, embeddings=embeddings)
        return embeddings
