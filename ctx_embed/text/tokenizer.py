"""Token ids of many texts, quickly: the tokenizer sees each distinct word once, and C remembers it.

Here too are phrases, entries of a vocabulary that stand for several words, and what a model cannot read: unknown words.
"""

import json
import re
import string
import threading
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordPiece

from ctx_embed.deadlines import CHARACTERS_AT_ONCE, in_pieces, require_time, timely
from ctx_embed.errors import InputError, examples, warn
from ctx_embed.kernel import kernel
from ctx_embed.kernel.library import Found, Words, address
from ctx_embed.text.normalisation import Translation, normalised, with_places

# Components that treat each whitespace-separated word by itself, so that a text's ids are its words' ids in order.
WORDWISE_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
WORDWISE_PRE_TOKENIZERS = {"BertPreTokenizer", "Punctuation", "Whitespace", "WhitespaceSplit"}
# The pre-tokenizer that makes a token of each character of punctuation, wherever it stands.
CUTTING_PRE_TOKENIZER = "BertPreTokenizer"
# Longer words go through the tokenizer in pieces.
LONG_WORD = 4096
# After this many new words the kernel does WordPiece itself: to read its vocabulary takes the kernel as long as the
# tokenizer takes for them, 20 ms, and 5 MB.
WORDS_BEFORE_WORDPIECE = 2000
# Ideographs, each a word to BERT's normaliser, and signs among them. A cut before a letter parts no accent from it.
IDEOGRAPHS = "\u3001-\u3003\u3008-\u3011\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff0f"

# Among fewer ids than this, Python finds unknown ones sooner than NumPy.
FEW_IDS = 256

# WordPiece's prefix of entries that continue a word.
CONTINUED = "##"
# Maximum number of tokenizer entries in a phrase. It bounds the passes over a text.
LONGEST_PHRASE = 64

LETTER_OR_DIGIT = re.compile(r"[^\W_]")
# An entry that is a word, or the first piece of one.
WORD = re.compile(rf"(?!{re.escape(CONTINUED)}).*[^\W\d_]", re.DOTALL)

ID = np.dtype(np.int32)


def parts_of(component: Any) -> list[dict[str, Any]]:
    """Return the parts of a normaliser or pre-tokenizer as JSON, in order, with each sequence before its own parts."""
    # The component's own state leaves out the vocabulary, which is slow to read.
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    parts = []
    while waiting:
        part = waiting.pop()
        parts.append(part)
        waiting += reversed([*part.get("normalizers", ()), *part.get("pretokenizers", ())])
    return parts


