"""Embeddings of growing texts: a text is read piece by piece, in constant memory, and states can be merged.

The steps read a text only through sums over its tokens, whose size is constant, and which can be merged.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, described
from ctx_embed.numpy_model.saved import Floats
from ctx_embed.second_order import recurrence
from ctx_embed.text.tokenizer import is_read

if TYPE_CHECKING:
    from ctx_embed.numpy_model.embedder import Embedder, Ids, PackedContextualizer

MAGIC = b"ctx-embed state 1\n"
WORD = re.compile(r"\S+")
# Number of words to tokenize at a time when searching for a cut, and of tokens to sum at a time.
WORDS_AT_ONCE, TOKENS_AT_ONCE = 32, 4096
# Number of added characters that are collected before cuts are searched for.
ADDED_CHARACTERS = 256
# Maximum bytes of a stored state apart from its sums: the text around both ends, and headers.
LARGEST_ENDS = 1 << 24
# Maximum number of tokens, or words, in a text; doubles count exactly up to it.
MOST_TOKENS = 1 << 53


class Counts:
    """The count of each vocabulary entry in a text: all that the steps need if positions do not matter.

    There are at most as many counts as the vocabulary has entries.
    """

    def __init__(self, contextualizer: PackedContextualizer) -> None:
        self._contextualizer = contextualizer
        self.entries: NDArray[np.int32] = np.empty(0, np.int32)
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, ids: Ids) -> None:
        """Count further tokens."""
        added = Counts(self._contextualizer)
        added.entries, added.counts = np.unique(ids, return_counts=True)
        self.merge(added)

    def merge(self, other: Counts) -> None:
        """Add the counts of another text."""
        counts = np.concatenate([self.counts, other.counts])
        self.entries, place = np.unique(np.concatenate([self.entries, other.entries]), return_inverse=True)
        self.counts = np.bincount(place, counts, minlength=len(self.entries)).astype(np.int64)

    def context(self) -> Floats:
        """Return c^K (m,) of the text."""
        context: Floats = self._contextualizer.embed(self.entries, np.array([len(self.entries)]), self.counts)[0]
        return context

    def arrays(self) -> list[NDArray[Any]]:
        """Return what :meth:`restore` takes."""
        return [self.entries, self.counts]

    def restore(self, arrays: list[NDArray[Any]]) -> None:
        """Take over arrays from another object of this class."""
        entries, counts = arrays
        if entries.ndim != 1 or entries.shape != counts.shape or entries.dtype != np.int32 or counts.dtype != np.int64:
            raise ValueError("entries and counts do not fit")
        if len(entries) and not 0 <= entries.min() <= entries.max() < len(self._contextualizer.table.values):
            raise ValueError("an entry is not in the vocabulary")
        if not (np.diff(entries) > 0).all():
            raise ValueError("an entry occurs twice")
        if len(counts) and not 1 <= counts.min() <= counts.max() <= MOST_TOKENS:
            raise ValueError(f"counts must lie between 1 and {MOST_TOKENS:,}")
        self.entries, self.counts = entries, counts


class Moments:
    """For absolute positions: M = sum_i y_i y_i^T, t = sum_i y_i and Z = sum_i exp(i s), with y_i = e(w_i) exp(i s).

    If text B follows text A, M = M_A + D M_B D, t = t_A + D t_B and Z = Z_A + D Z_B with D = diag(exp(n_A s)). All sums
    are stored divided by exp(L), where L is the largest exponent of each feature, so that nothing overflows.
    """

    def __init__(self, contextualizer: PackedContextualizer) -> None:
        m = contextualizer.dimension
        self._contextualizer = contextualizer
        self._s = contextualizer.s.astype(np.float64)
        self.n = 0
        self.L = np.full(m, -np.inf)
        self.Z, self.t, self.M = np.zeros(m), np.zeros(m), np.zeros((m, m))

    def add(self, ids: Ids) -> None:
        """Append further tokens."""
        for start in range(0, len(ids), TOKENS_AT_ONCE):
            block = ids[start : start + TOKENS_AT_ONCE]
            logits = np.arange(1, len(block) + 1)[:, None] * self._s
            L = logits.max(0)
            weights = np.exp(logits - L)
            y = self._contextualizer.table.rows(block) * weights
            self._append(len(block), L, weights.sum(0), y.sum(0), y.T @ y)

    def merge(self, other: Moments) -> None:
        """Append the tokens of another text."""
        self._append(other.n, other.L, other.Z, other.t, other.M)

    def _append(self, n: int, L: Any, Z: Any, t: Any, M: Any) -> None:
        if n == 0:
            return
        shifted = L + self.n * self._s
        largest = np.maximum(self.L, shifted)
        old, new = np.exp(self.L - largest), np.exp(shifted - largest)
        self.n, self.L = self.n + n, largest
        self.Z = old * self.Z + new * Z
        self.t = old * self.t + new * t
        self.M = old[:, None] * self.M * old + new[:, None] * M * new

    def context(self) -> Floats:
        """Return c^K (m,) of the text, which has a token."""
        weight = (self.n if self._contextualizer.scale == "mean" else 1) / self.Z
        steps = self._contextualizer.steps
        # G_k = M U_k^T
        G = (weight[:, None] * self.M * weight) @ steps.U.reshape(-1, len(weight)).T
        return np.asarray(recurrence(G, weight * self.t, self._contextualizer.c0, steps), np.float32)

    def arrays(self) -> list[NDArray[Any]]:
        """Return what :meth:`restore` takes."""
        return [np.array([self.n]), self.L, self.Z, self.t, self.M]

    def restore(self, arrays: list[NDArray[Any]]) -> None:
        """Take over arrays from another object of this class."""
        m = len(self._s)
        if [array.shape for array in arrays] != [(1,), (m,), (m,), (m,), (m, m)]:
            raise ValueError("the moments are of another dimension")
        n, L, Z, t, M = arrays
        if n.dtype != np.int64 or any(array.dtype != np.float64 for array in (L, Z, t, M)):
            raise ValueError("the moments are of another type")
        if not 0 <= n[0] <= MOST_TOKENS:
            raise ValueError(f"the number of tokens must lie between 0 and {MOST_TOKENS:,}")
        if n[0] and not (all(np.isfinite(array).all() for array in (L, Z, t, M)) and (Z > 0).all()):
            raise ValueError("the moments are not finite")
        self.n, self.L, self.Z, self.t, self.M = int(n[0]), L, Z, t, M


class DocumentState:
    """A growing text whose embedding is available at any time; made by :meth:`Embedder.state`.

    However the text is cut into pieces, even inside a word, the embedding is that of the whole text. The state's size
    does not grow with the text, apart from the words around both ends.

    Example:
        >>> embedder = Embedder.load()
        >>> first, second = embedder.state(), embedder.state()
        >>> first.add("The cat sat on the m")
        >>> second.add("at and slept.")
        >>> first.merge(second)
        >>> first.embedding()  # that of "The cat sat on the mat and slept."

    Args:
        embedder: the embedder that reads the text.

    Raises:
        InputError: the model's embeddings cannot grow: each token's weight depends on the length of the text
            (``positions="relative"``), c^0 on all of it (``initial_context="uniform"``), its end is cut off
            (``max_seq_length``), or its tokenizer joins words.
    """

    def __init__(self, embedder: Embedder) -> None:
        contextualizer = embedder.contextualizer
        reasons = {
            'positions="relative"': contextualizer.positions == "relative",
            'initial_context="uniform"': contextualizer.initial_context == "uniform",
            f"max_seq_length={embedder.max_seq_length}": embedder.max_seq_length is not None,
            "a tokenizer that joins words": not embedder.text_tokenizer.wordwise,
        }
        for reason, holds in reasons.items():
            if holds:
                raise InputError(f"the model cannot extend a text: it has {reason}; embed the whole text at once")
        self._embedder = embedder
        # Until a safe cut is found, the whole text is the head; then the sums replace the text between head and tail.
        self._head = ""
        self._tail = ""
        # Text added after head or tail, not yet searched for cuts.
        self._added: list[str] = []
        self._characters = 0
        self._sums = self._new_sums()
        # The evidence of how well the model knows the text in the sums.
        self._evidence = np.zeros((1, 4), np.int64)
        self._cut = False

    def __reduce__(self) -> tuple[Any, ...]:
        return self._embedder.state, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"DocumentState({self._embedder!r})"

    def _new_sums(self) -> Any:
        contextualizer = self._embedder.contextualizer
        return Moments(contextualizer) if contextualizer.positions == "absolute" else Counts(contextualizer)

    def add(self, text: str) -> None:
        """Append text, without a separator.

        Raises:
            InputError: the text is not a string.
        """
        if not isinstance(text, str):
            raise InputError(f"text must be a string, got {described(text)}")
        self._added.append(text)
        self._characters += len(text)
        # Text without a safe cut is read again as a whole, but only once it has doubled, so the total time is linear.
        if self._characters >= max(ADDED_CHARACTERS, len(self._tail if self._cut else self._head)):
            self._settle()

    def _settle(self) -> None:
        """Move added text to the head and the tail, and text before the last safe cut to the sums."""
        text = "".join(self._added)
        self._added, self._characters = [], 0
        if not text:
            return
        if not self._cut:
            self._head += text
            first = self._cut_of(self._head, last=False)
            if first is None:
                return
            self._head, text = self._head[:first], self._head[first:]
            self._cut = True
        self._tail += text
        last = self._cut_of(self._tail, last=True)
        if last is not None:
            self._grow(self._tail[:last])
            self._tail = self._tail[last:]

    def merge(self, other: DocumentState) -> None:
        """Append the text of another state, without a separator. The other state does not change.

        Raises:
            InputError: the other state belongs to another model.
        """
        if not isinstance(other, DocumentState) or other._embedder.fingerprint != self._embedder.fingerprint:
            raise InputError("the other state must be a DocumentState of the same model")
        if other is self:
            other = self._embedder.state(self.to_bytes())
        self._settle()
        other._settle()
        if not other._cut:
            self.add(other._head)
            return
        if self._cut:
            self._tail += other._head
        else:
            self.add(other._head)
            self._settle()
        # The end of the other state's head is its first safe cut.
        if self._cut:
            self._grow(self._tail)
        self._cut = True
        self._sums.merge(other._sums)
        self._evidence = self._evidence + other._evidence
        self._tail = other._tail

    def embedding(self, **options: Any) -> NDArray[Any]:
        """Return the embedding of the text so far.

        Args:
            **options: ``normalize``, ``truncate_dim`` and ``precision``, as those of :meth:`Embedder.encode`.

        Returns:
            (dimension,).
        """
        self._settle()
        (head, of_head), (tail, of_tail) = self._read(self._head), self._read(self._tail)
        sums = self._new_sums()
        sums.add(head)
        sums.merge(self._sums)
        sums.add(tail)
        read = is_read(self._evidence + of_head + of_tail)
        context: Floats = sums.context() if read[0] else self._embedder.contextualizer.c0
        embedding: NDArray[Any] = self._embedder.finished(context[None], read.astype(np.int64), **options)[0]
        return embedding

    def _cut_of(self, text: str, *, last: bool) -> int | None:
        """Return the first safe cut in the head, or the last one in the tail: the start of a word; None without one.

        A safe cut leaves pieces with the same tokens as the whole text: no phrase can reach across it, since phrases
        join only at certain pairs of entries. The text's last word may continue later; the head's first one may have
        begun earlier.
        """
        tokenizer = self._embedder.text_tokenizer
        junctions = set() if tokenizer.phrases is None else tokenizer.phrases.junctions
        spans = [match.span() for match in WORD.finditer(text)]
        spans = [(begin, end) for begin, end in spans if (last or begin > 0) and end < len(text)]
        starts = range(0, len(spans) - 1, WORDS_AT_ONCE)
        for start in reversed(starts) if last else starts:
            run = spans[start : start + WORDS_AT_ONCE + 1]
            ids, lengths = tokenizer([text[begin:end] for begin, end in run], merged=False)
            tokens = [part.tolist() for part in np.split(ids, lengths.cumsum()[:-1])]
            safe = [
                begin
                for (begin, _), left, right in zip(run[1:], tokens, tokens[1:], strict=False)
                if left and right and (left[-1], right[0]) not in junctions
            ]
            if safe:
                return safe[-1 if last else 0]
        return None

    def _grow(self, text: str) -> None:
        """Append text between two safe cuts to the sums."""
        ids, evidence = self._read(text)
        self._sums.add(ids)
        self._evidence = self._evidence + evidence

    def _read(self, text: str) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of a text and its evidence, see :func:`ctx_embed.text.tokenizer.is_read`."""
        tokenizer = self._embedder.text_tokenizer
        ids, lengths = tokenizer([text])
        return ids, tokenizer.evidence([text], ids, lengths, parts=True)

    def to_bytes(self) -> bytes:
        """Return the state as bytes, from which :meth:`Embedder.state` restores it."""
        self._settle()
        stream = io.BytesIO()
        np.savez(stream, *self._sums.arrays())
        values = [self._embedder.fingerprint, self._cut, self._head, self._tail, self._evidence[0].tolist()]
        return MAGIC + zlib.compress(json.dumps(values).encode() + b"\n" + stream.getvalue())

    def restore(self, stored: bytes) -> None:
        """Restore a state from the bytes that :meth:`to_bytes` returned.

        Raises:
            InputError: the bytes are not a state, or they are damaged or belong to another model.
        """
        try:
            if not isinstance(stored, bytes) or not stored.startswith(MAGIC):
                raise ValueError("it begins otherwise")
            # Unpacking uses memory bounded by the size of the model: that of all counts, or of all moments.
            entries, m = self._embedder.contextualizer.table.values.shape
            largest = LARGEST_ENDS + 12 * entries + 8 * (m + 2) ** 2
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(stored[len(MAGIC) :], largest)
            if not unpacker.eof:
                raise ValueError(f"cut short, or more than {largest:,} bytes")
            line, _, packed = content.partition(b"\n")
            values = json.loads(line)
            if [type(value) for value in values] != [str, bool, str, str, list]:
                raise ValueError(
                    "its values have the wrong types; if a development version made it, read the text again"
                )
            fingerprint, cut, head, tail, evidence = values
            if [type(value) for value in evidence] != [int] * 4 or max(map(abs, evidence)) > MOST_TOKENS:
                raise ValueError("its numbers of words are impossible")
            with ZipFile(io.BytesIO(packed)) as archive:
                # Arrays are stored uncompressed, so none can be larger than these bytes.
                if any(entry.file_size > len(packed) or entry.compress_type for entry in archive.infolist()):
                    raise ValueError("its arrays are compressed")
            with np.load(io.BytesIO(packed)) as loaded:
                arrays = [loaded[name] for name in loaded.files]
        # Catch any error, as the bytes may come from a stranger.
        except Exception as error:
            raise InputError(f"stored must be the bytes of a DocumentState ({error!s:.200})") from None
        if fingerprint != self._embedder.fingerprint:
            raise InputError(
                f"the state was made by the model {fingerprint[:12]}, not by {self._embedder.fingerprint[:12]}: load "
                "it with its own"
            )
        try:
            sums = self._new_sums()
            sums.restore(arrays)
        except ValueError as error:
            raise InputError(f"stored must be the bytes of a DocumentState ({error})") from None
        self._cut, self._head, self._tail, self._evidence = cut, head, tail, np.array([evidence], np.int64)
        self._sums, self._added, self._characters = sums, [], 0
