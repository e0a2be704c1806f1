"""Token ids of many texts, quickly: each distinct word goes through the tokenizer once and is remembered."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ctx_embed.errors import InputError
from ctx_embed.text.phrases import Phrases
from ctx_embed.text.unknown import unknown_id
from ctx_embed.texts import well_formed

# Components that treat each whitespace-separated word by itself, so that a text's ids are its words' ids in order.
WORDWISE_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
WORDWISE_PRE_TOKENIZERS = {"BertPreTokenizer", "Punctuation", "Whitespace", "WhitespaceSplit"}
# Python splits at these characters, but tokenizers drop them or keep them in words; so texts that contain one are
# tokenized whole.
DISPUTED_SPACES = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
# Maximum characters in all remembered words; the memo takes about ten times as many bytes.
MEMO_CHARACTERS = 4_000_000
# In batches of more than LONG_TEXT characters, texts are split into words in parts of PART_CHARACTERS to save memory.
LONG_TEXT = 1 << 20
PART_CHARACTERS = 1 << 16
SPACE = re.compile(r"\s")

ID = np.dtype(np.int32)


def _parts(component: dict[str, Any], key: str) -> list[str]:
    """Return the type names of a normaliser or pre-tokenizer; sequences are flattened."""
    if component["type"] == "Sequence":
        return [name for part in component[key] for name in _parts(part, key)]
    return [component["type"]]


def _content(component: Any) -> dict[str, Any]:
    """Return the JSON of one component of a tokenizer.

    That of the whole tokenizer is slow to read, as it has the vocabulary.
    """
    content: dict[str, Any] = json.loads(component.__getstate__())
    return content


def parts(text: str) -> Iterator[str]:
    """Yield a text in parts, each of which but the first starts at a space."""
    start = 0
    while start < len(text):
        space = SPACE.search(text, start + PART_CHARACTERS)
        stop = len(text) if space is None else space.start()
        yield text[start:stop]
        start = stop


def is_wordwise(tokenizer: Tokenizer) -> bool:
    """Return whether a text's ids are the ids of its whitespace-separated words one after the other."""
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    normalizers = [] if normalizer is None else _parts(_content(normalizer), "normalizers")
    pre_tokenizers = [] if pre_tokenizer is None else _parts(_content(pre_tokenizer), "pretokenizers")
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        set(normalizers) <= WORDWISE_NORMALIZERS
        and bool(pre_tokenizers)
        and pre_tokenizers[0] != "Punctuation"
        and set(pre_tokenizers) <= WORDWISE_PRE_TOKENIZERS
        and not any(token.lstrip or token.rstrip or len(token.content.split()) != 1 for token in added)
    )


