"""Chunking: cut documents into passages, each of which has its own vector and refers to its document."""

import re
from collections.abc import Callable, Sequence
from itertools import compress, islice, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from tokenizers import Tokenizer

from ctx_embed.errors import InputError, quoted
from ctx_embed.index.database import CHUNKS
from ctx_embed.index.documents import Span
from ctx_embed.model import Model
from ctx_embed.reading.blocks import NONE, PAGE, Block, prose, rows
from ctx_embed.text.tokenizer import TextTokenizer

Chunker: TypeAlias = Callable[[str], list[Span]]
# Returns the passages of each text, given with its blocks.
Cut: TypeAlias = Callable[[Sequence[tuple[str, Sequence[Block]]]], list[list[Span]]]

# Default number of tokens in a passage; fewer if the model reads fewer.
PASSAGE_TOKENS = 256

# Blocks whose tokens are counted at a time.
COUNTED_AT_ONCE = 512

# The lookbehinds keep the time linear: the regular expression tries a long run of dots or spaces only once. They stand
# second so that searches skip to a first character.
_DOTS = r"[.!?\u2026](?<![.!?\u2026]{2})[.!?\u2026]*"
_SENTENCE_END = re.compile(_DOTS + r"[\"'\u201d\u2019)\]]*\s+(?=[\"'\u201c\u2018(\[]*[^\W_a-z])")
_BLANK_LINE = re.compile(r"\s(?<!\s\s)(?:(?<=\n)|\s*\n)\s*\n\s*")
_WORD = re.compile(r"\w+|[^\w\s]")


def whole(text: str) -> list[Span]:
    """Return the whole text as one passage."""
    return [(0, len(text))]


def sentences(text: str) -> list[Span]:
    """Return the sentences; they end with . ! ? or … before a space and a capital or a digit, and at blank lines."""
    starts = [match.end() for match in _SENTENCE_END.finditer(text)]
    if "\n" in text:
        starts = sorted({*starts, *(match.end() for match in _BLANK_LINE.finditer(text))})
    return _trimmed(text, list(pairwise([0, *starts, len(text)])))


def tokens(size: int, offsets: Callable[[str], ArrayLike]) -> Chunker:
    """Return a chunker into passages of at most ``size`` of the tokens of ``offsets``; only longer words are cut."""

    def chunk(text: str) -> list[Span]:
        places: Any = np.array(offsets(text), np.int64).reshape(-1, 2).T.copy()
        # Views, as lists of so many tokens would take long to free.
        starts, stops = (memoryview(column) for column in places)
        count, first, spans = len(starts), 0, list[Span]()

        def token(place: int) -> Span:
            return starts[place], stops[place]

        while first < count:
            last = min(first + size, count)
            while first + 1 < last < count and _joined(text, token(last - 1), token(last)):
                last -= 1
            if last == first + 1 and size > 1 and last < count and _joined(text, token(first), token(last)):
                last = min(first + size, count)
            spans.append((starts[first], stops[last - 1]))
            first = last
        return spans or whole(text)

    return chunk


