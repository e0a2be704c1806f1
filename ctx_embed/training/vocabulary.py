"""Learning a WordPiece vocabulary from text with the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from ctx_embed.errors import InputError

UNKNOWN = "[UNK]"
PAD = "[PAD]"


def learn_vocabulary(texts: Iterable[str], size: int = 32_000, *, progress: bool = True) -> Tokenizer:
    """Learn a lower-case WordPiece vocabulary; accents fall, punctuation stands alone.

    The tokenizer works word by word, so that :class:`ctx_embed.modules.tokenization.TextTokenizer` can remember words.

    Args:
        texts: any number of texts, read once.
        size: entries at most, the unknown entry and the padding included.
        progress: show a progress bar on stderr.

    Returns:
        The tokenizer; entry 0 is padding, entry 1 the unknown entry.

    Raises:
        InputError: a size too small for the letters of the texts, or no text.
    """
    tokenizer = Tokenizer(WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=size, special_tokens=[PAD, UNKNOWN], limit_alphabet=1000, show_progress=progress, min_frequency=2
    )
    tokenizer.train_from_iterator(texts, trainer)
    entries = tokenizer.get_vocab_size()
    if entries <= 2:
        raise InputError("the texts hold no word to learn a vocabulary from")
    if entries > size:
        raise InputError(f"size {size} is too small: the letters of the texts alone need {entries} entries")
    return tokenizer


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Read a ``tokenizer.json``.

    Raises:
        InputError: no such file, or not a tokenizer of the ``tokenizers`` library.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file, a tokenizer.json is needed: ctx-embed vocab FILE -o {path}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        # The library raises bare Exception for a file it cannot parse.
        raise InputError(f"{path}: not a tokenizer.json ({str(error).splitlines()[0]})") from None
