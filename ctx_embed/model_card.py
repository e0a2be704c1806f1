"""Model cards: what a saved model is, how it was made (as far as recorded), and how to load it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCardData, metadata_load

from ctx_embed.fingerprint import fingerprint
from ctx_embed.numpy_model.saved import DEFAULT_MODEL, DEFAULT_NAME

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CARD = "README.md"
PACKAGES = ("ctx-embed", "sentence-transformers", "tokenizers", "torch")
TAGS = ("sentence-transformers", "feature-extraction", "ctx-embed")
# The metadata that a model passes on to the models made from it.
INHERITED = ("language", "license")


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of those packages, deciding a result, that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def name_of(folder: Path) -> str:
    """Return the name that cards use for the model in a folder: that of the default model, or the folder's name."""
    return DEFAULT_NAME if folder == DEFAULT_MODEL else folder.resolve().name


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; without rows an empty string."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    head = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*head, *lines]) if lines else ""


def listed(values: Mapping[str, Any]) -> str:
    """Return options and their values in one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def facts(model: SentenceTransformer) -> list[tuple[str, str]]:
    """Return the properties of a model (dimension, parameters, ...), as rows of a :func:`table` without heads."""
    module: Any = model[0]
    rows = [("dimension", f"{model.get_embedding_dimension()} ({str(model.dtype).removeprefix('torch.')})")]
    if hasattr(module, "text_tokenizer"):
        phrases = 0 if module.phrases is None else len(module.phrases)
        of_phrases = f" and {phrases:,} phrases" if phrases else ""
        rows += [
            ("encoder", f"{type(module).__name__}: {listed(module.get_config_dict())}"),
            ("vocabulary", f"{module.entries - phrases:,} entries{of_phrases}"),
        ]
    rows.append(("parameters", f"{sum(parameter.numel() for parameter in model.parameters()):,}"))
    return [*rows, ("fingerprint", f"`{fingerprint(model)}`")]


def usage(name: str) -> str:
    """Return how to embed texts with the model in the folder ``name``."""
    return (
        f'```python\nimport ctx_embed\n\nmodel = ctx_embed.load("{name}")\n'
        'embeddings = model.encode(["a text", "another text"])\n```\n\n'
        f'`SentenceTransformer("{name}", trust_remote_code=True)` loads the same model where ctx-embed is installed; '
        "no code is downloaded."
    )


def page(
    name: str,
    what: str,
    described: Sequence[Sequence[object]],
    parts: Mapping[str, str],
    origin: Path | None = None,
    **metadata: Any,
) -> str:
    """Return the card of the model in the folder ``name``: metadata, a sentence (``what``), a table, and sections.

    ``origin`` is the folder of the model that it was made from, whose language and licence it inherits. Empty parts and
    metadata are left out.
    """
    try:
        told = (metadata_load(origin / CARD) if origin is not None else None) or {}
    # If there is no card, or it is not YAML, the libraries raise various errors.
    except Exception:
        told = {}
    stated = {name: told[name] for name in INHERITED if told.get(name)}
    stated |= {field: value for field, value in metadata.items() if value}
    parts = {**parts, "Licence": "None is stated. The terms of the texts that the model was trained on may bind it."}
    if "license" in stated:
        source = "" if origin is None else f", inherited from {name_of(origin)}, whose card names its data and licences"
        parts["Licence"] = (
            f"`{stated['license']}`{source}. The terms of the texts that this model was trained on may bind it too."
        )
    stated |= {"library_name": "sentence-transformers", "tags": list(dict.fromkeys([*TAGS, *stated.get("tags", ())]))}
    parts["Versions"] = listed(versions())
    sections = [f"## {title}\n\n{text}" for title, text in parts.items() if text]
    first = f"---\n{ModelCardData(**stated).to_yaml()}\n---"
    return "\n\n".join([first, f"# {name}", what, table(["", ""], described), *sections]) + "\n"