class Passages:
    """Cuts texts into passages of at most ``size`` tokens where their structure allows it best.

    A longer text is cut at its best places, see :class:`Block`; parts that are still too long are cut again, down to
    paragraphs, sentences or lines, and words. Small neighbouring parts stay together, up to a quarter of ``size``.
    Every page starts a passage. ``count`` returns the numbers of tokens of texts, ``offsets`` a text's tokens as spans.
    """

    def __init__(
        self, size: int, count: Callable[[Sequence[str]], Sequence[int]], offsets: Callable[[str], ArrayLike]
    ) -> None:
        self.size, self._count = size, count
        self._words = tokens(size, offsets)

    def of_all(self, texts: Sequence[tuple[str, Sequence[Block]]]) -> list[list[Span]]:
        """Return the passages of each text with its blocks, by default its paragraphs."""
        found = [(text, list(blocks) or prose(text)) for text, blocks in texts]
        # A token has at least one character, so a block as short as this needs no counting if it is alone.
        counted = [len(blocks) > 1 or (bool(blocks) and len(text) > self.size) for text, blocks in found]
        pieces = [text[block.start : block.stop] for text, blocks in compress(found, counted) for block in blocks]
        counts = map(int, self._count(pieces) if pieces else ())
        return [
            self._cut(text, blocks, list(islice(counts, len(blocks))))
            if is_counted
            else _trimmed(text, [(block.start, block.stop) for block in blocks])
            for (text, blocks), is_counted in zip(found, counted, strict=True)
        ]

    def _cut(self, text: str, blocks: list[Block], counts: list[int]) -> list[Span]:
        """Return the passages of a text from its blocks and their numbers of tokens."""
        if max(counts, default=0) > self.size:
            # Blocks that are too long are cut into sentences, lines and words.
            for cut in (sentences, rows, self._words):
                smaller: list[Block] = []
                for block, count in zip(blocks, counts, strict=True):
                    if count <= self.size or (cut is sentences and not block.prose):
                        smaller.append(block)
                        continue
                    for place, (start, stop, *_) in enumerate(cut(text[block.start : block.stop])):
                        depth = NONE if place else block.depth
                        smaller.append(Block(block.start + start, block.start + stop, depth, block.prose))
                if len(smaller) > len(blocks):
                    blocks = smaller
                    counts = [int(count) for count in self._count([text[part.start : part.stop] for part in smaller])]
        spans: list[Span] = []
        # A stack of parts still to be cut.
        parts = [(0, len(blocks))]
        while parts:
            first, last = parts.pop()
            has_page = any(block.depth == PAGE for block in blocks[first + 1 : last])
            total = sum(counts[first:last])
            if last - first == 1 or (total <= self.size and not has_page):
                spans.append((blocks[first].start, blocks[last - 1].stop))
                continue
            # Cut at the best places.
            depth = min(block.depth for block in blocks[first + 1 : last])
            starts = [first, *(place for place in range(first + 1, last) if blocks[place].depth == depth), last]
            if depth == PAGE:
                parts += reversed(list(pairwise(starts)))
                continue
            # If all places are equally good, cut into passages of similar length.
            even = -(-total // -(-total // self.size)) if depth == NONE else self.size // 4
            found: list[Span] = []
            begin, length = first, 0
            for start, stop in pairwise(starts):
                part = sum(counts[start:stop])
                # A heading with little or no text stays with the text after it.
                full = length >= even if depth == NONE else length + part > even and 16 * length > self.size
                if start > begin and (full or length + part > self.size):
                    found.append((begin, start))
                    begin, length = start, 0
                length += part
            parts += reversed([*found, (begin, last)])
        return _trimmed(text, spans)


def _joined(text: str, left: Span, right: Span) -> bool:
    """Return whether two adjacent tokens are parts of one word."""
    return left[1] >= right[0] and text[left[1] - 1 : left[1]].isalnum() and text[right[0] : right[0] + 1].isalnum()


def _trimmed(text: str, spans: list[Span]) -> list[Span]:
    """Return the spans without whitespace at their ends; spans of nothing but whitespace are dropped."""
    trimmed = []
    for start, stop in spans:
        passage = text[start:stop]
        if passage.strip():
            begin = start + len(passage) - len(passage.lstrip())
            trimmed.append((begin, begin + len(passage.strip())))
    return trimmed or whole(text)


def words(text: str) -> list[Span]:
    """Return words and punctuation marks as tokens, for models without a tokenizer."""
    return [match.span() for match in _WORD.finditer(text)]


def _tokenizer(model: Model) -> TextTokenizer | None:
    """Return the model's tokenizer, or a copy that neither truncates nor pads; None if it has none."""
    known = getattr(model.backend, "text_tokenizer", None)
    if isinstance(known, TextTokenizer) or model.tokenizer is None:
        # It caches words, so embedding the passages does not tokenize these words again.
        return known
    own = Tokenizer.from_str(model.tokenizer.to_str())
    own.no_truncation()
    own.no_padding()
    return TextTokenizer(own)


def passages_of(model: Model, size: int | None = None) -> Passages:
    """Return the chunker for passages of ``size`` tokens; None: 256, or fewer if the model reads fewer."""
    if size is None:
        longest = getattr(model.backend, "max_seq_length", None)
        # Leave two tokens for the special tokens that many models add.
        size = PASSAGE_TOKENS if longest is None else max(1, min(PASSAGE_TOKENS, int(longest) - 2))
    tokenizer = _tokenizer(model)
    if tokenizer is None:
        return Passages(size, lambda texts: [len(words(text)) for text in texts], words)

    def count(texts: Sequence[str]) -> list[int]:
        batches = (texts[first : first + COUNTED_AT_ONCE] for first in range(0, len(texts), COUNTED_AT_ONCE))
        return [length for batch in batches for length in tokenizer(batch, merged=False)[1].tolist()]

    return Passages(size, count, tokenizer.offsets)


def checked_chunk(chunk: Any) -> str:
    """Return ``chunk``, or raise InputError if it is not valid."""
    if isinstance(chunk, str) and CHUNKS.fullmatch(chunk):
        return chunk
    kinds = "none, sentences, passages, passages:N or tokens:N with a number of tokens N, e.g. tokens:256"
    raise InputError(f"chunk must be {kinds}, got {quoted(chunk)}")


def chunker(chunk: str, model: Any) -> Cut:
    """Return the chunker for the option ``chunk`` of an index with this model."""
    kind, _, size = chunk.partition(":")
    if kind == "passages":
        return passages_of(model, int(size) if size else None).of_all
    offsets = words if not size or (tokenizer := _tokenizer(model)) is None else tokenizer.offsets
    cut = tokens(int(size), offsets) if size else {"none": whole, "sentences": sentences}[kind]
    return lambda texts: [cut(text) for text, _ in texts]
