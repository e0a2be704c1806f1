"""The identity of a saved model without torch: the hash of :func:`ctx_embed.fingerprint.fingerprint`, cached."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ctx_embed.fingerprint import digest, reads_normalised
from ctx_embed.numpy_model.saved import DEFAULT_MODEL, PHRASES, SCALES, TABLE, SavedContextualizer, TokenTable
from ctx_embed.text import normalisation

# Rows of the table that are hashed at a time: 5 MB of 320 float32.
BLOCK_ROWS = 4096
READ_BYTES = 1 << 18
FILE = "fingerprint.json"


def compute(saved: SavedContextualizer) -> str:
    """Return the fingerprint of the model that torch loads in float32, 64 hexadecimal digits."""
    table = TokenTable.read(saved.tensors)

    def blocks(name: str) -> Iterator[Any]:
        if name == TABLE:
            for start in range(0, table.shape[0], BLOCK_ROWS):
                yield table.rows(slice(start, start + BLOCK_ROWS)).data
        elif name == PHRASES:
            yield np.ascontiguousarray(saved.tensors.stored(name), dtype=np.int32).data
        else:
            yield np.ascontiguousarray(saved.tensors.floats(name)).data

    return digest(
        [
            ("Contextualizer", reads_normalised(saved.config), saved.tokenizer),
            *(("Normalize", config, None) for config in saved.normalize),
        ],
        (
            (
                f"{saved.name}.{name}",
                "torch.int32" if name == PHRASES else "torch.float32",
                saved.tensors.stored(name).shape,
                blocks(name),
            )
            for name in saved.tensors.names()
            if name != SCALES
        ),
    )


def files_key(saved: SavedContextualizer) -> str:
    """Return the sha256 over the sha256 of each file that decides a fingerprint.

    The key includes the version of tokenizers, since it decides how a tokenizer is written and thus what is hashed, and
    that of the normalisation of texts.
    """
    versions = f"tokenizers {tokenizers.__version__} normalisation {normalisation.VERSION}\n"
    digest = hashlib.sha256(versions.encode())
    for path in saved.files:
        of_file = hashlib.sha256()
        # Read without a memory map, whose pages would count as memory of the process.
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                of_file.update(block)
        digest.update(f"{path.relative_to(saved.folder).as_posix()} {of_file.hexdigest()}\n".encode())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Return the folder where fingerprints of this user's models are stored."""
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA")
    else:
        home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ctx-embed" / "fingerprints"


def fingerprint(saved: SavedContextualizer) -> str:
    """Return the fingerprint of a saved model, computed again only if one of its files has changed.

    The default model has its fingerprint in a file beside it; any other is read from the user's cache, or computed and
    stored there. A folder from elsewhere is not asked what it is, so that no model can pose as another.
    """
    key = files_key(saved)
    # Without a home folder there is no cache.
    with suppress(RuntimeError):
        cached = cache_folder() / f"{key[:32]}.json"
        known = _read(DEFAULT_MODEL / FILE if saved.folder == DEFAULT_MODEL else cached)
        if known.get("key") == key and len(str(known.get("fingerprint"))) == 64:
            return str(known["fingerprint"])
        found = compute(saved)
        _write(cached, {"key": key, "fingerprint": found})
        return found
    return compute(saved)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all; if writing fails, the next process computes the content again."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(json.dumps(content) + "\n", encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
