"""Models that integrations share within a process."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_lock = Lock()


@cache
def _loaded(name: str) -> SentenceTransformer:
    from ctx_embed.loading import load

    return load(name)


def shared_model(name: str) -> SentenceTransformer:
    """Return the model of that name, loaded at the first call in this process."""
    if not isinstance(name, str):
        raise InputError(f"model must be a name or a path, such as 'default', got {type(name).__name__}")
    with _lock:
        return _loaded(name)
