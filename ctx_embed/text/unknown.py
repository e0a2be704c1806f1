"""Judge which texts a model can read, and warn if it does not know a large share of the tokens of many texts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import Unigram

from ctx_embed.texts import well_formed

SAMPLED_TEXTS, SAMPLED_CHARACTERS = 512, 1000
# Users are warned above this share of unknown tokens.
MOST_UNKNOWN = 0.5


class _Letters(dict[int, str]):
    """Letters and their marks by their codes, nothing for what is not seen, and a space for all else."""

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        return self.setdefault(code, chr(code) if category[0] in "LM" else "" if category == "Cf" else " ")


_LETTERS = _Letters()


def letters(text: str) -> str:
    """Return the letters of a text, with spaces for all else."""
    return text.translate(_LETTERS)


def is_read(evidence: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a model can read each of B texts.

    It can read a text of which it knows at least half of the words. In a text without words it must know a number, or
    all of the marks. To a model that cannot read two texts they look alike, as both are unknown words and full stops.

    Args:
        evidence: (B, 4) from :meth:`ctx_embed.text.tokenizer.TextTokenizer.evidence`.
    """
    known, unknown, said, balance = evidence.T
    return np.asarray((balance >= 0) & ((said > 0) | ((known > 0) & (unknown == 0))))


def tokenizer_of(model: Any) -> Tokenizer | None:
    """Return the tokenizer of a model, as the ``tokenizers`` library has it; None if it has none."""
    found = getattr(model, "tokenizer", None)
    found = getattr(found, "backend_tokenizer", found)
    return found if isinstance(found, Tokenizer) else None


def sample(texts: Sequence[str]) -> list[str]:
    """Return the beginnings of some texts, evenly spread over all of them."""
    step = max(1, len(texts) // SAMPLED_TEXTS)
    return [text[:SAMPLED_CHARACTERS] for text in texts[::step][:SAMPLED_TEXTS]]


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of the unknown token; None if the tokenizer knows every text."""
    name = getattr(tokenizer.model, "unk_token", None)
    if name is None and isinstance(tokenizer.model, Unigram):
        number: int | None = json.loads(tokenizer.model.__getstate__()).get("unk_id")
        return number
    return None if name is None else tokenizer.token_to_id(name)


def unknown_share(tokenizer: Tokenizer | None, texts: Sequence[str]) -> float:
    """Return the share of unknown tokens among all tokens of the texts; 0 if the tokenizer knows every token."""
    unknown = None if tokenizer is None else unknown_id(tokenizer)
    if tokenizer is None or unknown is None:
        return 0.0
    encodings = tokenizer.encode_batch([well_formed(text) for text in texts], add_special_tokens=False)
    ids = [token for encoding in encodings for token in encoding.ids]
    return ids.count(unknown) / len(ids) if ids else 0.0


def warning(share: float) -> str:
    """Return the warning about a share of unknown tokens; empty if the share is small enough."""
    if share <= MOST_UNKNOWN:
        return ""
    return (
        f"Warning: the model does not know {share:.0%} of the tokens in these texts, so their similarities mean "
        "little; the default model knows English only."
    )
