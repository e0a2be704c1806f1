"""Reranking: a larger model scores the best passages of a search again."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.index.embedder import Embedder
from ctx_embed.index.storage.manifest import RERANKING
from ctx_embed.index.storage.shards import Vectors
from ctx_embed.numpy_model.saved import read_json

# The most passages whose vectors are cached, 150 MB of 384 dimensions; the oldest make way.
MOST_CACHED = 100_000
# How long to wait for another process that writes to the cache; a search then goes without.
PATIENCE_SECONDS = 1.0
_SCHEMA = "CREATE TABLE IF NOT EXISTS vectors (number INTEGER PRIMARY KEY, key BLOB UNIQUE, vector BLOB NOT NULL)"
_KEYS_A_QUERY = 500


@runtime_checkable
class Reranker(Protocol):
    """What scores passages for queries."""

    def scores(
        self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]], cache: VectorCache | None
    ) -> list[NDArray[Any]]:
        """Return for each search its scores (texts, passages).

        Args:
            queries: for each search its texts.
            passages: for each search its passages.
            cache: where vectors of passages are stored; None stores none.
        """


class BiEncoder:
    """Scores by the cosines of its own embeddings.

    Args:
        embedder: the model.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        # A prompt changes embeddings but not the fingerprint.
        self.identity = json.dumps([embedder.fingerprint, getattr(embedder.model, "prompts", None)], default=str)

    def scores(
        self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]], cache: VectorCache | None
    ) -> list[NDArray[Any]]:
        """Return the cosines, see :class:`Reranker`; every text is embedded once."""
        texts = list(dict.fromkeys(text for group in queries for text in group))
        of_query = dict(zip(texts, self.embedder.queries(texts), strict=True))
        distinct = list(dict.fromkeys(text for group in passages for text in group))
        known = {} if cache is None else cache.read(self.identity, self.embedder.dimension, distinct)
        new = [text for text in distinct if text not in known]
        if new:
            vectors = self.embedder.documents(new)
            known |= dict(zip(new, vectors, strict=True))
            if cache is not None:
                cache.write(self.identity, new, vectors)
        return [
            _cosines(np.stack([of_query[text] for text in asked]), np.stack([known[text] for text in found]))
            if found
            else np.empty((len(asked), 0))
            for asked, found in zip(queries, passages, strict=True)
        ]


def _cosines(queries: Vectors, passages: Vectors) -> Vectors:
    # In float64, so that the rounded cosine of a pair does not depend on the others.
    cosines: Vectors = np.clip(queries.astype(np.float64) @ passages.astype(np.float64).T, -1, 1).astype(np.float32)
    return cosines