class Phrases:
    """Phrases, each a pair of entries or earlier phrases: phrase p of ``pairs`` has the id ``entries + p``.

    Passes over a text, from left to right, merge pairs until none is left: the first one pairs of single entries, later
    ones pairs that contain the phrases of earlier passes. So the result depends on the text alone. No pair of ``pairs``
    (P, 2) is there twice; the tokenizer has ``entries`` entries.
    """

    def __init__(self, pairs: ArrayLike, entries: int) -> None:
        # A copy: share_memory() frees the memory of the torch buffer that a view would read.
        self.pairs = np.asarray(pairs, dtype=np.int32).copy()
        self.entries = entries
        if self.pairs.ndim != 2 or self.pairs.shape[1] != 2 or not len(self.pairs):
            raise InputError(f"phrases must have shape (phrases, 2) with at least one phrase, got {self.pairs.shape}")
        numbers = entries + np.arange(len(self.pairs), dtype=np.int32)
        wrong = np.flatnonzero(((self.pairs < 0) | (self.pairs >= numbers[:, None])).any(1))
        if len(wrong):
            part = self.pairs[wrong[0]].tolist()
            raise InputError(
                f"phrase {wrong[0]} is {part}: its parts must be entries below {entries} or phrases before it"
            )
        width = entries + len(self.pairs)
        keys = self.pairs[:, 0].astype(np.int64) * width + self.pairs[:, 1]
        ascending = np.sort(keys)
        if (ascending[1:] == ascending[:-1]).any():
            raise InputError("a pair occurs twice among the phrases")
        # How many ids of the tokenizer each id stands for; 0 for a phrase until the sizes of its parts are known.
        self.sizes = np.repeat([1, 0], [entries, len(self.pairs)])
        waiting = np.arange(len(self.pairs))
        while len(waiting):
            of_parts = self.sizes[self.pairs[waiting]]
            ready = of_parts.all(1)
            found, sizes = waiting[ready], of_parts[ready].sum(1)
            if sizes.max() > LONGEST_PHRASE:
                place = int(np.argmax(sizes > LONGEST_PHRASE))
                raise InputError(
                    f"phrase {found[place]} must stand for at most {LONGEST_PHRASE} entries, got {sizes[place]}"
                )
            self.sizes[numbers[found]] = sizes
            waiting = waiting[~ready]
        # The kernel's ctx_phrases, with its address: pairs and their ids, in buckets of a hash. C reads these arrays.
        bits = len(self.pairs).bit_length()
        buckets = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - bits)
        order = np.argsort(buckets)
        starts = np.searchsorted(buckets[order], np.arange((1 << bits) + 1, dtype=np.uint64)).astype(np.int32)
        self._arrays = keys[order], numbers[order], starts
        self._structure = np.array([width, 64 - bits, *map(address, self._arrays)], np.int64)
        self.in_c = address(self._structure)

    def __reduce__(self) -> tuple[Any, ...]:
        return Phrases, (self.pairs, self.entries)

    @cached_property
    def _by_pair(self) -> dict[tuple[int, int], int]:
        return {(first, second): self.entries + place for place, (first, second) in enumerate(self.pairs.tolist())}

    def merged(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ids of one text with pairs merged from left to right, until there are none."""
        left, read, find = -1, ids.tolist(), self._by_pair.get
        while left != len(read):
            left, place, merged = len(read), 0, []
            while place < left:
                found = find((read[place], read[place + 1])) if place + 1 < left else None
                merged.append(read[place] if found is None else found)
                place += 1 if found is None else 2
            read = merged
        return np.array(read, ID)

    @cached_property
    def junctions(self) -> set[tuple[int, int]]:
        """The pairs of entries at which two parts of a phrase can meet. Other neighbours are never merged."""
        first, last = list(range(self.entries)), list(range(self.entries))
        found = set()
        for left, right in self.pairs.tolist():
            found.add((last[left], first[right]))
            first.append(first[left])
            last.append(last[right])
        return found

    def texts(self, entries: list[str]) -> list[str]:
        """Return the text of each phrase, given the entries' texts by id; ``##`` marks entries that continue a word."""
        known = list(entries)
        for first, second in self.pairs.tolist():
            text = known[second]
            joined = text.removeprefix(CONTINUED) if text.startswith(CONTINUED) else f" {text}"
            known.append(known[first] + joined)
        return known[self.entries :]


# A letter or mark as it is, nothing for an invisible character, and a space for all others.
_LETTERS = Translation(
    lambda sign: sign if unicodedata.category(sign)[0] in "LM" else "" if unicodedata.category(sign) == "Cf" else " "
)


def is_read(evidence: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a model can read each of B texts, given :meth:`TextTokenizer.evidence` (B, 5).

    It can read a text if it knows at least half of the words. In a text without words it must know a number, or
    all of the marks. Texts that a model cannot read look alike to it: unknown words and full stops.
    """
    known, unknown, said, balance, of_words = evidence.T
    # The words alone tell which unknown tokens are words. In a text with twice as many known ones, it does not matter.
    balance = np.where(unknown > balance, of_words, balance)
    return np.asarray((balance >= 0) & ((said > 0) | ((known > 0) & (unknown == 0))))


def require_no_gaps(tokenizer: Tokenizer, named: str = "") -> None:
    """Raise an InputError unless a tokenizer's ids are 0, 1, 2 ..., as many as its entries."""
    entries, highest = tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values(), default=-1)
    if entries != highest + 1:
        raise InputError(
            f"{named}the tokenizer's ids must have no gaps, got {entries} entries with ids up to {highest}"
        )


def require_entries(tokenizer: Tokenizer, entries: int, added: int) -> None:
    """Raise an InputError if a tokenizer no longer has so many entries, ``added`` of them added to its model's."""
    now = tokenizer.get_vocab_size()
    if (now, len(tokenizer.get_added_tokens_decoder())) != (entries, added):
        raise InputError(
            f"tokens were added to the model's tokenizer ({now:,} entries), but its token table has rows for the "
            f"{entries:,} entries from before; load the model again, or make one whose table has rows for new tokens"
        )


def _places(encoding: Any) -> NDArray[np.int64]:
    """Return where the tokens of an encoding start and stop, (T, 2): its offsets, without keeping other threads."""
    places = timely(map(encoding.token_to_chars, range(len(encoding))))
    return np.fromiter(chain.from_iterable(places), np.int64).reshape(-1, 2)


class TextTokenizer:
    """A tokenizer of whole batches into packed ids, without special tokens.

    It reads texts as :func:`ctx_embed.text.normalisation.normalised` does. Without phrases the ids are exactly those of
    ``tokenizer.encode_batch(texts, add_special_tokens=False)`` for normalised texts. If the tokenizer works word by
    word and the kernel is compiled, words that occurred before are looked up instead of tokenized again, and after two
    thousand new words the kernel does the WordPiece of lower-case letters and digits itself.
    """

    def __init__(self, tokenizer: Tokenizer, phrases: Phrases | None = None) -> None:
        self.tokenizer, self.phrases = tokenizer, phrases
        self._entries = tokenizer.get_vocab_size()
        added = tokenizer.get_added_tokens_decoder().values()
        self._count_added = len(added)
        self._normalizers = [part for part in parts_of(tokenizer.normalizer) if part["type"] != "Sequence"]
        kinds = [part["type"] for part in parts_of(tokenizer.pre_tokenizer) if part["type"] != "Sequence"]
        # Whether the ids of a text are those of its words, split at whitespace, one after the other.
        self.wordwise = (
            {part["type"] for part in self._normalizers} <= WORDWISE_NORMALIZERS
            and bool(kinds)
            and kinds[0] != "Punctuation"
            and set(kinds) <= WORDWISE_PRE_TOKENIZERS
            and not any(token.lstrip or token.rstrip or len(token.content.split()) != 1 for token in added)
        )
        # The ASCII punctuation that is always a token of its own, except characters of added tokens.
        self._cuts = ""
        if CUTTING_PRE_TOKENIZER in kinds and not any(token.single_word for token in added):
            self._cuts = "".join(set(string.punctuation).difference(*(token.content for token in added)))
        # The table of words that have been met, and how many words were new to it.
        self._words: Words | None = None
        self._new = 0
        self._adding = threading.Lock()
        # What each id adds to the evidence of a text, (4,); filled as ids are met.
        self._added: dict[int, tuple[int, ...]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return TextTokenizer, (self.tokenizer, self.phrases)

    def _tokenized(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the ids of normalised texts from the tokenizer itself, which reads some at once."""
        found: list[NDArray[np.int32]] = []
        sizes = accumulate(map(len, texts))
        try:
            for _, some in groupby(zip(sizes, texts, strict=True), lambda each: each[0] // CHARACTERS_AT_ONCE):
                require_time()
                run = self.tokenizer.encode_batch_fast([text for _, text in some], add_special_tokens=False)
                found += [np.array(encoding.ids, dtype=ID) for encoding in run]
        # A panic in the tokenizer's Rust code, e.g. of a regular expression that gives up, is not an `Exception`.
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise InputError(f"the model's tokenizer fails on a text ({error!s:.200})") from None
        if found and np.concatenate(found).max(initial=0) >= max(self._entries, 1):
            raise InputError(f"the model's tokenizer has ids beyond its {self._entries} entries; its file is damaged")
        return found

    @cached_property
    def _lowers_words(self) -> bool:
        """Whether an ASCII word of letters and digits has the ids that WordPiece returns for it in lower case."""
        added = self.tokenizer.get_added_tokens_decoder().values()
        return (
            isinstance(self.tokenizer.model, WordPiece)
            and [(part["type"], part.get("lowercase")) for part in self._normalizers] == [("BertNormalizer", True)]
            and "#" in self._cuts
            and self.tokenizer.model.continuing_subword_prefix == CONTINUED
            and not any(token.content.isalnum() for token in added)
        )

    @cached_property
    def cut(self) -> re.Pattern[str]:
        """Matches where a text can be cut into pieces whose ids follow each other, if ``wordwise``."""
        by_bert, signs = any(part["type"] == "BertNormalizer" for part in self._normalizers), re.escape(self._cuts)
        return re.compile(rf"[\s{IDEOGRAPHS if signs and by_bert else ''}{signs}\U00020000-\U0003ffff](?=[\w{signs}])")

    def _of_long_word(self, word: str) -> NDArray[np.int32]:
        """Return the ids of a word longer than LONG_WORD, read in pieces."""
        pieces, most = list[str](), getattr(self.tokenizer.model, "max_input_chars_per_word", LONG_WORD)
        for piece in in_pieces(normalised(word), self.cut):
            # A word of so many letters and signs is unknown either way, so its beginning is enough.
            end = CHARACTERS_AT_ONCE + LONG_WORD
            rest = set[str]().union(*map(set, in_pieces(piece[CHARACTERS_AT_ONCE:-1])))
            kinds = {unicodedata.category(character)[0] for character in rest}
            is_long = kinds <= set("LNS") and most < LONG_WORD and self._cuts
            is_long = is_long and not any(self.cut.match(f"{character}a") for character in rest)
            # Each sign of punctuation is a token of its own.
            own = in_pieces(piece) if kinds == {"P"} and self._cuts else [piece]
            pieces += [piece[:end] + piece[end:][-1:]] if is_long else own
        return np.concatenate(self._tokenized(pieces or [""]))

    @cached_property
    def unknown(self) -> NDArray[np.int32]:
        """The ids that say nothing about a text: the unknown token, and phrases of only unknown tokens."""
        model = self.tokenizer.model
        name = getattr(model, "unk_token", None)
        if name is None and isinstance(model, Unigram):
            number = json.loads(model.__getstate__()).get("unk_id")
        else:
            number = None if name is None else self.tokenizer.token_to_id(name)
        ids = np.array([] if number is None else [number], ID)
        while self.phrases is not None and len(ids):
            found = np.flatnonzero(np.isin(self.phrases.pairs, ids).all(1)) + self.phrases.entries
            if np.isin(found, ids).all():
                break
            ids = np.union1d(ids, found.astype(ID))
        return ids

    def _adds(self, number: int) -> tuple[int, ...]:
        """Return what an id adds to the evidence of a text, (4,). A phrase adds the sum of its parts."""
        if not self._added:
            self._added.update(dict.fromkeys(self.unknown.tolist(), (0, 1, 0, -1)))
        found = self._added.get(number)
        if found is None:
            if self.phrases is not None and number >= self.phrases.entries:
                parts = self.phrases.pairs[number - self.phrases.entries].tolist()
                found = tuple(map(sum, zip(*map(self._adds, parts), strict=True)))
            else:
                text = self.tokenizer.id_to_token(number) or ""
                found = (1, 0, int(LETTER_OR_DIGIT.search(text) is not None), int(WORD.match(text) is not None))
            self._added[number] = found
        return found

    def _summed(self, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the evidence of packed texts, (B, 4): the sum of what their ids add."""
        sums, ends = np.zeros((len(lengths) + 1, 4), np.int64), np.append(0, lengths.cumsum())
        before = sums[0]
        for start in range(0, len(ids), CHARACTERS_AT_ONCE):
            require_time()
            entries, places = np.unique(ids[start : start + CHARACTERS_AT_ONCE], return_inverse=True)
            table = np.array([self._adds(number) for number in entries.tolist()], np.int64)
            run = before + table[places].cumsum(0)
            first, last = np.searchsorted(ends, (start + 1, start + len(run) + 1))
            sums[first:last] = run[ends[first:last] - start - 1]
            before = run[-1]
        return np.diff(sums, axis=0)

    def evidence(
        self, texts: Sequence[str], ids: NDArray[np.int32], lengths: NDArray[np.int64], *, parts: bool = False
    ) -> NDArray[np.int64]:
        """Return the evidence (B, 5) by which :func:`is_read` judges texts; with ``parts`` it may be added up.

        It is the known tokens, the unknown ones, the known ones with a letter or a digit, the known words minus the
        unknown tokens, and the known words minus the unknown ones, of the words alone. Here only tokens with a letter
        are words: marks, numbers and emoji are not.
        """
        found = np.zeros((len(texts), 5), np.int64)
        found[:, :4] = self._summed(ids, lengths)
        some = np.arange(len(texts)) if parts else np.flatnonzero(found[:, 1] > found[:, 3])
        letters = ["".join(part.translate(_LETTERS) for part in in_pieces(texts[place])) for place in some.tolist()]
        found[some, 4] = self._summed(*self(letters))[:, 3]
        return found

    def read(
        self, texts: Sequence[str], prompt: str | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the packed ids that a model reads, prompts included; a text that it cannot read has none."""
        require_entries(self.tokenizer, self._entries, self._count_added)
        unknown, whole = self.unknown, self(texts)
        ids, lengths = self([prompt + text for text in texts]) if prompt else whole
        if limit is not None and lengths.max(initial=0) > limit:
            # The counts make most messages different, so that Python does not filter them as repeated warnings.
            cut = np.flatnonzero(lengths > limit)
            named = examples((texts[place] for place in cut.tolist()), len(cut))
            warn(
                f"{len(cut)} of {len(lengths)} texts, the longest of {lengths.max()} tokens, were cut to "
                f"max_seq_length={limit} ({named}); raise it, or set it to None to read all"
            )
            ids = ids[np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths) < limit]
            lengths = lengths.clip(max=limit)
        own, counts = whole
        if not prompt and len(own) < FEW_IDS and set(unknown.tolist()).isdisjoint(own.tolist()):
            return ids, lengths
        read = counts > 0
        is_unknown = own == unknown[0] if len(unknown) == 1 else np.isin(own, unknown)
        # For few texts, counting takes a tenth of the time of any() and all().
        if np.count_nonzero(is_unknown):
            doubtful = np.zeros(len(counts), bool)
            doubtful[np.searchsorted(counts.cumsum(), np.flatnonzero(is_unknown), side="right")] = True
            some = [texts[place] for place in np.flatnonzero(doubtful).tolist()]
            read[doubtful] = is_read(self.evidence(some, own[np.repeat(doubtful, counts)], counts[doubtful]))
        if np.count_nonzero(read) == len(read):
            return ids, lengths
        return ids[np.repeat(read, lengths)], lengths * read

    def __call__(self, texts: Sequence[str], *, merged: bool = True) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the ids (N,) of all texts one after the other, and each text's number of ids (B,)."""
        in_c, phrases = kernel() if self.wordwise else None, self.phrases if merged else None
        if in_c is None:
            pieces = self._tokenized(list(map(normalised, texts)))
            pieces = pieces if phrases is None else [phrases.merged(piece) for piece in pieces]
            lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
            return np.concatenate(pieces) if pieces else np.empty(0, ID), lengths
        pairs = None if phrases is None else phrases.in_c
        # Look up the ids of words in a table. If it lacks many, a new one reads these with its own WordPiece.
        words, does_wordpiece = self._words, self._new > WORDS_BEFORE_WORDPIECE and self._lowers_words
        while True:
            if words is None or (does_wordpiece and not words.reads_wordpiece):
                with self._adding:
                    # Another thread may have made it first.
                    if self._words is None or self._words is words:
                        model, wordpiece = self.tokenizer.model, None
                        if does_wordpiece:
                            vocabulary = model.__getstate__().partition(b'"vocab":{')[2]
                            wordpiece = vocabulary, self._entries, model.max_input_chars_per_word
                        self._words = Words(in_c, self._cuts, wordpiece, self._new <= WORDS_BEFORE_WORDPIECE)
                    words = self._words
            found = Found(words, texts)
            if not found.unknown:
                return found.ids(None, None, pairs)
            self._new += len(found.unknown)
            does_wordpiece = self._new > WORDS_BEFORE_WORDPIECE and self._lowers_words
            if words.reads_wordpiece or not does_wordpiece:
                break
        # Unknown words go through the tokenizer in one batch, except long ones, and entries: those are found sooner.
        longest = self.tokenizer.model.max_input_chars_per_word if self._lowers_words else 0
        read: dict[str, Sequence[int] | NDArray[np.int32]] = {}
        for word in found.unknown:
            is_plain = len(word) <= longest and word.isascii() and word.isalnum()
            entry = self.tokenizer.token_to_id(word.lower()) if is_plain else None
            if entry is not None and entry < self._entries:
                read[word] = [entry]
            elif len(word) > LONG_WORD:
                read[word] = self._of_long_word(word)
        others = [word for word in found.unknown if word not in read]
        read |= zip(others, self._tokenized(list(map(normalised, others))), strict=True)
        new = [read[word] for word in found.unknown]
        starts = np.array([0, *accumulate(map(len, new))], np.int64)
        ids = np.fromiter(timely(chain.from_iterable(new)), ID)
        if self._adding.acquire(blocking=False):
            # A caller that comes while another one adds does not wait: its words stay unknown for this once.
            try:
                if not words.add(found, ids, starts):
                    self._words = None
            finally:
                self._adding.release()
        return found.ids(ids, starts, pairs)

    def entry_texts(self) -> list[str]:
        """Return the text of each id; a phrase's text is its parts separated by spaces."""
        named = self.tokenizer.get_vocab(with_added_tokens=True)
        texts = sorted(named, key=named.__getitem__)
        return texts if self.phrases is None else texts + self.phrases.texts(texts)

    def offsets(self, text: str) -> NDArray[np.int64]:
        """Return where each of the tokenizer's tokens starts and stops in a text as it is, (T, 2), no empty ones."""
        found, begin = [np.empty((0, 2), np.int64)], 0
        for piece in in_pieces(text, self.cut) if self.wordwise else [text]:
            # encode() would keep other threads waiting.
            (encoding,) = self.tokenizer.encode_batch([piece], add_special_tokens=False)
            found.append(begin + _places(encoding))
            begin += len(piece)
        places = np.concatenate(found)
        return places[places[:, 0] < places[:, 1]]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where each id of a text starts and stops, in characters of the original text."""
        read, starts, stops = with_places(text)
        (encoding,) = self.tokenizer.encode_batch([read], add_special_tokens=False)
        offsets = [
            (int(starts[start]) if start < len(starts) else len(text), int(stops[stop - 1]) if stop else 0)
            for start, stop in _places(encoding).tolist()
        ]
        if self.phrases is None or not encoding.ids:
            return offsets
        last = self.phrases.sizes[self.phrases.merged(np.array(encoding.ids, ID))].cumsum()
        first = np.concatenate([[0], last[:-1]])
        return [
            (offsets[begin][0], offsets[end - 1][1]) for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]
