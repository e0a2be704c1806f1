"""The identity of a model: one hash over everything that decides its embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ctx_embed.text import normalisation

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# Configs of modules that have none in sentence-transformers 5.7, as version 6 writes them: both then give one hash.
CONFIGS = {"Normalize": {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}}


def reads_normalised(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a module that normalises texts, with the version of the normalisation."""
    return {**config, "normalisation": normalisation.VERSION}


def digest(
    modules: Iterable[tuple[str, dict[str, Any], Any]], tensors: Iterable[tuple[str, str, Iterable[int], Iterable[Any]]]
) -> str:
    """Return the sha256 over a model's configs, tokenizers and tensors."""
    hashed = hashlib.sha256()
    for name, config, tokenizer in modules:
        config = {**CONFIGS.get(name, {}), **config}
        hashed.update(json.dumps([name, config], sort_keys=True, default=str).encode())
        if hasattr(tokenizer, "to_str"):
            content = json.loads(tokenizer.to_str())
            # Calls of the tokenizer change these settings, so they do not count.
            content.pop("padding", None)
            content.pop("truncation", None)
            hashed.update(json.dumps(content, sort_keys=True).encode())
    for name, dtype, shape, blocks in tensors:
        hashed.update(f"{name} {dtype} {list(shape)}\n".encode())
        for block in blocks:
            hashed.update(block)
    return hashed.hexdigest()


def fingerprint(model: SentenceTransformer) -> str:
    """Return the hash over everything that decides a model's embeddings, see :func:`digest`.

    Two models with the same fingerprint return the same embedding of the same prompted text; a bfloat16 copy of a model
    is another model. Prompts and the default prompt are settings of a model, not part of it.
    """
    import torch

    modules = []
    for module in model.children():
        describe: Any = getattr(module, "get_config_dict", dict)
        # Our modules have both; use their own tokenizer rather than its view for transformers.
        tokenizer: Any = getattr(module, "backend_tokenizer", None) or getattr(module, "tokenizer", None)
        config = reads_normalised(describe()) if hasattr(module, "text_tokenizer") else describe()
        modules.append((type(module).__name__, config, getattr(tokenizer, "backend_tokenizer", tokenizer)))
    # One tensor at a time is copied.
    tensors = (
        (
            name,
            str(tensor.dtype),
            tensor.shape,
            [tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data],
        )
        for name, tensor in sorted(model.state_dict().items())
    )
    return digest(modules, tensors)


def identity(*parts: Any) -> str:
    """Return a hash over JSON values that determine the course of a run: its options and its data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def revision(model: SentenceTransformer) -> str:
    """Return the model's fingerprint, with eight more digits if its settings change its embeddings or scores.

    The settings are prompts, ``truncate_dim`` and a similarity other than the cosine.
    """
    settings = {
        "default_prompt_name": model.default_prompt_name,
        "prompts": {name: prompt for name, prompt in model.prompts.items() if prompt},
        "similarity": None if model.similarity_fn_name == "cosine" else model.similarity_fn_name,
        "truncate_dim": model.truncate_dim,
    }
    if not any(settings.values()):
        return fingerprint(model)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"{fingerprint(model)}-{digest[:8]}"
