"""Load encoders by name or path, and embed with any of them in batches of similar length, with checked results."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, described, missing_extra, quoted, unknown_name
from ctx_embed.progress import Meter
from ctx_embed.texts import BATCH_TEXTS, length_batches, well_formed

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT = "default"
MODEL2VEC = "model2vec:"


@dataclass(frozen=True)
class Encoder:
    """Anything that turns a list of texts into an array of embeddings, one row for each text.

    Attributes:
        name: the name that the user gave.
        encode: takes n texts; returns their embeddings (n, d).
        fingerprint: a hash of its weights, tokenizer and configuration.
        key: a hash of all that determines its embeddings; they are stored under it, or never if it is None.
        parameters: number of learned parameters.
        fit: for an encoder that is fitted in each training fold: takes all texts; returns features, never stored.
        model: the SentenceTransformer or the Embedder of :mod:`ctx_embed.runtime` behind it.
        words: whether a classifier over it reads words too; this is for probes only.
        probes_only: whether its cosines are meaningless, so that only linear probes use it.
        by_name: whether :func:`load_encoder` can make it from its name, as another process must.
        batch_size: the number of texts per call at which it is fastest.
        remark: a note for readers of its scores, such as that it has random weights.
    """

    name: str
    encode: Callable[[list[str]], Any]
    fingerprint: str | None = None
    key: str | None = None
    parameters: int | None = None
    fit: Callable[[Sequence[str]], Any] | None = None
    model: Any = None
    words: bool = False
    probes_only: bool = False
    by_name: bool = False
    batch_size: int = BATCH_TEXTS
    remark: str = ""


def as_encoder(encoder: Any, name: str | None = None) -> Encoder:
    """Return anything with ``encode(list[str]) -> array`` as an :class:`Encoder`."""
    if isinstance(encoder, Encoder):
        return encoder
    if not callable(getattr(encoder, "encode", None)):
        raise InputError(f"an encoder must have a method encode(list of texts) -> array, got {described(encoder)}")
    from sentence_transformers import SentenceTransformer

    name = name or type(encoder).__name__
    return _of_model(name, encoder) if isinstance(encoder, SentenceTransformer) else Encoder(name, encoder.encode)


def load_encoder(
    name: str, backend: str | None = "torch", others: Mapping[str, Encoder] = MappingProxyType({})
) -> Encoder:
    """Return the encoder of that name."""
    if name in others:
        return others[name]
    if name.startswith(MODEL2VEC):
        try:
            from model2vec import StaticModel
        except ImportError:
            raise missing_extra(f"{name}: model2vec", "peers") from None
        try:
            static = StaticModel.from_pretrained(name.removeprefix(MODEL2VEC))
        # The type of the error depends on what is wrong with the folder.
        except Exception as error:
            reason, *_ = str(error).split("\n")
            raise InputError(f"{name}: no model2vec model there ({type(error).__name__}: {reason})") from None
        digest = hashlib.sha256(static.tokenizer.to_str().encode())
        tables = [table for table in (static.embedding, static.weights, static.token_mapping) if table is not None]
        for table in tables:
            digest.update(np.ascontiguousarray(table).data)
        known, parameters = digest.hexdigest(), sum(table.size for table in tables)
        return Encoder(name, static.encode, known, f"{known}-model2vec", parameters, by_name=True)
    if backend != "torch" and (name == DEFAULT or os.path.exists(name)):
        from ctx_embed.loading import load_embedder
        from ctx_embed.numpy_model import BATCH_TEXTS, Embedder

        model = load_embedder(name, backend)
        if isinstance(model, Embedder):
            return Encoder(well_formed(name), model.encode, model=model, by_name=True, batch_size=BATCH_TEXTS)
        return _of_model(well_formed(name), model, by_name=True)
    from ctx_embed.systems import SYSTEMS, untrained

    if name in SYSTEMS and not os.path.exists(name):
        remark = (
            f"{name} is not trained: it has random weights over the default model's token table; train one with "
            f"`ctx-embed train --encoder {name}`, and give its folder"
        )
        return replace(_of_model(name, untrained(name), by_name=True), remark=remark)
    # A word that is nearly the name of an encoder is a typing mistake, not a model on the hub.
    names = [DEFAULT, "minilm", *others, *SYSTEMS]
    if name not in names and not os.path.exists(name) and difflib.get_close_matches(name, names, n=1):
        raise InputError(f"{unknown_name('encoder', name, names)}, or the folder of a SentenceTransformer")
    from ctx_embed.loading import load

    return _of_model(well_formed(name), load(None if name == DEFAULT else name), by_name=True)


def _of_model(name: str, model: SentenceTransformer, by_name: bool = False) -> Encoder:
    from ctx_embed.fingerprint import fingerprint, identity

    def encode(texts: list[str]) -> NDArray[Any]:
        embeddings: NDArray[Any] = model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        return embeddings

    known = fingerprint(model)
    # The fingerprint leaves out prompts, truncation and the maximum length.
    prompt = model.prompts.get(model.default_prompt_name or "")
    key = identity(known, model.max_seq_length, prompt, model.truncate_dim)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Encoder(name, encode, known, key, parameters, model=model, by_name=by_name)


def embed(encoder: Encoder, texts: Sequence[str], batch_size: int = BATCH_TEXTS) -> NDArray[np.float32]:
    """Return the embeddings of ``texts``, (n, d) float32, in their order; show progress on standard error."""
    if encoder.fit is not None:
        raise InputError(
            f"encoder {quoted(encoder.name)} is fitted on the texts of a task and has no embeddings without one"
        )
    texts = [well_formed(text) for text in texts]
    embeddings: NDArray[np.float32] | None = None
    with Meter("embedding", len(texts), leave=False) as meter:
        for places in length_batches(texts, batch_size):
            batch = [texts[place] for place in places]
            given = encoder.encode(batch)
            if hasattr(given, "detach"):  # a tensor, perhaps on a device or of a type that NumPy does not know
                given = given.detach().cpu().float()
            try:
                rows: NDArray[Any] = np.asarray(given)
                got = f"an array {rows.shape} of {rows.dtype}"
            except ValueError:
                rows, got = np.empty(0), "rows of different lengths"
            if embeddings is None and rows.ndim == 2:
                embeddings = np.empty((len(texts), rows.shape[1]), np.float32)
            shape = None if embeddings is None else (len(batch), embeddings.shape[1])
            if embeddings is None or rows.shape != shape or not rows.size or rows.dtype.kind not in "biuf":
                raise InputError(
                    f"encoder {quoted(encoder.name)} must return a row of numbers for each text, "
                    "all of one length, got "
                    f"{got} for {len(batch)} texts"
                )
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32)
            finite = np.isfinite(rows).all(axis=1)
            if not finite.all():
                text = batch[int(np.argmin(finite))]
                raise InputError(f"encoder {quoted(encoder.name)} returned NaN or infinity for the text {text[:40]!r}")
            embeddings[places] = rows
            meter.update(len(places))
    if embeddings is None:
        raise InputError("no texts to embed")
    return embeddings
