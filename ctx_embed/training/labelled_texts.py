"""Hashes of the labelled texts that a model learned from, because an evaluation on these texts would flatter it."""

import hashlib
import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_WORD = re.compile(r"\w+")


def words_of(text: str) -> str:
    """Return the text's words in lower case, separated by single spaces: texts are compared in this form."""
    return " ".join(_WORD.findall(text.lower()))


def text_hash(text: str) -> int | None:
    """Return a 64-bit hash of a text's words, ignoring case and punctuation; None for a text without words."""
    words = words_of(text)
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little") if words else None


def hashes_of(texts: Iterable[str]) -> Hashes:
    """Return the hashes of texts, ascending, each once."""
    found = {hashed for text in texts if (hashed := text_hash(text)) is not None}
    return np.array(sorted(found), dtype=np.uint64)


def joined(*parts: Hashes | None) -> Hashes | None:
    """Return all hashes of the parts, ascending, each once; None if no part has any."""
    known = [part for part in parts if part is not None and len(part)]
    return np.unique(np.concatenate(known)) if known else None


def are_known(texts: Iterable[str], hashes: Hashes) -> NDArray[np.bool_]:
    """Return for each of n texts whether its hash is among ``hashes``, (n,)."""
    wanted = [text_hash(text) for text in texts]
    found: NDArray[np.bool_] = np.isin(np.array([hashed or 0 for hashed in wanted], dtype=np.uint64), hashes)
    found &= np.array([hashed is not None for hashed in wanted], dtype=bool)
    return found


def warning(encoder: str, task: str, count: int, rows: int) -> str:
    """Return the warning about a score on texts that an encoder was trained on."""
    return (
        f"{task}: {count:,} of {rows:,} texts are among the labelled texts that {encoder} was trained on; "
        "its score says less about new texts"
    )
