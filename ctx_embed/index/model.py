"""The model of an index: its identity, how to load it again, and embedding of texts as unit vectors."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ctx_embed.deadlines import require_time
from ctx_embed.errors import InputError, OtherModelError, quoted
from ctx_embed.index.storage.database import Settings
from ctx_embed.index.storage.vectors import Vectors
from ctx_embed.numpy_model import Embedder as NumpyEmbedder
from ctx_embed.texts import length_batches
from ctx_embed.vectors import unit_rows

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ctx_embed.numpy_model.late import Late

    Model: TypeAlias = NumpyEmbedder | SentenceTransformer

DEFAULT = "default"
# A model that can read fewer of the general questions has no relevance.
LEAST_QUESTIONS = 128


def _built(folder: Path, settings: Settings) -> str:
    recorded = "a model of unknown origin" if settings.model is None else f"the model {quoted(settings.model)}"
    return f"{folder}: built with {recorded}, fingerprint {settings.model_fingerprint[:12]}"


def _reembed(folder: Path, reference: str | None) -> str:
    """Return the command that embeds the documents of an index again, with a model or the default one."""
    option = "" if reference in (None, DEFAULT) else f" --model {shlex.quote(str(reference))}"
    return f"ctx-embed index reembed {shlex.quote(str(folder))}{option}"


def unrelated_cosines(embed: Callable[[Sequence[str]], Any]) -> tuple[float, float] | None:
    """Return mean and deviation of the cosines of ``unanswered.txt``'s questions; None if a model reads too few."""
    questions = (files("ctx_embed.index.searching") / "unanswered.txt").read_text(encoding="utf-8").splitlines()
    vectors = np.asarray(embed(questions), np.float32)
    vectors = vectors[vectors.any(axis=1)]
    if len(vectors) < LEAST_QUESTIONS:
        return None
    cosines = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    deviation = float(cosines.std())
    return (float(cosines.mean()), deviation) if deviation > 0 else None


class IndexModel:
    """The model of an index, a NumPy Embedder or a SentenceTransformer: embeds documents and queries as unit vectors.

    Args:
        model: a loaded model, a path or name, or None or ``default`` for the default model.
        backend: of a model to load, ``numpy`` or ``torch``; None chooses.
        local_files_only: never download the model, for a name that the user has not given.

    Attributes:
        reference: the name or path that loads the model again: ``default``, an absolute path or a name; None if
            unknown.
    """

    def __init__(
        self, model: str | Path | Model | None, backend: str | None = None, *, local_files_only: bool = False
    ) -> None:
        self.reference: str | None = None
        if model is None or isinstance(model, str | Path):
            from ctx_embed.loading import load_embedder

            name = None if model is None or str(model) == DEFAULT else str(model)
            self.reference = DEFAULT if name is None else name
            if name is not None and Path(name).exists():
                self.reference = str(Path(name).absolute())
            model = load_embedder(name, backend, local_files_only=local_files_only)
        self.model = model
        if isinstance(model, NumpyEmbedder):
            self.dimension, self.fingerprint = model.dimension, model.fingerprint
            return
        from ctx_embed.fingerprint import fingerprint

        self.fingerprint = fingerprint(model)
        self.dimension = model.get_embedding_dimension() or model.encode(["a"]).shape[1]

    @classmethod
    def for_index(
        cls, folder: Path, settings: Settings, model: str | Path | Model | None, backend: str | None = None
    ) -> IndexModel:
        """Return an embedder for the model of an index, by default where the settings say that it is.

        Raise OtherModelError if it is a different one, or cannot be loaded.
        """
        try:
            embedder = cls(settings.model if model is None else model, backend, local_files_only=model is None)
        except InputError as error:
            if model is not None:
                raise
            raise OtherModelError(
                f"{_built(folder, settings)}, which cannot be loaded ({error}): say where it is now with --model PATH "
                f"(in Python model=PATH), or embed the documents with another model: {_reembed(folder, None)}"
            ) from None
        embedder.require(folder, settings)
        return embedder

    def require(self, folder: Path, settings: Settings) -> None:
        """Raise an OtherModelError that names both models, unless the index was built with this one."""
        if (self.fingerprint, self.dimension) != (settings.model_fingerprint, settings.dimension):
            given = "this one" if self.reference is None else f"the model {quoted(self.reference)}"
            raise OtherModelError(
                f"{_built(folder, settings)}, dimension {settings.dimension}; {given} has the fingerprint "
                f"{self.fingerprint[:12]}, dimension {self.dimension}: open it with the model it was built "
                f"with, or embed its documents again: {_reembed(folder, self.reference)}"
            )

    @cached_property
    def unrelated(self) -> tuple[float, float] | None:
        """The mean and deviation of cosines of unrelated questions, which relevance depends on; None if unknown."""
        return unrelated_cosines(self.quiet_queries)

    def knows(self, word: str) -> bool:
        """Return whether a lower-case word is a single entry of the model's vocabulary, and so hardly a typo."""
        tokenizer: Any = getattr(self.model, "tokenizer", None)
        if isinstance(self.model, NumpyEmbedder):
            return tokenizer.token_to_id(word) is not None
        to_id = getattr(tokenizer, "convert_tokens_to_ids", None)
        return to_id is not None and to_id(word) not in (None, tokenizer.unk_token_id)

    def late(self, query: str, of_query: Vectors, texts: Sequence[str], vectors: Vectors) -> Late | None:
        """Return what a query's tokens find in passages (n,), by the unit vectors of both; None if that is unknown.

        Only a Contextualizer has it.
        """
        model: Any = self.model
        with warnings.catch_warnings():
            # These texts were read before, with warnings.
            warnings.simplefilter("ignore")
            if isinstance(model, NumpyEmbedder):
                ids, lengths = model.tokens([query, *texts])
                packed = model.contextualizer
            else:
                module: Any = model[0] if hasattr(model, "__getitem__") else None
                if not hasattr(module, "without_torch"):
                    return None
                ids, lengths = module.text_tokenizer.read([query, *texts], None, module.max_seq_length)
                packed = module.without_torch(ids)
        own = int(lengths[0])
        if not own or not of_query.any():
            return None
        from ctx_embed.numpy_model.late import late_interaction

        return late_interaction(packed, ids[:own], of_query, ids[own:], lengths[1:], vectors)

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors (len(texts), dimension) of documents; raise InputError if the model returns none."""
        return self._unit_vectors(self.model.encode_document, texts)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors (len(texts), dimension) of queries, see :meth:`documents`."""
        return self._unit_vectors(self.model.encode_query, texts)

    def quiet_queries(self, texts: Sequence[str]) -> Vectors:
        """Return :meth:`queries` of texts that no user wrote, without warnings of what the model cannot read."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.queries(texts)

    def _unit_vectors(self, encode: Callable[..., Any], texts: Sequence[str]) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        # The Embedder batches the texts itself.
        batches_itself = isinstance(self.model, NumpyEmbedder)
        for batch in [list(range(len(texts)))] if batches_itself else length_batches(texts):
            options = {} if batches_itself else {"batch_size": len(batch), "show_progress_bar": False}
            require_time()
            embeddings = encode([texts[place] for place in batch], **options)
            if embeddings.shape != (len(batch), self.dimension):
                raise InputError(f"the model must return vectors ({self.dimension},), got {embeddings.shape[1:]}")
            finite = np.isfinite(embeddings).all(1)
            if not finite.all():
                text = texts[batch[int(np.argmin(finite))]]
                raise InputError(f"the model returns NaN or infinity for the text {text[:40]!r}")
            vectors[batch] = unit_rows(embeddings)
        return vectors
