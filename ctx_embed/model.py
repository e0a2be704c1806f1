"""One model: whatever embeds texts, on NumPy, on torch or by its own ``encode``, in batches with checked results."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ctx_embed.deadlines import require_time
from ctx_embed.errors import InputError, described, missing_extra, naming_left_out, unknown_name
from ctx_embed.fingerprint import fingerprint
from ctx_embed.loading import load, local_folder
from ctx_embed.numpy_model import Embedder, UnsupportedModelError
from ctx_embed.numpy_model.embedder import Ids, Lengths, PackedContextualizer
from ctx_embed.numpy_model.saved import PACKAGED, Floats, SavedContextualizer, write_contents
from ctx_embed.options import BACKENDS, DEFAULT
from ctx_embed.progress import Meter
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.texts import BATCH_TEXTS, length_batches, well_formed
from ctx_embed.vectors import unit_rows

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ctx_embed.numpy_model.late import Late

    # What makes a model: its name or path (None: the default), or a loaded one.
    Given: TypeAlias = "str | Path | Embedder | SentenceTransformer | Model | None"

MODEL2VEC = "model2vec:"
# How much of a passage late interaction reads.
LATE_CHARACTERS = 20_000


class Read(NamedTuple):
    """Texts as a Contextualizer reads them: its steps in NumPy, its tokenizer, packed ids, and ids in each text."""

    contextualizer: PackedContextualizer
    tokenizer: TextTokenizer
    ids: Ids
    lengths: Lengths


@dataclass(eq=False)
class Model:
    """A model that embeds texts. Each text has the same embedding alone and in any batch.

    Attributes:
        backend: what computes: an Embedder (NumPy), a SentenceTransformer (torch), or any object with ``encode(list of
            texts) -> array``.
        name: what messages call it.
        reference: the name or path that loads it again: ``default``, an absolute path or a name; None if unknown.
        remark: a note for readers of its scores, such as that it has random weights.
    """

    backend: Any
    name: str = "the model"
    reference: str | None = None
    remark: str = ""

    @classmethod
    def of(
        cls,
        given: Any = None,
        backend: str | None = None,
        *,
        device: str | None = None,
        local_files_only: bool = False,
        others: Iterable[str] = (),
    ) -> Model:
        """Return the model that is given, or load it.

        Args:
            given: a folder, a name on the hub, ``model2vec:PATH``, the name of a system, or None for the default model;
                or a loaded Embedder, SentenceTransformer or object with ``encode``.
            backend: ``numpy`` or ``torch``, for a model to load; None: numpy if it can run the model.
            device: as in sentence-transformers, which then runs it.
            local_files_only: never download it, for a name that the user has not given.
            others: further names that the caller knows, for the hint at a typing mistake.

        Raises:
            InputError: there is no such model, it is damaged, or it needs the other backend.
        """
        if isinstance(given, Model):
            return given
        if given is not None and not isinstance(given, str | Path):
            if not callable(getattr(given, "encode", None)):
                raise InputError(f"a model must have a method encode(list of texts) -> array, got {described(given)}")
            return cls(given, type(given).__name__)
        if backend is not None and backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        name = DEFAULT if given is None else str(given)
        is_path = name != DEFAULT and os.path.exists(name)
        if not is_path and name.startswith(MODEL2VEC):
            return cls(_static(name), name, name)
        if not is_path and "/" not in name and name not in (DEFAULT, *PACKAGED):
            from ctx_embed.systems import SYSTEMS, untrained

            if name in SYSTEMS:
                remark = (
                    f"{name} is not trained: it has random weights over the default model's token table; train one "
                    f"with `ctx-embed train --encoder {name}`, and give its folder"
                )
                warnings.warn(remark, stacklevel=2)
                with naming_left_out(f"the encoder {name}"):
                    return cls(untrained(name), name, name, remark)
            # A word that is nearly the name of a model is a typing mistake, not a model on the hub.
            names = [DEFAULT, *PACKAGED, *others, *SYSTEMS]
            if difflib.get_close_matches(name, names, n=1):
                raise InputError(f"{unknown_name('encoder', name, names)}, or the folder of a SentenceTransformer")
        reference = str(Path(name).absolute()) if is_path else name
        if backend != "torch" and device is None:
            try:
                saved = SavedContextualizer(local_folder(name, local_files_only=local_files_only))
                return cls(Embedder(saved), well_formed(name), reference)
            except UnsupportedModelError as error:
                if backend == "numpy":
                    raise
                logging.getLogger(__name__).info("%s", error)
        return cls(load(name, device, local_files_only=local_files_only), well_formed(name), reference)

    def documents(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors (len(texts), dimension) of documents; raise InputError if the model returns none."""
        return unit_rows(self._encoded("encode_document", texts))

    def queries(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors (len(texts), dimension) of queries, see :meth:`documents`."""
        return unit_rows(self._encoded("encode_query", texts))

    def quiet_queries(self, texts: Sequence[str]) -> Floats:
        """Return :meth:`queries` of texts that no user wrote, without warnings of what the model cannot read."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.queries(texts)

    def encode(self, texts: Sequence[str], batch_size: int | None = None, *, progress: bool = False) -> Floats:
        """Return embeddings (len(texts), dimension) as the model makes them, at most ``batch_size`` texts at a time."""
        return self._encoded("encode", texts, batch_size, progress)

    def raw(self, texts: Sequence[str]) -> Floats:
        """Return embeddings (len(texts), m) before any normalisation or truncation, which classifiers' heads read.

        A text that the model cannot read has zeros.
        """
        backend = self.backend
        if isinstance(backend, Embedder):
            packed = backend.contextualizer
            whole = {"normalize": False, "prompt": "", "truncate_dim": packed.dimension}
            vectors: Floats = backend.encode(texts, **whole)  # type: ignore[arg-type]
            unread = packed.first_contexts(np.empty(0, np.int32), np.zeros(1, np.int64))
            vectors[(vectors == unread).all(1)] = 0
            return vectors
        import torch

        from ctx_embed.modules.sentence_transformer import raw_embeddings

        backend.eval()
        with torch.inference_mode():
            return self._encoded(lambda batch: raw_embeddings(backend, batch).float().cpu().numpy(), texts)

    @property
    def raw_dimension(self) -> int:
        """The number of features of :meth:`raw`."""
        with warnings.catch_warnings():
            # The empty text has no words.
            warnings.simplefilter("ignore")
            return int(self.raw([""]).shape[1])

    def encode_and_count(self, texts: Sequence[str]) -> tuple[Floats, Lengths]:
        """Return :meth:`encode` of texts, and the number of tokens of each (n,), reading each text once."""
        backend = self.backend
        if isinstance(backend, Embedder):
            ids, lengths = backend.tokens(list(texts))
            vectors = backend.finished(backend.contextualizer.embed(ids, lengths), lengths)
            return np.ascontiguousarray(vectors, np.float32), lengths
        encodings = backend.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return self.encode(texts), np.array([len(ids) for ids in encodings], np.int64)

    def _encoded(
        self,
        encode: str | Callable[[list[str]], Any],
        texts: Sequence[str],
        batch_size: int | None = None,
        progress: bool = False,
    ) -> Floats:
        """Return what a method of the backend, or else its ``encode``, or a function returns: (texts, features)."""
        texts, size, width = [well_formed(text) for text in texts], batch_size or BATCH_TEXTS, None
        backend: Any = self.backend
        call: Any = encode
        if isinstance(encode, str):
            width = vars(self).get("dimension")
            method = getattr(backend, encode, backend.encode)
            if isinstance(backend, Embedder):
                # It makes batches, and shows progress, itself.
                own = {} if batch_size is None else {"batch_size": batch_size}
                return self._checked(method(texts, show_progress=progress, **own), texts, width)
            is_transformer = hasattr(backend, "get_embedding_dimension")
            call = partial(method, batch_size=size, show_progress_bar=False) if is_transformer else method
        vectors: Floats | None = None
        with Meter("embedding", len(texts), shown=progress, leave=False) as meter:
            for places in length_batches(texts, size):
                require_time()
                batch = [texts[place] for place in places]
                rows = self._checked(call(batch), batch, width)
                if vectors is None:
                    width = rows.shape[1]
                    vectors = np.empty((len(texts), width), np.float32)
                vectors[places] = rows
                meter.update(len(places))
        return np.empty((0, self.dimension), np.float32) if vectors is None else vectors

    def _checked(self, given: Any, batch: Sequence[str], width: int | None) -> NDArray[Any]:
        """Return what the backend returned for texts as an array of finite numbers, a row of ``width`` for each."""
        if hasattr(given, "detach"):  # a tensor, perhaps on a device or of a type that NumPy does not know
            given = given.detach().cpu().float()
        try:
            rows: NDArray[Any] = np.asarray(given)
            got = f"an array {rows.shape} of {rows.dtype}"
        except ValueError:
            rows, got = np.empty(0), "rows of different lengths"
        if rows.ndim != 2 or rows.dtype.kind not in "biuf" or rows.shape != (len(batch), width or rows.shape[1] or 1):
            numbers = "a row of numbers" if width is None else f"{width} numbers"
            raise InputError(f"{self.name}: must return {numbers} for each text, got {got} for {len(batch)} texts")
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32, copy=False)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            text = batch[int(np.argmin(finite))]
            raise InputError(f"{self.name}: returned NaN or infinity for the text {text[:40]!r}")
        return rows

    def similarity(self, queries: Sequence[str], documents: Sequence[str]) -> Floats:
        """Return the cosines (queries, documents) of texts."""
        # In float64, so that the rounded cosine of a pair does not depend on other pairs.
        left, right = self.queries(queries).astype(float), self.documents(documents).astype(float)
        cosines: Floats = np.clip(left @ right.T, -1, 1).astype(np.float32)
        return cosines

    def read(self, texts: Sequence[str]) -> Read | None:
        """Return what :meth:`encode` reads of texts; None unless the model is a Contextualizer."""
        backend = self.backend
        if isinstance(backend, Embedder):
            return Read(backend.contextualizer, backend.text_tokenizer, *backend.tokens(list(texts)))
        module = self._first
        if not hasattr(module, "without_torch"):
            return None
        prompt = backend.prompts.get(backend.default_prompt_name or "")
        ids, lengths = module.read(texts, prompt, module.max_seq_length)
        return Read(module.without_torch(ids), module.text_tokenizer, ids, lengths)

    @property
    def looks_again(self) -> bool:
        """Whether the model has :meth:`late` scores."""
        return isinstance(self.backend, Embedder) or hasattr(self._first, "without_torch")

    def late(self, query: str, of_query: Floats, texts: Sequence[str], vectors: Floats) -> Late | None:
        """Return what a query's tokens find in passages (n,), by the unit vectors of both; None if that is unknown.

        Only a Contextualizer has it.
        """
        with warnings.catch_warnings():
            # It was read before, with warnings.
            warnings.simplefilter("ignore")
            read = self.read([query])
        if read is None or not len(read.ids) or not of_query.any():
            return None
        from ctx_embed.numpy_model.late import late_interaction

        ids, lengths = read.tokenizer([text[:LATE_CHARACTERS] for text in texts])
        # The vectors of passages that the model cannot read are zero.
        is_read = vectors.any(axis=1)
        ids, lengths = ids[np.repeat(is_read, lengths)], lengths * is_read
        return late_interaction(read.contextualizer, read.ids, of_query, ids, lengths, vectors)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if it is not one of the ``tokenizers`` library."""
        tokenizer = getattr(self.backend, "tokenizer", None)
        tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        return tokenizer if isinstance(tokenizer, Tokenizer) else None

    @cached_property
    def dimension(self) -> int:
        """The number of features of an embedding; from then on all embeddings must have them."""
        backend = self.backend
        if isinstance(backend, Embedder):
            return backend.dimension
        dimension: int | None = getattr(backend, "get_embedding_dimension", lambda: None)()
        return dimension or self.encode(["a"]).shape[1]

    @property
    def fingerprint(self) -> str:
        """A hash over everything that decides the embeddings, as they are computed now."""
        own: str | None = getattr(self.backend, "fingerprint", None)
        if own is None:
            if not hasattr(self.backend, "state_dict"):
                raise InputError(
                    f"{self.name}: has no fingerprint; give the folder or name of a model, an Embedder "
                    "or a SentenceTransformer"
                )
            own = fingerprint(self.backend)
        return own

    @property
    def parameters(self) -> int | None:
        """The number of learned parameters; None if unknown."""
        parameters = getattr(self.backend, "parameters", None)
        return sum(parameter.numel() for parameter in parameters()) if callable(parameters) else parameters

    @property
    def _first(self) -> Any:
        """The first module of a SentenceTransformer; None for another backend."""
        return self.backend[0] if hasattr(self.backend, "preprocess") else None

    @property
    def labelled_texts(self) -> NDArray[np.uint64] | None:
        """Hashes of the labelled texts that it was trained on, see :mod:`ctx_embed.training.labelled_texts`."""
        return getattr(getattr(self.backend, "saved", self._first), "labelled_texts", None)

    def modules(self) -> list[dict[str, Any]]:
        """Return the name and config of each module."""
        if isinstance(self.backend, Embedder):
            saved = self.backend.saved
            return [{"module": "Contextualizer", **saved.config}, *[{"module": "Normalize"}] * saved.normalize]
        modules: list[Any] = list(self.backend.children())
        return [{"module": type(module).__name__, **getattr(module, "get_config_dict", dict)()} for module in modules]

    def save(self, folder: Path) -> None:
        """Write the model's files into a folder."""
        if isinstance(self.backend, Embedder):
            write_contents(folder, self.backend.saved.contents())
        else:
            self.backend.save_pretrained(str(folder))


def _static(name: str) -> SimpleNamespace:
    """Return a model of model2vec, with its fingerprint and number of parameters."""
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
    parameters = sum(table.size for table in tables)
    return SimpleNamespace(encode=static.encode, fingerprint=digest.hexdigest(), parameters=parameters)
