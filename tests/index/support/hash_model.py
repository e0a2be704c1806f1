"""A stand-in for a SentenceTransformer that starts fast: child processes use it without importing torch."""

import zlib
from functools import partial

import numpy as np

DIMENSION = 8


def hash_vectors(texts, dimension: int = DIMENSION) -> np.ndarray:
    """Return unit vectors (len(texts), dimension) that depend on each text alone."""
    draws = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(dimension) for text in texts]
    vectors = np.array(draws, np.float32).reshape(len(texts), dimension)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class HashModel:
    """The methods of a SentenceTransformer that an index and :func:`ctx_embed.fingerprint.fingerprint` call."""

    def __init__(self, dimension: int = DIMENSION) -> None:
        self.dimension = dimension
        self.seen: list[str] = []

    def get_embedding_dimension(self) -> int:
        return self.dimension

    def encode_document(self, texts, batch_size=32, show_progress_bar=None) -> np.ndarray:
        self.seen += texts
        return 3 * hash_vectors(texts, self.dimension)

    def encode(self, texts, batch_size=32, show_progress_bar=None) -> np.ndarray:
        return self.encode_document(texts)

    def encode_query(self, texts, batch_size=32, show_progress_bar=None) -> np.ndarray:
        return hash_vectors(texts, self.dimension)

    def children(self) -> list:
        return []

    def state_dict(self) -> dict:
        return {}


class Interrupting(HashModel):
    """A model that is interrupted, as by Ctrl-C, when it is asked for more than a number of texts."""

    def __init__(self, texts: int, dimension: int = DIMENSION) -> None:
        super().__init__(dimension)
        self.left = texts

    def encode_document(self, texts, **options) -> np.ndarray:
        self.left -= len(texts)
        if self.left < 0:
            raise KeyboardInterrupt
        return super().encode_document(texts, **options)


class HashEmbedder:
    """A stand-in for :class:`ctx_embed.model.Model` that does not import torch."""

    fingerprint = "0" * 64
    reference = backend = tokenizer = None

    def __init__(self, dimension: int = DIMENSION) -> None:
        self.dimension = dimension
        self.documents = self.queries = self.quiet_queries = partial(hash_vectors, dimension=dimension)

    @staticmethod
    def knows(word: str) -> bool:
        return False
