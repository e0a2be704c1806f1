"""The embedder without torch: texts in, vectors out; and the K steps over packed token ids that it runs.

The kernel, if it is compiled, and :mod:`ctx_embed.second_order` compute the same numbers up to rounding.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ctx_embed import second_order
from ctx_embed.deadlines import require_time
from ctx_embed.errors import InputError, UnknownTextsWarning, described, unknown_name, warn
from ctx_embed.kernel import kernel
from ctx_embed.kernel.library import Model
from ctx_embed.numpy_model.saved import (
    DEFAULT_MODEL,
    Floats,
    SavedContextualizer,
    TokenTable,
    computed_fingerprint,
    named_folder,
    saved_fingerprint,
    write_contents,
)
from ctx_embed.options import DEFAULT, require_size
from ctx_embed.progress import Meter
from ctx_embed.second_order import Steps
from ctx_embed.text.tokenizer import Phrases, TextTokenizer
from ctx_embed.texts import as_texts, well_formed
from ctx_embed.vectors import comparable, unit_rows

if TYPE_CHECKING:
    from ctx_embed.numpy_model.document_state import DocumentState

# Limits of a batch, whose tokens and products are all in memory at once; a longer text is a batch of its own.
BATCH_CHARACTERS = 1 << 20
BATCH_TEXTS = 4096
# Threads share texts of more characters than this.
PARALLEL_CHARACTERS = 1 << 15
# Maximum bytes of products that the kernel stores: enough for 62,000 of the default model's 99,000 entries.
HELD_BYTES = 112 << 20
# Without the kernel: maximum tokens to send through the steps at once; longer texts are summed block by block.
BLOCK_TOKENS = 4096

# The names under which models store prompts for queries and documents; the first one that a model has is used.
TASK_PROMPTS: dict[str | None, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}

# Attributes of an embedder that its pickle holds; users may set all but the first, and the last one changes it.
PICKLED = ("fingerprint", "prompts", "default_prompt_name", "truncate_dim", "max_seq_length")

Precision = Literal["float32", "int8", "ubinary"]
Ids = NDArray[np.int32] | NDArray[np.int64]
Lengths = NDArray[np.int64]


def int8(vectors: Floats) -> NDArray[np.int8]:
    """Return each vector (B, m) times 127 / its largest absolute value: cosines stay, and the batch does not matter."""
    largest = np.abs(vectors).max(1, keepdims=True)
    return np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)


PRECISIONS: dict[str, Callable[[Floats], NDArray[Any]]] = {
    "float32": np.asarray,
    "int8": int8,
    "ubinary": lambda vectors: np.packbits(vectors > 0, axis=1),
}


def available_threads() -> int:
    """Return how many threads may work at once: ``OMP_NUM_THREADS``, or the number of processors that we may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batches(texts: list[str], size: int) -> list[slice]:
    """Return batches; those in memory at one time have at most ``size`` texts, and bounded characters, together."""
    most, total = BATCH_CHARACTERS, sum(map(len, texts))
    if size >= len(texts) and total <= PARALLEL_CHARACTERS:
        return [slice(0, len(texts))]
    if total > PARALLEL_CHARACTERS and (threads := available_threads()) > 1:
        # Each thread gets at least two batches, so that none waits long for another; round up, so that no text is left.
        most = min(most // threads, total // (2 * threads) + total // len(texts))
        size = -(-size // threads)
    parts, start, characters = [], 0, 0
    for place, text in enumerate(texts):
        if place > start and (place - start == size or characters + len(text) > most):
            parts.append(slice(start, place))
            start, characters = place, 0
        characters += len(text)
    return [*parts, slice(start, len(texts))]


def embed_in_batches(
    texts: list[str],
    embed: Callable[[list[str]], tuple[NDArray[Any], NDArray[np.bool_]]],
    size: int,
    show_progress: bool,
) -> tuple[NDArray[Any], list[str]]:
    """Embed texts batch by batch, several threads at once, and return those that the model cannot read, too.

    ``embed`` embeds at most ``size`` texts and marks those that it cannot read.
    """
    if len(texts) < 2 or len(parts := batches(texts, size)) == 1:
        vectors, unread = embed(texts)
        return vectors, [texts[place] for place in unread.nonzero()[0]]
    threads = available_threads()
    from concurrent.futures import ThreadPoolExecutor

    vectors, unread = np.empty((0, 0), np.float32), np.zeros(len(texts), np.bool_)
    meter = Meter("encoding", len(texts), shown=show_progress, leave=False)
    with meter, ThreadPoolExecutor(threads) as pool:
        given = (texts[part] for part in parts)
        # Each part has the deadline of this thread.
        results = (
            map(embed, given)
            if threads == 1
            else pool.map(lambda part, context: context.run(embed, part), given, iter(copy_context, None))
        )
        for part, (converted, empty) in zip(parts, results, strict=True):
            if not len(vectors):
                vectors = np.empty((len(texts), *converted.shape[1:]), converted.dtype)
            vectors[part] = converted
            unread[part] = empty
            meter.update(len(converted))
    return vectors, [texts[place] for place in unread.nonzero()[0]]


def require_dimensions(truncate_dim: int | None, dimension: int | None) -> None:
    """Refuse to keep more features than a model has; None keeps all."""
    if truncate_dim is None:
        return
    require_size("truncate_dim", truncate_dim)
    if dimension is not None and truncate_dim > dimension:
        raise InputError(f"truncate_dim must be at most {dimension}, the model's features, got {truncate_dim}")


@dataclass(frozen=True)
class TokenWeight:
    """The weight that a token, characters ``start`` to ``stop`` of a text, adds to a cosine. It may be negative."""

    text: str
    start: int
    stop: int
    weight: float


@dataclass(frozen=True)
class CosineParts:
    """A cosine split into the parts that the tokens of a text add.

    Attributes:
        text: the text.
        tokens: its tokens in their order.
        rest: the part of c^0, of the biases of the layer normalisations, and of a prompt.
    """

    text: str
    tokens: list[TokenWeight]
    rest: float

    @property
    def cosine(self) -> float:
        """The sum of all parts."""
        return self.rest + sum(token.weight for token in self.tokens)


class PackedContextualizer:
    """A Contextualizer that embeds packed token ids, from the options and parameters of the steps by name.

    Parameters must not change. ``s`` are the slopes (m,) of the position weights; arbitrary if there are no position
    weights. Several threads may embed at once.
    """

    def __init__(self, config: Mapping[str, Any], table: TokenTable, parameters: Mapping[str, Floats]) -> None:
        self.dimension: int = config["dimension"]
        self.positions: str = config["positions"]
        self.scale: str = config["scale"]
        self.initial_context: str = config["initial_context"]
        self.table = table
        self.steps = Steps(*(parameters[name] for name in Steps._fields))
        self.c0: Floats = parameters["c0"] if self.initial_context == "learned" else np.ones(self.dimension, np.float32)
        is_bag, is_mean = self.positions == "none", self.scale == "mean"
        self.s = self.c0 if is_bag else parameters["s"]
        (K, u, m), shared = self.steps.U.shape, is_bag and is_mean and self.initial_context != "uniform"
        arrays = {"c0": self.c0, "s": None if is_bag else self.s, "scales": table.scales, **self.steps._asdict()}
        arrays["rows" if table.scales is None else "levels"] = table.values
        held = HELD_BYTES // (4 * ((m if shared else 0) + (K - shared) * u))
        sizes = (m, K, u, len(table.values), shared, is_mean, self.positions == "relative", held)
        in_c = kernel()
        self._in_c = None if in_c is None else Model(in_c, sizes, arrays)

    def first_contexts(self, ids: Ids, lengths: Lengths) -> Floats:
        """Return c^0 of packed texts, (B, m)."""
        if self.initial_context != "uniform":
            return np.broadcast_to(self.c0, (len(lengths), self.dimension))
        offsets = np.concatenate([[0], lengths.cumsum()])
        contexts: Floats = second_order.initial_context(self.initial_context, self.c0, ids, offsets)
        return contexts

    def embed(self, ids: Ids, lengths: Lengths, counts: Lengths | None = None) -> Floats:
        """Return c^K of packed texts, (B, m). Those of texts without tokens are c^0.

        ``counts`` (N,) says how often each id occurs in its text, of one text without positions; None: once.
        """
        self.table.require_unchanged()
        # The kernel checks ids of 32 bits itself.
        checked = self._in_c is not None and ids.dtype == np.int32
        if checked or not len(ids) or 0 <= ids.min() <= ids.max() < len(self.table.values):
            if self._in_c is None:
                return self._by_equations(ids, lengths, counts)
            contexts = np.empty((len(lengths), self.dimension), np.float32)
            contexts[:] = self.first_contexts(ids, lengths)
            if self._in_c.embed(ids, lengths, counts, contexts):
                self.table.require_unchanged()
                return contexts
        raise IndexError(f"ids must be rows of the table, got {ids.min()} to {ids.max()}")

    # Weights that have diverged give infinities and NaN, as with torch; callers report those.
    @np.errstate(over="ignore", invalid="ignore")
    def _by_equations(self, ids: Ids, lengths: Lengths, counts: Lengths | None) -> Floats:
        """Do the work of :meth:`embed` with the equations: in groups of texts, or in blocks of a long text."""
        if counts is not None and len(ids):
            weight = 1 if self.scale == "mean" else 1 / counts.sum()
            U = self.steps.U.reshape(-1, self.dimension)
            G, t = np.zeros((self.dimension, len(U))), np.zeros(self.dimension)
            for start in range(0, len(ids), BLOCK_TOKENS):
                block = slice(start, start + BLOCK_TOKENS)
                x, count = self.table.rows(ids[block]).astype(np.float64), counts[block][:, None]
                G += x.T @ ((x @ U.T) * count)
                t += (x * count).sum(0)
            context = second_order.recurrence(G * weight**2, t * weight, self.c0, self.steps)
            return np.asarray(context[None], np.float32)
        contexts = [np.empty((0, self.dimension), np.float32)]
        ends, start = lengths.cumsum(), 0
        while start < len(lengths):
            before = int(ends[start] - lengths[start])
            stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK_TOKENS, side="right")))
            part, sizes = ids[before : int(ends[stop - 1])], lengths[start:stop]
            offsets, context = np.append(0, sizes.cumsum()), self.first_contexts(part, sizes)
            if len(part) > BLOCK_TOKENS:
                how, slopes = {"kind": self.positions, "scale": self.scale}, self.s.astype(np.float64)
                read = second_order.long_document(self.table.rows, part, context[0], self.steps, slopes, **how)[None]
            else:
                read = second_order.direct(self.weighted(part, offsets), offsets, context, self.steps)[-1]
            contexts.append(read.astype(np.float32))
            start = stop
        return np.concatenate(contexts)

    def weighted(self, ids: Ids, offsets: Lengths) -> Floats:
        """Return the weighted tokens x_i = e(w_i) * p(i), (N, m), of texts that begin at the offsets (B + 1,)."""
        if self.positions == "none":
            # The same weights without a softmax, which takes longer than the kernel for a short text.
            n, one = np.maximum(np.diff(offsets), 1).astype(np.float32), np.float32(1)
            weights = np.repeat(one / n * n if self.scale == "mean" else one / n, np.diff(offsets))[:, None]
        else:
            weights = second_order.position_weights(offsets, self.s, kind=self.positions, scale=self.scale)
        x: Floats = self.table.rows(ids) * weights
        return x

    def nearest_tokens(
        self, query: Ids, tokens: Floats, ids: Ids, lengths: Lengths, contexts: Floats
    ) -> tuple[Floats, NDArray[np.int32], Lengths]:
        """Return :meth:`ctx_embed.kernel.library.Model.nearest`, with the kernel or by the equations."""
        # The place of each id among those that occur, without sorting; ids below 0 are none, either.
        order = np.full(len(self.table.values), -1, np.int32)
        order[ids.astype(np.uint32)] = 0
        entries = np.flatnonzero(order == 0)
        order[entries] = np.arange(len(entries))
        names, at = order[query], order[ids]
        if self._in_c is not None:
            return self._in_c.nearest(self.table.stored(entries), names, tokens, at, lengths, contexts)
        rows = unit_rows(self.table.rows(entries)[:, : tokens.shape[1]])
        products = rows @ tokens.T
        best, places = np.full((2, len(lengths), len(tokens)), -1, np.float32)
        having = np.zeros(len(query), np.int64)
        for passage, (own, context) in enumerate(zip(np.split(at, lengths.cumsum()[:-1]), contexts, strict=True)):
            if len(own):
                # The row of a token may be zero.
                squares = rows[own].any(1) + 2 * (rows[own] @ context) + context @ context + 1e-12
                cosines = (products[own] + tokens @ context) / np.sqrt(squares)[:, None]
                best[passage], places[passage] = cosines.max(0), cosines.argmax(0)
                having += np.isin(names, own)
        return best, places.astype(np.int32), having

    def added_by_tokens(self, ids: Ids) -> Floats:
        """Return what each token of a text adds to c^K, (n, m): the sum of its contributions to all z^k."""
        offsets = np.array([0, len(ids)])
        x, context = self.weighted(ids, offsets), self.first_contexts(ids, offsets[1:])
        if self._in_c is not None:
            return self._in_c.added(x, context)
        contexts = second_order.direct(x, offsets, context, self.steps)
        added: Floats = np.sum(list(second_order.contributions_of_steps(x, offsets, contexts, self.steps)), axis=0)
        return added

    def contributions(self, ids: Ids) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return what each token of a text adds to z^k (K, n, m), its share (K, n), and c^0..c^K (K + 1, m)."""
        offsets = np.array([0, len(ids)])
        first = self.first_contexts(ids, offsets[1:]).astype(np.float64)
        x = self.weighted(ids, offsets).astype(np.float64)
        steps = Steps(*(parameter.astype(np.float64) for parameter in self.steps))
        contexts = second_order.direct(x, offsets, first, steps)
        vectors = np.stack(list(second_order.contributions_of_steps(x, offsets, contexts, steps)))
        return vectors, second_order.shares_of_steps(x, offsets, contexts, steps), contexts[:, 0]


class Embedder:
    """A Contextualizer that embeds texts with NumPy alone, from the same files as :func:`ctx_embed.load`.

    Unit vectors agree with those of the SentenceTransformer within 2e-5, and fingerprints are equal, so both can use
    the same indexes. The token table stays on disk; rows are read when a text needs them.

    Attributes:
        saved: the model's files.
        contextualizer: the K steps.
        tokenizer: the tokenizer, without phrases; padding and truncation are off.
        text_tokenizer: turns texts into packed ids, and merges phrases.
        prompts: by name, the texts that :meth:`encode_query` and :meth:`encode_document` put before each text.
        default_prompt_name: the name of the prompt that :meth:`encode` uses by default.
        truncate_dim: the number of features that vectors keep; None keeps all.
        max_seq_length: maximum tokens read per text, None for all; you are warned if a text is cut.

    Example:
        >>> from ctx_embed.numpy_model import Embedder
        >>> Embedder.load().encode(["a text", "another one"]).shape
        (2, 320)
    """

    def __init__(self, saved: SavedContextualizer) -> None:
        self.saved = saved
        self.contextualizer = PackedContextualizer(saved.config, saved.table, saved.parameters)
        self.tokenizer = saved.tokenizer
        phrases = None if saved.phrases is None else Phrases(saved.phrases, saved.tokenizer.get_vocab_size())
        self.text_tokenizer = TextTokenizer(saved.tokenizer, phrases)
        self.prompts: dict[str, str] = dict(saved.settings.get("prompts") or {})
        self.default_prompt_name: str | None = saved.settings.get("default_prompt_name")
        self.truncate_dim: int | None = saved.settings.get("truncate_dim")
        require_dimensions(self.truncate_dim, self.contextualizer.dimension)
        self.max_seq_length: int | None = saved.config["max_seq_length"]
        self._fingerprints: dict[int | None, str] = {}

    @property
    def _name(self) -> str:
        """What :meth:`load` takes: the folder, or ``default``, whose place differs between machines."""
        return DEFAULT if self.saved.folder == DEFAULT_MODEL else str(self.saved.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: getattr(self, name) for name in PICKLED}
        if self.saved.folder == DEFAULT_MODEL:
            return Embedder.load, (self._name,), state
        # Its files: their folder may be gone, or hold another model, where the pickle is read.
        return unpacked, (self.saved.contents(),), state

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self.__dict__.update({name: pickled[name] for name in PICKLED[1:]})
        here, expected = self.fingerprint[:12], pickled["fingerprint"][:12]
        if here != expected:
            raise InputError(f"{self._name} holds the model {here}, but {expected} was pickled; pickle it again")

    def __repr__(self) -> str:
        return f"Embedder({self._name!r}, {self.dimension} dimensions)"

    @classmethod
    def load(cls, path: str | Path | None = None) -> Embedder:
        """Load a saved Contextualizer.

        Args:
            path: a model folder, or the name of a packaged model; None or ``default`` is the model of this package.

        Raises:
            UnsupportedModelError: the model needs torch; load it with :func:`ctx_embed.load`.
            InputError: there is no model, or it is damaged.
        """
        name = DEFAULT if path is None else str(path)
        return cls(SavedContextualizer(named_folder(name) or Path(name)))

    @property
    def dimension(self) -> int:
        """The number of features of a vector."""
        whole = self.contextualizer.dimension
        return whole if self.truncate_dim is None else self.truncate_dim

    @property
    def fingerprint(self) -> str:
        """The identity of the model: 64 hexadecimal digits, as by :func:`ctx_embed.fingerprint.fingerprint`."""
        length = self.max_seq_length
        if length not in self._fingerprints:
            is_saved, changed = length == self.saved.config["max_seq_length"], {"max_seq_length": length}
            of_changed = None if is_saved else computed_fingerprint(self.saved, changed)
            self._fingerprints[length] = of_changed or saved_fingerprint(self.saved)
        return self._fingerprints[length]

    def encode(
        self,
        texts: str | Iterable[str],
        batch_size: int = BATCH_TEXTS,
        *,
        normalize: bool | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        precision: Precision = "float32",
        show_progress: bool = False,
    ) -> NDArray[Any]:
        """Embed texts. A text gets the same vector alone and in any batch.

        Args:
            texts: a string or several.
            batch_size: texts at a time, at most; long texts come in smaller batches. It bounds memory.
            normalize: True returns unit vectors, also after ``truncate_dim``; False returns c^K itself; None does
                as the model's files say.
            prompt: put before each text; None puts the default prompt there, if the model has one.
            truncate_dim: features kept; None keeps what the model's files say.
            precision: ``float32``, ``int8`` (each vector times 127 / its largest absolute value, so that cosines stay)
                or ``ubinary`` (a bit a feature, eight in a byte: whether it is above 0).
            show_progress: on standard error.

        Returns:
            (texts, dimension), (texts, dimension / 8 rounded up) of ``ubinary``; without the first axis for a single
            string.

        Raises:
            InputError: a text is not a string, or an option cannot be used.
        """
        require_size("batch_size", batch_size)
        listed: list[str] = [texts] if isinstance(texts, str) else as_texts(texts)
        before = self._prompt(prompt)

        def embedded(part: list[str]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            ids, lengths = self.text_tokenizer.read(part, before, self.max_seq_length)
            require_time()
            contexts = self.contextualizer.embed(ids, lengths)
            return self.finished(contexts, lengths, normalize, truncate_dim, precision), lengths == 0

        vectors, unread = embed_in_batches(listed, embedded, batch_size, show_progress)
        if unread:
            zeros = self.saved.normalize if normalize is None else normalize
            warn(UnknownTextsWarning(unread, len(unread), len(listed), bool(zeros)))
        return vectors[0] if isinstance(texts, str) else vectors

    def tokens(self, texts: list[str], prompt: str | None = None) -> tuple[Ids, Lengths]:
        """Return the ids that :meth:`encode` reads, of all texts one after the other, and each text's number of ids.

        Prompts are included and texts are cut to ``max_seq_length``; a text that the model cannot read has no ids.
        """
        return self.text_tokenizer.read(texts, self._prompt(prompt), self.max_seq_length)

    def finished(
        self,
        contexts: Floats,
        lengths: Lengths,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        precision: Precision = "float32",
    ) -> NDArray[Any]:
        """Return the vectors that :meth:`encode` returns, given contexts c^K (B, m) and tokens in each text (B,)."""
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        kept = self.truncate_dim if truncate_dim is None else truncate_dim
        require_dimensions(kept, self.contextualizer.dimension)
        if (normalize or (normalize is None and self.saved.normalize)) and np.count_nonzero(lengths) < len(lengths):
            contexts = np.where(lengths[:, None] > 0, contexts, np.float32(0))
        if normalize is not False and self.saved.normalize:
            contexts = unit_rows(contexts)
        contexts = contexts[:, :kept]
        return PRECISIONS[precision](unit_rows(contexts) if normalize else contexts)

    def state(self, stored: bytes | bytearray | memoryview | None = None) -> DocumentState:
        """Return the state of an empty growing text, or the state that :meth:`DocumentState.to_bytes` stored.

        Raises:
            InputError: embeddings of this model cannot grow, or ``stored`` is not a state of this model.
        """
        from ctx_embed.numpy_model.document_state import DocumentState

        state = DocumentState(self)
        if stored is not None:
            state.restore(stored)
        return state

    def encode_query(self, texts: str | Iterable[str], *, prompt: str | None = None, **options: Any) -> NDArray[Any]:
        """Embed queries like :meth:`encode`, with the model's prompt for queries if it has one."""
        return self.encode(texts, prompt=self._prompt(prompt, "query"), **options)

    def encode_document(self, texts: str | Iterable[str], *, prompt: str | None = None, **options: Any) -> NDArray[Any]:
        """Embed documents like :meth:`encode`, with the model's prompt for documents if it has one."""
        return self.encode(texts, prompt=self._prompt(prompt, "document"), **options)

    def explain(self, text: str, vector: Any, task: Literal["query", "document"] = "document") -> CosineParts:
        """Return what each token of a text adds to the cosine of its vector with another one, exactly.

        Args:
            text: the text, embedded as by :meth:`encode_query` or :meth:`encode_document`.
            vector: (dimension,) the embedding of another text.
            task: which of the two methods embeds ``text``.

        Raises:
            InputError: the vector has another number of features.
        """
        direction = np.asarray(vector, np.float64)
        if direction.shape != (self.dimension,):
            raise InputError(f"the vector must have shape ({self.dimension},), got {direction.shape}")
        text, prompt = well_formed(text), self._prompt(None, task) or ""
        ids, _ = self.tokens([text], prompt)
        if not len(ids):
            return CosineParts(text, [], 0.0)
        whole = np.zeros(self.contextualizer.dimension)
        whole[: self.dimension] = direction / max(float(np.linalg.norm(direction)), 1e-12)
        vectors, _, contexts = self.contextualizer.contributions(ids)
        whole /= max(float(np.linalg.norm(contexts[-1, : self.dimension])), 1e-12)
        tokens = []
        # A text cut to max_seq_length has more spans than tokens.
        spans = self.text_tokenizer.spans(prompt + text)
        for (start, stop), part in zip(spans, (vectors @ whole).sum(0).tolist(), strict=False):
            begin, end = start - len(prompt), stop - len(prompt)
            if begin >= 0:
                tokens.append(TokenWeight(text[begin:end], begin, end, part))
        return CosineParts(text, tokens, float(contexts[-1] @ whole) - sum(token.weight for token in tokens))

    def similarity(self, left: Any, right: Any) -> Floats:
        """Return the similarity of each left vector with each right one, (left, right) float32.

        It is the cosine, or the inner product if the model's files say ``dot``. Vectors may have any precision.

        Raises:
            InputError: vectors are neither floats, int8 nor packed bits, or too wide for the model.
        """
        kept, whole = self.dimension, self.contextualizer.dimension
        a, b = (comparable(np.atleast_2d(np.asarray(each)), kept, whole).astype(np.float32) for each in (left, right))
        if self.saved.settings.get("similarity_fn_name") != "dot":
            a, b = unit_rows(a), unit_rows(b)
        similarities: Floats = a @ b.T
        return similarities

    def _prompt(self, given: str | None, task: str | None = None) -> str | None:
        """Return the given prompt, else the one for a task, else the default one; None if the model has none."""
        if not isinstance(given, str | None):
            raise InputError(f"prompt must be a string, got {described(given)}")
        names = [name for name in TASK_PROMPTS.get(task, ()) if name in self.prompts]
        prompt = self.prompts[names[0]] if given is None and names else given
        if prompt is not None or self.default_prompt_name is None:
            return prompt
        if self.default_prompt_name not in self.prompts:
            raise unknown_name("prompt", self.default_prompt_name, self.prompts)
        return self.prompts[self.default_prompt_name]


def unpacked(contents: dict[str, bytes]) -> Embedder:
    """Return the embedder of a model's files, see :meth:`SavedContextualizer.contents`."""
    with tempfile.TemporaryDirectory(prefix="ctx-embed-", ignore_cleanup_errors=True) as folder:
        write_contents(Path(folder), contents)
        return Embedder.load(folder)
