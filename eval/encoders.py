"""Encoders by name or path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.texts import well_formed

DEFAULT = "default"


@dataclass(frozen=True)
class Encoder:
    """Whatever turns a list of texts into an array of embeddings, a row each.

    Attributes:
        name: what the user called it.
        encode: from n texts to (n, d).
        fingerprint: the sha256 over everything that decides its embeddings; None where that is unknown.
    """

    name: str
    encode: Callable[[list[str]], NDArray[Any]]
    fingerprint: str | None = None


def load_encoder(name: str) -> Encoder:
    """The encoder of that name: ``default``, or a SentenceTransformer's folder or name on the hub.

    Raises:
        InputError: there is no such encoder, or its folder is broken.
    """
    # A word that is all but the name of an encoder is a slip, not a model on the hub.
    if name != DEFAULT and not os.path.exists(name) and difflib.get_close_matches(name, [DEFAULT], n=1):
        raise InputError(f"{unknown_name('encoder', name, [DEFAULT])}, or the folder of a SentenceTransformer")
    from ctx_embed.fingerprint import fingerprint
    from ctx_embed.loading import load

    model = load(None if name == DEFAULT else name)

    def encode(texts: list[str]) -> NDArray[Any]:
        embeddings: NDArray[Any] = model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        return embeddings

    return Encoder(well_formed(name), encode, fingerprint(model))
