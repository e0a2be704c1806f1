"""Embeddings of growing texts: a text is read piece by piece, in constant memory, and states can be merged.

The steps read a text only through sums over its tokens, whose size is constant, and which can be merged.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, described, quoted
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
# Maximum bytes of a stored state apart from its sums: the text around both ends, and numbers.
LARGEST_ENDS = 1 << 24
# Maximum number of tokens, or words, in a text; doubles count exactly up to it.
MOST_TOKENS = 1 << 53

# The sums over the tokens of a text, as rows of an array: none for a text without tokens. They never change.
Sums = NDArray[Any]


def rows(kind: np.dtype[Any], count: int, *columns: Any) -> Sums:
    """Return an array of ``count`` rows, given its columns in their order."""
    array = np.empty(count, kind)
    for name, column in zip(kind.names or (), columns, strict=True):
        array[name] = column
    return array


class Counts:
    """Without positions: a row for each vocabulary entry in the text, with its count, by ascending entries."""

    def __init__(self, contextualizer: PackedContextualizer) -> None:
        self._contextualizer = contextualizer
        self.row, self.most_rows = np.dtype([("entry", "<i4"), ("count", "<i8")]), len(contextualizer.table.values)

    def add(self, sums: Sums, ids: Ids) -> Sums:
        """Return the sums of a text and further tokens."""
        entries, counts = np.unique(ids, return_counts=True)
        return self.join(sums, rows(self.row, len(entries), entries, counts))

    def join(self, left: Sums, right: Sums) -> Sums:
        """Return the sums of two texts together."""
        both = np.concatenate([left, right])
        entries, place = np.unique(both["entry"], return_inverse=True)
        return rows(self.row, len(entries), entries, np.bincount(place, both["count"], len(entries)))

    def context(self, sums: Sums) -> Floats:
        """Return c^K (m,) of the text."""
        context: Floats = self._contextualizer.embed(sums["entry"], np.array([len(sums)]), sums["count"])[0]
        return context

    def require_possible(self, sums: Sums) -> None:
        """Refuse sums that no text has."""
        entries, counts = sums["entry"], sums["count"]
        if not ((entries >= 0) & (entries < self.most_rows)).all():
            raise ValueError("an entry is not in the vocabulary")
        if not (np.diff(entries) > 0).all():
            raise ValueError("an entry occurs twice")
        if not ((counts >= 1) & (counts <= MOST_TOKENS)).all():
            raise ValueError(f"counts must lie between 1 and {MOST_TOKENS:,}")


class Moments:
    """With absolute positions: a row of n, M = sum_i y_i y_i^T, t = sum_i y_i and Z = sum_i exp(i s).

    Here y_i = e(w_i) exp(i s). If text B follows text A, M = M_A + D M_B D, t = t_A + D t_B and Z = Z_A + D Z_B with
    D = diag(exp(n_A s)). All sums are stored divided by exp(L), where L is the largest exponent of each feature, so
    that nothing overflows.
    """

    def __init__(self, contextualizer: PackedContextualizer) -> None:
        self._contextualizer = contextualizer
        self._s = contextualizer.s.astype(np.float64)
        m = contextualizer.dimension
        vectors = [(name, "<f8", (m,)) for name in "LZt"]
        self.row, self.most_rows = np.dtype([("n", "<i8"), *vectors, ("M", "<f8", (m, m))]), 1

    def add(self, sums: Sums, ids: Ids) -> Sums:
        """Return the sums of a text and tokens that follow it."""
        for start in range(0, len(ids), TOKENS_AT_ONCE):
            block = ids[start : start + TOKENS_AT_ONCE]
            logits = np.arange(1, len(block) + 1)[:, None] * self._s
            L = logits.max(0)
            weights = np.exp(logits - L)
            y = self._contextualizer.table.rows(block) * weights
            sums = self.join(sums, rows(self.row, 1, len(block), L, weights.sum(0), y.sum(0), y.T @ y))
        return sums

    def join(self, left: Sums, right: Sums) -> Sums:
        """Return the sums of two texts, the second of which follows the first."""
        if not (len(left) and len(right)):
            return left if len(left) else right
        (n, L, Z, t, M), (n_B, L_B, Z_B, t_B, M_B) = left[0], right[0]
        shifted = L_B + n * self._s
        largest = np.maximum(L, shifted)
        old, new = np.exp(L - largest), np.exp(shifted - largest)
        joined = old[:, None] * M * old + new[:, None] * M_B * new
        return rows(self.row, 1, n + n_B, largest, old * Z + new * Z_B, old * t + new * t_B, joined)

    def context(self, sums: Sums) -> Floats:
        """Return c^K (m,) of the text, which has a token."""
        n, _, Z, t, M = sums[0]
        weight = (n if self._contextualizer.scale == "mean" else 1) / Z
        steps = self._contextualizer.steps
        # G_k = M U_k^T
        G = (weight[:, None] * M * weight) @ steps.U.reshape(-1, len(weight)).T
        return np.asarray(recurrence(G, weight * t, self._contextualizer.c0, steps), np.float32)

    def require_possible(self, sums: Sums) -> None:
        """Refuse sums that no text has."""
        if len(sums) > 1 or not ((sums["n"] >= 1) & (sums["n"] <= MOST_TOKENS)).all():
            raise ValueError(f"the number of tokens must lie between 1 and {MOST_TOKENS:,}")
        if not all(np.isfinite(sums[name]).all() for name in "LZtM") or not (sums["Z"] > 0).all():
            raise ValueError("the moments are not finite")


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
            (``max_seq_length``), its tokenizer joins words, or it has a default prompt.
    """

    def __init__(self, embedder: Embedder) -> None:
        contextualizer = embedder.contextualizer
        reasons = {
            'positions="relative"': contextualizer.positions == "relative",
            'initial_context="uniform"': contextualizer.initial_context == "uniform",
            f"max_seq_length={embedder.max_seq_length}": embedder.max_seq_length is not None,
            "a tokenizer that joins words": not embedder.text_tokenizer.wordwise,
            f"the default prompt {quoted(embedder.default_prompt_name)}": bool(
                embedder.prompts.get(embedder.default_prompt_name or "")
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                raise InputError(f"the model cannot extend a text: it has {reason}; embed the whole text at once")
        self._embedder = embedder
        # Until a safe cut is found, the whole text is the head and the tail is empty; then the sums replace the text
        # between the two, and the tail is never empty again.
        self._head = ""
        self._tail = ""
        # Text added after head or tail, not yet searched for cuts.
        self._added: list[str] = []
        self._characters = 0
        self._kind = Moments(contextualizer) if contextualizer.positions == "absolute" else Counts(contextualizer)
        self._sums = np.empty(0, self._kind.row)
        # The evidence of how well the model knows the text in the sums.
        self._evidence = np.zeros((1, 5), np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._embedder.state, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"DocumentState({self._embedder!r})"

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
        if self._characters >= max(ADDED_CHARACTERS, len(self._tail or self._head)):
            self._settle()

    def _settle(self) -> None:
        """Move added text to the head and the tail, and text before the last safe cut to the sums."""
        text = "".join(self._added)
        self._added, self._characters = [], 0
        if not text:
            return
        if not self._tail:
            self._head += text
            first = self._cut_of(self._head, last=False)
            if first is None:
                return
            self._head, text = self._head[:first], self._head[first:]
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
        if not other._tail:
            self.add(other._head)
            return
        if self._tail:
            self._tail += other._head
        else:
            self.add(other._head)
            self._settle()
        # The end of the other state's head is its first safe cut.
        self._grow(self._tail)
        self._sums = self._kind.join(self._sums, other._sums)
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
        before = self._kind.add(np.empty(0, self._kind.row), head)
        sums = self._kind.add(self._kind.join(before, self._sums), tail)
        read = is_read(self._evidence + of_head + of_tail)
        context: Floats = self._kind.context(sums) if read[0] else self._embedder.contextualizer.c0
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
        self._sums = self._kind.add(self._sums, ids)
        self._evidence = self._evidence + evidence

    def _read(self, text: str) -> tuple[Ids, NDArray[np.int64]]:
        """Return the ids of a text and its evidence, see :func:`ctx_embed.text.tokenizer.is_read`."""
        tokenizer = self._embedder.text_tokenizer
        ids, lengths = tokenizer([text])
        return ids, tokenizer.evidence([text], ids, lengths, parts=True)

    def to_bytes(self) -> bytes:
        """Return the state as bytes, from which :meth:`Embedder.state` restores it.

        Raises:
            InputError: the text around the ends, up to the nearest words that the model knows, has many millions of
                characters.
        """
        self._settle()
        values = [self._embedder.fingerprint, self._head, self._tail, self._evidence[0].tolist()]
        line = json.dumps(values).encode()
        if len(line) > LARGEST_ENDS:
            raise InputError(
                f"the text around both ends must have at most {LARGEST_ENDS:,} bytes as JSON, got {len(line):,}; "
                "put spaces between its words"
            )
        return MAGIC + zlib.compress(line + b"\n" + self._sums.tobytes())

    def restore(self, stored: bytes | bytearray | memoryview) -> None:
        """Restore a state from the bytes that :meth:`to_bytes` returned.

        Raises:
            InputError: the bytes are not a state, or they are damaged or belong to another model.
        """
        try:
            packed = bytes(stored) if isinstance(stored, bytes | bytearray | memoryview) else b""
            if not packed.startswith(MAGIC):
                raise ValueError("it begins otherwise")
            # Unpacking uses memory bounded by the size of the model: that of its largest sums.
            largest = LARGEST_ENDS + 1 + self._kind.most_rows * self._kind.row.itemsize
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(packed[len(MAGIC) :], largest)
            if not unpacker.eof or unpacker.unused_data:
                raise ValueError(f"cut short, more than one state, or more than {largest:,} bytes")
            line, _, of_sums = content.partition(b"\n")
            values = json.loads(line)
            if [type(value) for value in values] != [str, str, str, list] or len(values[3]) != 5:
                raise ValueError("it has other values; if a development version made it, read the text again")
            fingerprint, head, tail, evidence = values
            if [type(value) for value in evidence] != [int] * 5 or max(map(abs, evidence)) > MOST_TOKENS:
                raise ValueError("its numbers of words are impossible")
            if fingerprint != self._embedder.fingerprint:
                raise InputError(
                    f"the state was made by the model {fingerprint[:12]}, not by {self._embedder.fingerprint[:12]}: "
                    "load it with its own"
                )
            sums = np.frombuffer(of_sums, self._kind.row)
            self._kind.require_possible(sums)
        except InputError:
            raise
        # Catch any error, as the bytes may come from a stranger.
        except Exception as error:
            raise InputError(f"stored must be the bytes of a DocumentState ({error!s:.200})") from None
        self._head, self._tail, self._evidence, self._sums = head, tail, np.array([evidence], np.int64), sums
        self._added, self._characters = [], 0
