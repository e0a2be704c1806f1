"""Learn a WordPiece vocabulary from text with the ``tokenizers`` library."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import Unigram, WordPiece
from tokenizers.trainers import WordPieceTrainer

from ctx_embed.errors import InputError
from ctx_embed.numpy_model import saved
from ctx_embed.progress import Meter
from ctx_embed.reading.rows import in_blocks
from ctx_embed.text.tokenizer import require_no_gaps
from ctx_embed.texts import well_formed

UNKNOWN = "[UNK]"
PAD = "[PAD]"
# Texts whose words are counted at once.
BLOCK_TEXTS = 1000
# Maximum number of letters that become entries.
LETTERS = 1000


def learn_vocabulary(
    texts: Iterable[str], size: int = 32_000, *, letters: int = LETTERS, progress: bool = True
) -> Tokenizer:
    """Learn a lower-case WordPiece vocabulary without accents; punctuation marks are words of their own.

    The tokenizer works word by word, so that :class:`ctx_embed.text.tokenizer.TextTokenizer` can remember words.
    The vocabulary depends only on the texts, not on their order.

    Args:
        texts: any number of texts, read once.
        size: maximum number of entries, including the unknown entry and the padding.
        letters: maximum number of letters; words with rarer letters are unknown.
        progress: show a progress bar on stderr.

    Returns:
        The tokenizer; entry 0 is padding, entry 1 the unknown entry.

    Raises:
        InputError: a size too small for the letters of the texts, or no text.
    """
    tokenizer = Tokenizer(WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw: Counter[str] = Counter()
    for block in in_blocks(Meter("vocabulary", shown=progress).each(texts), BLOCK_TEXTS):
        raw.update(well_formed(" ".join(block)).split())
    # The number of times each word occurs, normalised and split like the tokenizer does.
    words: Counter[str] = Counter()
    for word, count in raw.items():
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(word)):
            words[piece] += count
    occurring: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            occurring[letter] += count
    if not occurring:
        raise InputError("the texts must have at least one word to learn a vocabulary from, got none")
    alphabet = sorted(occurring, key=lambda letter: (-occurring[letter], letter))[:letters]
    continued = sorted({letter for word in words for letter in word[1:]} & set(alphabet))
    # Give the trainer the letters in a fixed order, so that every run learns the same vocabulary. Otherwise it chooses
    # among equally frequent letters, and numbers letters within words, in the random order of a hash table, and breaks
    # ties between merges by these numbers.
    trainer = WordPieceTrainer(
        vocab_size=size,
        special_tokens=[PAD, UNKNOWN, *(f"##{letter}" for letter in continued)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,  # The trainer's own bar would write to stdout.
    )
    # Repeat each word as often as it occurs, at most 1000 times in a text.
    repeated = (
        " ".join([word] * min(1000, count - start))
        for word, count in sorted(words.items())
        for start in range(0, count, 1000)
    )
    tokenizer.train_from_iterator(repeated, trainer)
    entries = tokenizer.get_vocab_size()
    if entries > size:
        raise InputError(f"size must be at least {entries}, one entry for each letter of the texts, got {size}")
    learned = Tokenizer(WordPiece(tokenizer.get_vocab(), unk_token=UNKNOWN))
    learned.normalizer, learned.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    learned.add_special_tokens([PAD, UNKNOWN])
    return learned


def read_vocabulary(path: str | Path) -> Tokenizer:
    """Read a ``tokenizer.json``; raise an InputError if it has no unknown token for words outside its vocabulary."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file; make a tokenizer.json with ctx-embed vocab FILE -o {path}")
    tokenizer = saved.read_tokenizer(Path(path))
    require_no_gaps(tokenizer, f"{path}: ")
    model = tokenizer.model
    named: str | None = getattr(model, "unk_token", None)
    missing = named is not None and model.token_to_id(named) is None
    if isinstance(model, Unigram):
        state = json.loads(model.__getstate__())
        missing = state["unk_id"] is None and not state.get("byte_fallback")
    if missing:
        raise InputError(
            f"{path}: must have an unknown token for words that it lacks{f' ({named})' if named else ''}, got none; "
            f"add it, or make a tokenizer.json with ctx-embed vocab FILE -o {path}"
        )
    return tokenizer
