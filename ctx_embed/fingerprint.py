"""The identity of a model: one hash over everything that decides its embeddings."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# The config of modules that sentence-transformers 5.7 knows without options: as 6 writes it, one model has one hash.
CONFIGS = {"Normalize": {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}}


def _tokenizer_json(module: torch.nn.Module) -> str:
    """Return the tokenizer's canonical JSON without padding and truncation, which calls change in passing."""
    # A module of ours has both: its own tokenizer counts, not the view of it made for transformers.
    tokenizer: Any = getattr(module, "backend_tokenizer", None) or getattr(module, "tokenizer", None)
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if tokenizer is None or not hasattr(tokenizer, "to_str"):
        return ""
    content = json.loads(tokenizer.to_str())
    content.pop("padding", None)
    content.pop("truncation", None)
    return json.dumps(content, sort_keys=True)


def _config_json(module: torch.nn.Module) -> str:
    describe: Any = getattr(module, "get_config_dict", dict)
    name = type(module).__name__
    return json.dumps([name, {**CONFIGS.get(name, {}), **describe()}], sort_keys=True, default=str)


def fingerprint(model: SentenceTransformer) -> str:
    """Return the sha256 over the modules' configs, tokenizers, and sorted tensor names, dtypes, shapes and bytes.

    Two models with the same fingerprint return the same embedding of the same prompted text; a bfloat16 copy of a model
    is another model. Prompts and the default prompt are settings of a model, not part of it.

    Args:
        model: any SentenceTransformer.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for module in model.children():
        digest.update(_config_json(module).encode())
        digest.update(_tokenizer_json(module).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def identity(*parts: Any) -> str:
    """Return a hash over JSON values that decide a run's course: its options and its data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
