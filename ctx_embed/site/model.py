"""The pieces of a model: the kernel, the vocabulary, the steps, Unicode, and the token table in shards."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.numpy_model import Embedder
from ctx_embed.site.pieces import Pieces, varint
from ctx_embed.site.tables import ASCII_WORDS, patterns, tables
from ctx_embed.text.tokenizer import CONTINUED

# The sources of the module, and the kernel compiled to WebAssembly (`make wasm`).
MODULE = Path(__file__).with_name("js")
KERNEL = "kernel.wasm"
# Rows of the token table in a shard: a query of six words needs about six shards of 10 kB, most of them already there.
ROWS = 32


def require_readable(embedder: Any) -> Embedder:
    """Return a model that browsers can run; raise InputError if it is another one."""
    wanted = "search of a static site needs"
    if not isinstance(embedder, Embedder):
        raise InputError(f"{wanted} a Contextualizer that NumPy runs, got {type(embedder).__name__}")
    of_text = embedder.text_tokenizer
    if not (of_text.wordwise and of_text._lowers_words and len(of_text.unknown) == 1):
        raise InputError(f"{wanted} a lower-case WordPiece vocabulary with an unknown token, as the default model has")
    if embedder._prompt(None, "query") or embedder.max_seq_length is not None:
        raise InputError(f"{wanted} a model without a prompt for queries and without max_seq_length")
    if embedder.contextualizer.initial_context == "uniform":
        raise InputError(f"{wanted} a model with another initial_context than 'uniform'")
    return embedder


def add_model(pieces: Pieces, embedder: Embedder) -> dict[str, Any]:
    """Write the pieces of a model and return what the manifest says of it."""
    packed, of_text, table = embedder.contextualizer, embedder.text_tokenizer, embedder.saved.table
    phrases, added = of_text.phrases, embedder.tokenizer.get_added_tokens_decoder()
    arrays = {**packed.steps._asdict(), "c0": packed.c0}
    if is_sequence := packed.positions != "none":
        arrays["s"] = packed.s
    entries = embedder.tokenizer.get_vocab_size()
    levels = np.ascontiguousarray(table.values)
    scales = np.ones(len(levels), np.float32) if table.scales is None else table.scales.astype(np.float32)
    pairs = np.zeros((0, 2), np.int64) if phrases is None else phrases.pairs
    # Numbers without their seven lowest bits, which changes vectors by less than 1e-5: three planes of bytes, the
    # exponents first, and one of the signs as bits.
    bits = np.concatenate([array.ravel() for array in arrays.values()]).astype(np.float32).view(np.uint32)
    rounded = bits.astype(np.uint64) + 64 >> 7
    planes = [(rounded >> shift & 255).astype(np.uint8) for shift in (16, 8, 0)] + [np.packbits(rounded >> 24 > 0)]
    shards: list[tuple[bytes, ...]] = []
    for start in range(0, len(levels), ROWS):
        some, of_scales = levels[start : start + ROWS], scales[start : start + ROWS, None].view(np.uint8).T
        shards.append((varint(len(some)) + some.tobytes(), of_scales.tobytes()))
    vocabulary = embedder.tokenizer.get_vocab(with_added_tokens=True)
    model: Any = embedder.tokenizer.model
    return {
        "fingerprint": embedder.fingerprint,
        "dimension": packed.dimension,
        "kept": embedder.dimension,
        "steps": len(packed.steps.U),
        "rank": packed.steps.U.shape[1],
        "shared": not is_sequence and packed.scale == "mean",
        "mean": packed.scale == "mean",
        "relative": packed.positions == "relative",
        "floats": table.scales is None,
        "arrays": [[name, int(array.size)] for name, array in arrays.items()],
        "entries": entries,
        "size": len(levels),
        "rows": ROWS,
        "cuts": "".join(sorted(of_text._cuts)),
        "longest": model.max_input_chars_per_word,
        "unknown": int(of_text.unknown[0]),
        "continued": CONTINUED,
        "word": patterns(ASCII_WORDS)["word"],
        "added": {token.content: number for number, token in added.items()},
        "pieces": {
            "kernel": pieces.add((MODULE / KERNEL).read_bytes()),
            "vocabulary": pieces.add("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)).encode()),
            "parameters": pieces.add(b"".join(plane.tobytes() for plane in planes)),
            "tables": pieces.add(json.dumps(tables(embedder.tokenizer), ensure_ascii=False).encode()),
            "phrases": pieces.add(*((pairs.T >> shift & 255).astype(np.uint8).tobytes() for shift in (16, 8, 0))),
            "rows": pieces.add_list(shards),
        },
    }