class PairScorer:
    """Scores by a CrossEncoder, which reads a query and a passage together.

    Args:
        model: a CrossEncoder with one output.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def scores(
        self, queries: Sequence[Sequence[str]], passages: Sequence[Sequence[str]], cache: VectorCache | None
    ) -> list[NDArray[Any]]:
        """Return the model's outputs, see :class:`Reranker`.

        Raises:
            InputError: a cache is given, or the model has several outputs.
        """
        if cache is not None:
            raise InputError("cache stores vectors of passages, but a CrossEncoder has none; leave it out")
        pairs = [
            (text, passage)
            for asked, found in zip(queries, passages, strict=True)
            for text in asked
            for passage in found
        ]
        if not pairs:
            return [np.empty((len(asked), 0)) for asked in queries]
        outputs = np.asarray(self.model.predict(pairs, show_progress_bar=False))
        if outputs.ndim != 1 or not np.isfinite(outputs).all():
            raise InputError(f"the reranker must return one finite score for each pair, got the shape {outputs.shape}")
        scores, start = [], 0
        for asked, found in zip(queries, passages, strict=True):
            stop = start + len(asked) * len(found)
            scores.append(outputs[start:stop].reshape(len(asked), len(found)))
            start = stop
        return scores


def reranker_of(model: Any) -> Reranker:
    """Return the reranker for a model.

    Args:
        model: a name or a folder, a SentenceTransformer, a :class:`ctx_embed.runtime.Embedder`, a CrossEncoder, or a
            reranker.

    Raises:
        InputError: there is no such model, or it cannot rerank.
    """
    if isinstance(model, Reranker):
        return model
    if isinstance(model, str | Path):
        return (
            PairScorer(_cross_encoder(str(model))) if _is_cross_encoder(str(model)) else BiEncoder(Embedder.of(model))
        )
    if hasattr(model, "predict") and not hasattr(model, "encode_query"):
        return PairScorer(model)
    if not hasattr(model, "encode_query"):
        raise InputError(f"rerank must be a model or the name of one, got {type(model).__name__}")
    return BiEncoder(Embedder.of(model))


def _is_cross_encoder(name: str) -> bool:
    """Return whether a folder, or a name on the hub, is a CrossEncoder."""
    if not os.path.isdir(name):
        return name.startswith("cross-encoder/")
    for file, of_config in (
        ("config_sentence_transformers.json", lambda config: config.get("model_type") == "CrossEncoder"),
        ("config.json", lambda config: "ForSequenceClassification" in str(config.get("architectures"))),
    ):
        path = Path(name) / file
        if path.is_file() and isinstance(config := read_json(path), dict) and of_config(config):
            return True
    return False


def _cross_encoder(name: str) -> Any:
    from sentence_transformers import CrossEncoder

    try:
        return CrossEncoder(name)
    except Exception as error:
        reason, *_ = str(error).split("\n")
        raise InputError(f"{name}: the CrossEncoder cannot be loaded ({type(error).__name__}: {reason})") from error


class VectorCache:
    """Vectors of passages by model and text, in a file of the index; a reader or a writer that fails goes without.

    Each addition is a transaction of SQLite, so a kill leaves the vectors of before or of after it. A damaged file is
    deleted. The newest :data:`MOST_CACHED` passages stay.

    Args:
        folder: of the index.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RERANKING / "vectors.sqlite"

    def read(self, model: str, dimension: int, texts: Sequence[str]) -> dict[str, Vectors]:
        """Return the vectors (dimension,) of the texts that are cached for a model."""
        by_key = {_key(model, text): text for text in texts}
        keys = list(by_key)
        found: dict[str, Vectors] = {}
        if not self.path.is_file():
            return found
        try:
            with closing(self._connection()) as connection:
                for start in range(0, len(keys), _KEYS_A_QUERY):
                    part = keys[start : start + _KEYS_A_QUERY]
                    marks = ",".join("?" * len(part))
                    for key, vector in connection.execute(
                        f"SELECT key, vector FROM vectors WHERE key IN ({marks})", part
                    ):
                        if len(vector) == 4 * dimension:
                            found[by_key[key]] = np.frombuffer(vector, "<f4").astype(np.float32)
        except sqlite3.OperationalError:
            return found
        except sqlite3.DatabaseError:
            self._remove()
        return found

    def write(self, model: str, texts: Sequence[str], vectors: Vectors) -> None:
        """Add the vectors (texts, dimension) of texts for a model, and drop the oldest above the limit."""
        rows = [
            (_key(model, text), vector.astype("<f4").tobytes()) for text, vector in zip(texts, vectors, strict=True)
        ]
        try:
            self.path.parent.mkdir(exist_ok=True)
            with closing(self._connection()) as connection, connection:
                connection.execute(_SCHEMA)
                connection.executemany("INSERT OR REPLACE INTO vectors (key, vector) VALUES (?, ?)", rows)
                connection.execute(
                    "DELETE FROM vectors WHERE number <= (SELECT max(number) FROM vectors) - ?", (MOST_CACHED,)
                )
        except (OSError, sqlite3.OperationalError):
            return
        except sqlite3.DatabaseError:
            self._remove()

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=PATIENCE_SECONDS)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # What is lost in a power failure is embedded again.
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


def _key(model: str, text: str) -> bytes:
    return hashlib.blake2b(f"{model}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
