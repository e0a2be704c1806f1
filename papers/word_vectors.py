"""LAMA's input: whole words, with vectors that word2vec learns from the training part (extra ``papers``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from ctx_embed.errors import missing_extra

UNKNOWN_WORD = "[UNK]"
# Words that occur fewer times are unknown, as in LAMA's paper.
LEAST = 5


def words_and_vectors(texts: Sequence[str], dimension: int, seed: int) -> tuple[Tokenizer, NDArray[np.float32]]:
    """Return a tokenizer of whole words, in lower case and with punctuation apart, and word2vec's vectors of them.

    Args:
        texts: the training texts; words that occur fewer than five times in them are unknown.
        dimension: features of a vector.
        seed: seed of word2vec, which runs on one thread to be reproducible.

    Returns:
        The tokenizer, and (words, dimension) with zeros for the unknown word.

    Raises:
        InputError: gensim is not installed.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise missing_extra("word vectors", "papers") from None
    normalizer, splitter = BertNormalizer(), BertPreTokenizer()
    read = [[word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))] for text in texts]
    model = Word2Vec(read, vector_size=dimension, min_count=min(LEAST, len(texts)), seed=seed, workers=1)
    words = {UNKNOWN_WORD: 0}
    vectors = [np.zeros(dimension, np.float32)]
    for word in model.wv.index_to_key:
        if word not in words:
            words[word] = len(words)
            vectors.append(model.wv[word])
    tokenizer = Tokenizer(WordLevel(words, unk_token=UNKNOWN_WORD))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    return tokenizer, np.stack(vectors)
