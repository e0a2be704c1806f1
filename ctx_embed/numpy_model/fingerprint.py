"""The identity of a saved model without torch: the hash of :func:`ctx_embed.fingerprint.fingerprint`, cached."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file
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

    def tensors() -> Iterator[tuple[str, str, tuple[int, ...], Iterable[Any]]]:
        for name in filter(SCALES.__ne__, saved.tensors.names()):
            stored, dtype = saved.tensors.stored(name), "torch.float32"
            blocks: Iterable[Any]
            if name == TABLE:
                starts = range(0, table.shape[0], BLOCK_ROWS)
                blocks = (table.rows(slice(start, start + BLOCK_ROWS)).data for start in starts)
            elif name == PHRASES:
                dtype, blocks = "torch.int32", [np.ascontiguousarray(stored, dtype=np.int32).data]
            else:
                blocks = [np.ascontiguousarray(saved.tensors.floats(name)).data]
            yield f"{saved.name}.{name}", dtype, stored.shape, blocks

    normalize = (("Normalize", config, None) for config in saved.normalize)
    return digest([("Contextualizer", reads_normalised(saved.config), saved.tokenizer), *normalize], tensors())


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
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ctx-embed" / "fingerprints"


def fingerprint(saved: SavedContextualizer) -> str:
    """Return the fingerprint of a saved model, computed again only if one of its files has changed.

    The default model has its fingerprint in a file beside it; any other is read from the user's cache, or computed and
    stored there. A folder from elsewhere is not asked what it is, so that no model can pose as another.
    """
    key = files_key(saved)
    try:
        cached = cache_folder() / f"{key[:32]}.json"
    except RuntimeError:  # without a home folder there is no cache
        return compute(saved)
    known = None
    with suppress(OSError, ValueError):
        file = DEFAULT_MODEL / FILE if saved.folder == DEFAULT_MODEL else cached
        known = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(known, dict) and known.get("key") == key and len(str(known.get("fingerprint"))) == 64:
        return str(known["fingerprint"])
    found = compute(saved)
    # If writing fails, the next process computes it again.
    with suppress(OSError, InputError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(cached) as beside:
            beside.write_text(json.dumps({"key": key, "fingerprint": found}) + "\n", encoding="utf-8")
    return found