class TextTokenizer:
    """A tokenizer of whole batches into packed ids, without special tokens.

    Without phrases the ids are exactly those of ``tokenizer.encode_batch(texts, add_special_tokens=False)``; lone
    surrogates are read as U+FFFD. If the tokenizer works word by word, earlier words are looked up instead of tokenized
    again, which is several times as fast on running text.

    Args:
        tokenizer: a tokenizer of the ``tokenizers`` library, with padding and truncation off.
        phrases: pairs of ids to merge after tokenizing.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Phrases | None = None) -> None:
        self.tokenizer = tokenizer
        self.phrases = phrases
        self.wordwise = is_wordwise(tokenizer)
        self._entries = tokenizer.get_vocab_size()
        self._memo: dict[str, bytes] = {}
        self._characters = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memo": {}, "_characters": 0}

    def without_phrases(self) -> TextTokenizer:
        """Return this tokenizer without phrases; the two share their remembered words."""
        plain = TextTokenizer(self.tokenizer)
        plain._memo = self._memo
        return plain

    def _tokenized(self, texts: Sequence[str]) -> list[bytes]:
        try:
            encodings = self.tokenizer.encode_batch_fast(
                [well_formed(text) for text in texts], add_special_tokens=False
            )
        # A panic in the tokenizer's Rust code, e.g. of a regular expression that gives up, is not an `Exception`.
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise InputError(f"the model's tokenizer fails on a text ({error!s:.200})") from None
        if max((max(encoding.ids, default=0) for encoding in encodings), default=0) >= max(self._entries, 1):
            raise InputError(f"the model's tokenizer has ids beyond its {self._entries} entries; its file is damaged")
        return [np.array(encoding.ids, dtype=ID).tobytes() for encoding in encodings]

    def _remembered(self, words: list[list[str]]) -> list[bytes]:
        memo = self._memo
        try:
            return [b"".join(map(memo.__getitem__, of_text)) for of_text in words]
        except KeyError:
            # `- memo.keys()` would iterate over all remembered words.
            new = sorted({word for of_text in words for word in of_text}.difference(memo))
            memo.update(zip(new, self._tokenized(new), strict=True))
            self._characters += sum(map(len, new))
            if self._characters > MEMO_CHARACTERS:
                # Replaced rather than emptied, as other threads may still read the old dictionary.
                self._memo, self._characters = {}, 0
            return [b"".join(map(memo.__getitem__, of_text)) for of_text in words]

    @cached_property
    def unknown(self) -> NDArray[np.int32]:
        """The ids that say nothing about a text: the unknown token, and phrases that contain only unknown tokens."""
        number = unknown_id(self.tokenizer)
        ids = np.array([] if number is None else [number], ID)
        while self.phrases is not None and len(ids):
            found = np.flatnonzero(np.isin(self.phrases.pairs, ids).all(1)) + self.phrases.entries
            if np.isin(found, ids).all():
                break
            ids = np.union1d(ids, found.astype(ID))
        return ids

    def known(self, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens of each packed text the model knows, (B,)."""
        is_known = ids != self.unknown[0] if len(self.unknown) == 1 else ~np.isin(ids, self.unknown)
        if is_known.all():
            return lengths
        texts = np.searchsorted(lengths.cumsum(), np.flatnonzero(~is_known), side="right")
        return np.asarray(lengths - np.bincount(texts, minlength=len(lengths)))

    def read(
        self, texts: Sequence[str], prompt: str | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids that a model reads: with prompts, and none for a text in which it knows no token.

        Args:
            texts: B strings.
            prompt: put before each text.
            limit: maximum tokens per text; longer texts are cut, with a warning. None reads all.

        Returns:
            ids (N,) and lengths (B,); they sum to N.
        """
        ids, lengths = self([prompt + text for text in texts] if prompt else texts)
        if limit is not None and lengths.max(initial=0) > limit:
            # The counts make most messages different, so that Python does not filter them as repeated warnings.
            warnings.warn(
                f"{int((lengths > limit).sum())} of {len(lengths)} texts, the longest of {lengths.max()} tokens, were "
                f"cut to max_seq_length={limit}; raise it, or set it to None to read all",
                stacklevel=4,
            )
            ids = ids[np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths) < limit]
            lengths = lengths.clip(max=limit)
        of_prompt = int(self.known(*self([prompt]))[0]) if prompt else 0
        read = self.known(ids, lengths) > of_prompt
        if read.all():
            return ids, lengths
        return ids[np.repeat(read, lengths)], lengths * read

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids of all texts one after the other, and the number of ids in each text.

        Args:
            texts: B strings.

        Returns:
            ids (N,) and lengths (B,); the lengths sum to N.
        """
        everything = "".join(texts)
        if self.wordwise and not any(space in everything for space in DISPUTED_SPACES):
            if len(everything) <= LONG_TEXT:
                pieces = self._remembered([text.split() for text in texts])
            else:
                # Splitting a whole book into words at once would take twenty times its memory.
                pieces = [b"".join(self._remembered([part.split()])[0] for part in parts(text)) for text in texts]
        else:
            pieces = self._tokenized(texts)
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)) // ID.itemsize
        ids = np.frombuffer(b"".join(pieces), dtype=ID)
        return (ids, lengths) if self.phrases is None else self.phrases(ids, lengths)

    def entry_texts(self) -> list[str]:
        """Return the text of each id; that of a phrase is its parts separated by spaces."""
        named = self.tokenizer.get_vocab(with_added_tokens=True)
        texts = sorted(named, key=named.__getitem__)
        return texts if self.phrases is None else texts + self.phrases.texts(texts)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where each id of a text starts and stops, in characters."""
        encoding = self.tokenizer.encode(well_formed(text), add_special_tokens=False)
        if self.phrases is None or not encoding.ids:
            return list(encoding.offsets)
        ids, _ = self.phrases(np.array(encoding.ids, ID), np.array([len(encoding.ids)]))
        last = self.phrases.sizes()[ids].cumsum()
        first = np.concatenate([[0], last[:-1]])
        return [
            (encoding.offsets[begin][0], encoding.offsets[end - 1][1])
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]
