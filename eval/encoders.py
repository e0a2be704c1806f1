"""Encoders of an evaluation by name, and their embeddings, which are stored so that a run resumes."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ctx_embed import encoders
from ctx_embed.encoders import Encoder, embed
from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file

RANDOM_DIMENSION = 256
WORDS = "+words"
WORD = r"(?u)\b\w+\b"


class Tfidf:
    """TF-IDF features of texts: (1 + log tf) * (1 + log((1 + n) / (1 + df))), each row of unit length.

    Words and word pairs are counted once for all rows; the vocabulary (those in at least two training texts) and the
    weights come from the training rows only.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        try:
            self._counts: Any = CountVectorizer(token_pattern=WORD, ngram_range=(1, 2)).fit_transform(texts)
        except ValueError:
            raise InputError("tfidf: at least one text must hold a word, got none") from None

    def __call__(self, train: NDArray[np.intp], other: NDArray[np.intp]) -> tuple[Any, Any]:
        """Return the features (rows, words) of the training rows and of other rows, as scipy.sparse CSR arrays."""
        from scipy import sparse
        from sklearn.feature_extraction.text import TfidfTransformer

        texts_with = np.bincount(self._counts[train].indices, minlength=self._counts.shape[1])
        counts = self._counts[:, texts_with >= min(2, len(train))]
        weighted = TfidfTransformer(sublinear_tf=True).fit(counts[train]).transform
        return sparse.csr_array(weighted(counts[train])), sparse.csr_array(weighted(counts[other]))


def load_encoder(name: str) -> Encoder:
    """Return the encoder of that name, a baseline or one of :func:`ctx_embed.encoders.load_encoder`.

    ``NAME+words`` is the classifier of :func:`ctx_embed.classify.fitting.fitted_head` over the encoder NAME and words.
    All of it, with its own cross-validation, is fitted in each training fold.
    """
    if not name.endswith(WORDS) or Path(name).exists():
        return encoders.load_encoder(name, others=BASELINES)
    encoder = load_encoder(name.removesuffix(WORDS))
    if encoder.fit is not None:
        raise InputError(f"{name}: {encoder.name} reads words already; name an encoder of meaning, such as default")
    return replace(encoder, name=name, words=True, probes_only=True)


def _tfidf_rows(texts: list[str]) -> Any:
    rows = np.arange(len(texts))
    return Tfidf(texts)(rows, rows)[1]


def _random_rows(texts: list[str]) -> NDArray[np.float64]:
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=RANDOM_DIMENSION) for seed in seeds])


BASELINES = {
    "tfidf": Encoder("tfidf", _tfidf_rows, fit=Tfidf, by_name=True),
    # All embeddings are equal, so a probe predicts the most frequent class of its training rows.
    "majority": Encoder(
        "majority", lambda texts: np.zeros((len(texts), 1)), parameters=0, probes_only=True, by_name=True
    ),
    "random": Encoder("random", _random_rows, None, "random-1", 0, by_name=True),
}


class EmbeddingCache:
    """The embeddings of one encoder: it embeds each text once, and later runs read them from disk.

    The files are ``FOLDER/<encoder's key>/<hash of the texts>.npz``; without a key or a folder, none are written.
    """

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self.encoder = encoder
        self.folder = folder / encoder.key[:32] if folder is not None and encoder.key else None
        self._rows: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return the embeddings of ``texts``, (n, d), see :func:`embed`; sparse if the encoder is fitted on them."""
        if self.encoder.fit is not None:
            return self.encoder.encode(list(texts))
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
