"""Models that integrations share within a process."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from ctx_embed.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_lock = Lock()
_models: dict[str, SentenceTransformer] = {}


def shared_model(name: str) -> SentenceTransformer:
    """Return the model of that name, loaded at the first call in this process."""
    if not isinstance(name, str):
        raise InputError(f"model must be a name or a path, such as 'default', got {type(name).__name__}")
    with _lock:
        if name not in _models:
            from ctx_embed.loading import load

            _models[name] = load(name)
        return _models[name]
