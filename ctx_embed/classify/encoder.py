"""The encoder of a classifier: on NumPy if the model allows it, otherwise on torch."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ctx_embed.classify.head import FILES, Floats
from ctx_embed.errors import InputError
from ctx_embed.fingerprint import fingerprint
from ctx_embed.numpy_model import Embedder, UnsupportedModelError
from ctx_embed.numpy_model.checks import modules_of, read_object
from ctx_embed.numpy_model.saved import DEFAULT_MODEL
from ctx_embed.text.unknown import tokenizer_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Files of a model folder that concern its training, not its embeddings.
NOT_COPIED = ("README.md", "training.json", *FILES)


class TorchEncoder:
    """A SentenceTransformer that returns embeddings before any normalisation.

    Its pickle holds the files of the saved model, without anything that can be computed.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model

    @property
    def fingerprint(self) -> str:
        """The identity of the model, see :func:`ctx_embed.fingerprint.fingerprint`."""
        return fingerprint(self.model)

    @property
    def labelled_texts(self) -> NDArray[np.uint64] | None:
        """Hashes of the labelled texts that it was trained on, see :mod:`ctx_embed.training.labelled_texts`."""
        return getattr(self.model[0], "labelled_texts", None)

    def modules(self) -> list[dict[str, Any]]:
        """Return the name and config of each module."""
        modules: list[Any] = list(self.model.children())
        return [{"module": type(module).__name__, **getattr(module, "get_config_dict", dict)()} for module in modules]

    def about(self) -> list[tuple[str, str]]:
        """Return what the model is, for a card."""
        from ctx_embed.model_card import facts

        return facts(self.model)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if the model has another kind."""
        return tokenizer_of(self.model)

    @property
    def dimension(self) -> int:
        """The dimension m of the embeddings."""
        from ctx_embed.classify.embedding import dimension_of

        return dimension_of(self.model)

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return (texts, m) float32."""
        from ctx_embed.classify.embedding import embedded

        return embedded(self.model, texts)

    def save(self, folder: Path) -> None:
        """Write the model folder."""
        self.model.save_pretrained(str(folder))

    def __reduce__(self) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder))
            return _unpacked, (_packed(Path(folder)),)


class SavedEncoder:
    """A saved Contextualizer that returns embeddings before any normalisation, without torch.

    Its pickle holds the model's files; for the model of this package, only its fingerprint. A folder that is ``owned``
    is temporary and is deleted with this object.
    """

    def __init__(self, folder: Path, *, owned: bool = False) -> None:
        self.folder = folder
        self._embedder = Embedder.load(folder)
        if owned:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        # The classifier's head reads the whole embedding.
        self._embedder.truncate_dim = None

    @property
    def fingerprint(self) -> str:
        """The identity of the model, see :func:`ctx_embed.fingerprint.fingerprint`."""
        return self._embedder.fingerprint

    @property
    def labelled_texts(self) -> NDArray[np.uint64] | None:
        """Hashes of the labelled texts that it was trained on, see :mod:`ctx_embed.training.labelled_texts`."""
        file = self.folder / "labelled_texts.npy"
        return np.load(file, allow_pickle=False) if file.is_file() else None

    def modules(self) -> list[dict[str, Any]]:
        """Return the name and config of each module."""
        first, *others = modules_of(self.folder)
        config = read_object(first.home / "contextualizer_config.json")
        return [
            {"module": "Contextualizer", **config},
            *({"module": other.kind.rpartition(".")[2]} for other in others),
        ]

    def about(self) -> list[tuple[str, str]]:
        """Return what the model is, for a card."""
        from ctx_embed.model_card import listed

        first = self.modules()[0]
        return [
            ("dimension", f"{self.dimension} (float32)"),
            ("encoder", " ".join([f"{first.pop('module')}:", listed(first)])),
            ("fingerprint", f"`{self.fingerprint}`"),
        ]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, without phrases."""
        return self._embedder.tokenizer

    @property
    def dimension(self) -> int:
        """The dimension m of the embeddings."""
        return self._embedder.dimension

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return (texts, m) float32."""
        return self._embedder.encode(texts, normalize=False, prompt="")

    def save(self, folder: Path) -> None:
        """Copy the model's files."""
        _write(folder, _packed(self.folder))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder == DEFAULT_MODEL:
            return _shipped, (self.fingerprint,)
        return _unpacked, (_packed(self.folder),)


def open_encoder(path: str | Path, device: str | None = None) -> SavedEncoder | TorchEncoder:
    """Open a model folder, ``default``, or a name on the hub; a named device needs torch."""
    folder = DEFAULT_MODEL if str(path) == "default" else Path(path)
    if device is None and folder.is_dir():
        try:
            return _shipped_encoder(folder) if folder == DEFAULT_MODEL else SavedEncoder(folder)
        except UnsupportedModelError:
            pass
    from ctx_embed.loading import load

    return TorchEncoder(load(path, device))


@cache
def _shipped_encoder(folder: Path) -> SavedEncoder:
    """Return the encoder of the shipped model, opened once for all classifiers over it."""
    return SavedEncoder(folder)


def _shipped(fingerprint: str) -> SavedEncoder | TorchEncoder:
    encoder = open_encoder("default")
    if fingerprint != encoder.fingerprint:
        raise InputError(
            "the classifier was pickled with another default model than this version of ctx-embed has; fit it again, "
            "or use TextClassifier.save, which keeps the model"
        )
    return encoder


def _packed(folder: Path) -> dict[str, bytes]:
    """Return the files of a model folder by their names in it."""
    files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
    return {name: file.read_bytes() for name, file in files.items() if name not in NOT_COPIED}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _unpacked(files: dict[str, bytes]) -> SavedEncoder | TorchEncoder:
    folder = Path(tempfile.mkdtemp(prefix="ctx-embed-"))
    _write(folder, files)
    try:
        return SavedEncoder(folder, owned=True)
    except UnsupportedModelError:
        from ctx_embed.loading import load

        try:
            return TorchEncoder(load(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
