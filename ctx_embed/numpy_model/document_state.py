"""Embeddings of growing texts: a text is read piece by piece, in constant memory, and states can be merged.

Without position weights the steps need of a text only how often each entry of the vocabulary occurs in it.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, described
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.text.unknown import is_read

if TYPE_CHECKING:
    from ctx_embed.numpy_model.embedder import Embedder

MAGIC = b"ctx-embed state 1\n"
WORD = re.compile(r"\S+")
# Number of words tokenized at a time in the search for a cut.
WORDS_AT_ONCE = 32
# Number of added characters that are collected before cuts are searched for.
ADDED_CHARACTERS = 256
# Maximum bytes of a stored state without its counts: the text around both ends, and headers.
LARGEST_ENDS = 1 << 24
# Maximum number of tokens, or words, in a text; doubles count exactly up to it.
MOST_TOKENS = 1 << 53


class Cuts:
    """The safe cuts of a text, which leave pieces with the same tokens as the whole text.

    A cut between two words is safe if no phrase can reach across it; phrases join only at certain pairs of entries.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._words = TextTokenizer(tokenizer.tokenizer)
        self._joined = set() if tokenizer.phrases is None else tokenizer.phrases.junctions()

    def find(self, text: str, *, begins: bool, last: bool) -> int | None:
        """Return the first or last safe cut in a text, the start of a word; None if there is none.

        The text's last word may continue later; its first one may have begun earlier, unless ``begins``.
        """
        spans = [match.span() for match in WORD.finditer(text)]
        if spans and spans[0][0] == 0 and not begins:
            spans = spans[1:]
        if spans and spans[-1][1] == len(text):
            spans = spans[:-1]
        starts = range(0, len(spans) - 1, WORDS_AT_ONCE)
        for start in reversed(starts) if last else starts:
            run = spans[start : start + WORDS_AT_ONCE + 1]
            ids, lengths = self._words([text[begin:end] for begin, end in run])
            tokens = [part.tolist() for part in np.split(ids, lengths.cumsum()[:-1])]
            safe = [
                begin
                for (begin, _), left, right in zip(run[1:], tokens, tokens[1:], strict=False)
                if left and right and (left[-1], right[0]) not in self._joined
            ]
            if safe:
                return safe[-1 if last else 0]
        return None


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
        InputError: the model's embeddings cannot grow: tokens are weighted by their positions (``positions``), c^0
            depends on the whole text (``initial_context="uniform"``), its end is cut off (``max_seq_length``), or the
            tokenizer joins words.
    """

    def __init__(self, embedder: Embedder) -> None:
        contextualizer = embedder.contextualizer
        reasons = {
            f'positions="{contextualizer.positions}"': contextualizer.positions != "none",
            'initial_context="uniform"': contextualizer.initial_context == "uniform",
            f"max_seq_length={embedder.max_seq_length}": embedder.max_seq_length is not None,
            "a tokenizer that joins words": not embedder.text_tokenizer.wordwise,
        }
        for reason, holds in reasons.items():
            if holds:
                raise InputError(f"the model cannot extend a text: it has {reason}; embed the whole text at once")
        self._embedder = embedder
        # Until a safe cut is found, the whole text is the head; then counts replace the text between head and tail.
        self._head = ""
        self._tail = ""
        # Text added after head or tail, not yet searched for cuts.
        self._added: list[str] = []
        self._characters = 0
        # How often each id occurs in the text between head and tail, and what the model knows of it.
        self._counts: Counter[int] = Counter()
        self._evidence = np.zeros((1, 4), np.int64)
        self._cut = False

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
        if self._characters >= max(ADDED_CHARACTERS, len(self._tail if self._cut else self._head)):
            self._settle()

    def _settle(self) -> None:
        """Move added text to the head and the tail, and count what stands before the last safe cut."""
        text = "".join(self._added)
        self._added, self._characters = [], 0
        if not text:
            return
        cuts = self._embedder.cuts
        if not self._cut:
            self._head += text
            first = cuts.find(self._head, begins=False, last=False)
            if first is None:
                return
            self._head, text = self._head[:first], self._head[first:]
            self._cut = True
        self._tail += text
        last = cuts.find(self._tail, begins=True, last=True)
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
        joined = other._head
        if self._cut:
            joined = self._tail + joined
        else:
            self.add(joined)
            self._settle()
            joined = self._tail
        # The end of the other state's head is its first safe cut.
        if self._cut:
            self._grow(joined)
        self._cut = True
        self._counts.update(other._counts)
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
        contextualizer, vector = self._embedder.contextualizer, self._embedder.contextualizer.c0
        read = is_read(self._evidence + of_head + of_tail)
        if read[0]:
            vector = contextualizer.counted(*_arrays(self._counts + Counter(head) + Counter(tail)), vector)
        embedding: NDArray[Any] = self._embedder.finished(vector[None], read.astype(np.int64), **options)[0]
        return embedding

    def _grow(self, text: str) -> None:
        """Count the text between two safe cuts."""
        ids, evidence = self._read(text)
        self._counts.update(ids)
        self._evidence = self._evidence + evidence

    def _read(self, text: str) -> tuple[list[int], NDArray[np.int64]]:
        """Return the ids of a text and what it adds to the evidence."""
        tokenizer = self._embedder.text_tokenizer
        ids, lengths = tokenizer([text])
        return ids.tolist(), tokenizer.evidence([text], ids, lengths, parts=True)

    def to_bytes(self) -> bytes:
        """Return the state as bytes, from which :meth:`Embedder.state` restores it."""
        self._settle()
        stream = io.BytesIO()
        np.savez(stream, *_arrays(self._counts))
        values = [self._embedder.fingerprint, self._cut, self._head, self._tail, self._evidence[0].tolist()]
        return MAGIC + zlib.compress(json.dumps(values).encode() + b"\n" + stream.getvalue())

    def restore(self, stored: bytes) -> None:
        """Restore a state from the bytes that :meth:`to_bytes` returned.

        Raises:
            InputError: the bytes are not a state, or they are damaged or belong to another model.
        """
        try:
            cut, head, tail, evidence, entries, counts = self._unpacked(stored)
        except InputError:
            raise
        # Any other error, as the bytes may come from a stranger.
        except Exception as error:
            raise InputError(f"stored must be the bytes of a DocumentState ({error!s:.200})") from None
        self._cut, self._head, self._tail, self._evidence = cut, head, tail, np.array([evidence], np.int64)
        self._counts = Counter(dict(zip(entries.tolist(), counts.tolist(), strict=True)))
        self._added, self._characters = [], 0

    def _unpacked(self, stored: bytes) -> tuple[bool, str, str, list[int], NDArray[Any], NDArray[Any]]:
        """Return the values that :meth:`to_bytes` packed, using memory bounded by the size of the model."""
        if not isinstance(stored, bytes) or not stored.startswith(MAGIC):
            raise ValueError("another beginning")
        rows = self._embedder.contextualizer.table.shape[0]
        largest = LARGEST_ENDS + 12 * rows
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(stored[len(MAGIC) :], largest)
        if not unpacker.eof:
            raise ValueError(f"cut short, or more than {largest:,} bytes")
        line, _, packed = content.partition(b"\n")
        values = json.loads(line)
        if [type(value) for value in values] != [str, bool, str, str, list]:
            raise ValueError("its values have the wrong types")
        fingerprint, cut, head, tail, evidence = values
        if [type(value) for value in evidence] != [int] * 4 or max(map(abs, evidence)) > MOST_TOKENS:
            raise ValueError("its numbers of words are impossible")
        if fingerprint != self._embedder.fingerprint:
            raise InputError(
                f"the state was made by the model {fingerprint[:12]}, not by {self._embedder.fingerprint[:12]}: load "
                "it with its own"
            )
        with ZipFile(io.BytesIO(packed)) as archive:
            # Arrays are stored uncompressed, so none can be larger than these bytes.
            if any(entry.file_size > len(packed) or entry.compress_type for entry in archive.infolist()):
                raise ValueError("its arrays are compressed")
        with np.load(io.BytesIO(packed)) as loaded:
            entries, counts = (loaded[name] for name in loaded.files)
        if entries.ndim != 1 or entries.shape != counts.shape or entries.dtype != np.int32 or counts.dtype != np.int64:
            raise ValueError("entries and counts do not fit")
        if len(entries) and not 0 <= entries.min() <= entries.max() < rows:
            raise ValueError("an entry is not in the vocabulary")
        if not (np.diff(entries) > 0).all():
            raise ValueError("an entry occurs twice")
        if len(counts) and not 1 <= counts.min() <= counts.max() <= MOST_TOKENS:
            raise ValueError(f"counts must lie between 1 and {MOST_TOKENS:,}")
        return cut, head, tail, evidence, entries, counts


def _arrays(counts: Counter[int]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the ids that occur, ascending, and how often each does."""
    entries = np.array(sorted(counts), np.int32)
    return entries, np.array([counts[entry] for entry in entries.tolist()], np.int64)
