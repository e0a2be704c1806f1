"""Embed texts with an exported model: python embed.py DIR TEXT..., a JSON array a line.

DIR is what `ctx-embed export onnx default -o DIR` wrote. Needs numpy, onnxruntime and tokenizers.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, texts = Path(sys.argv[1]), sys.argv[2:]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
pairs = json.loads((folder / "phrases.json").read_text(encoding="utf-8"))
entries = tokenizer.get_vocab_size()
characters = json.loads((folder / "characters.json").read_text(encoding="utf-8"))
read, context = str.maketrans(characters["read"]), re.compile(characters["context"])


def in_context(found: re.Match[str]) -> str:
    """Return what soft hyphens, joiners and tags are read as by what stands around them."""
    kept, space, inside = found.groups()
    if kept:
        return found[0]
    if space:
        return f"{found[0][0]} "
    return "" if inside else "-" * found[0].count("\xad")


def normalised(text: str) -> str:
    """Return a text as the model reads it: characters that mean the same are written the same way."""
    return unicodedata.normalize("NFC", context.sub(in_context, text.translate(read)))


# Phrases of single entries are merged in one pass from left to right, then phrases of these, and so on.
level = [0] * entries
passes: list[dict[tuple[int, int], int]] = []
for number, (first, second) in enumerate(pairs, entries):
    level.append(1 + max(level[first], level[second]))
    while len(passes) < level[number]:
        passes.append({})
    passes[level[number] - 1][first, second] = number


def token_ids(text: str) -> list[int]:
    """Return the ids of a text, phrases merged."""
    ids: list[int] = tokenizer.encode(normalised(text), add_special_tokens=False).ids
    for phrases in passes:
        merged, place = [], 0
        while place < len(ids):
            phrase = phrases.get(tuple(ids[place : place + 2]))
            merged.append(ids[place] if phrase is None else phrase)
            place += 1 if phrase is None else 2
        ids = merged
    return ids


ids = [token_ids(text) for text in texts]
offsets = np.cumsum([0, *map(len, ids[:-1])])
session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
packed = np.array([number for of_text in ids for number in of_text], np.int64)
(embeddings,) = session.run(None, {"input_ids": packed, "offsets": offsets.astype(np.int64)})
for embedding in embeddings.tolist():
    print(json.dumps(embedding))
