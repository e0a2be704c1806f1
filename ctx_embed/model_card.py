"""Model cards: what a saved model is, how it was made (as far as recorded), and how to load it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from huggingface_hub import ModelCardData, metadata_load

from ctx_embed.fingerprint import fingerprint
from ctx_embed.identity import IdentifiedCard
from ctx_embed.numpy_model.saved import DEFAULT_MODEL, DEFAULT_NAME

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CARD = "README.md"
PACKAGES = ("ctx-embed", "sentence-transformers", "tokenizers", "torch")
TAGS = ("sentence-transformers", "feature-extraction", "ctx-embed")
# The metadata that a model passes on to the models made from it.
INHERITED = ("language", "license")
# The metadata that sentence-transformers' trainer sets and the hub reads.
OF_TRAINER = ("base_model", "datasets")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that influence the result of a training."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def inherited(folder: Path | None) -> dict[str, Any]:
    """Return the language and licence stated by the card in a model's folder, as far as it states them."""
    try:
        stated = metadata_load(folder / CARD) if folder is not None else None
    # If there is no card, or it is not YAML, the libraries raise various errors.
    except Exception:
        stated = None
    return {name: stated[name] for name in INHERITED if stated and stated.get(name)}


def name_of(folder: Path) -> str:
    """Return the name that cards use for the model in a folder: that of the default model, or the folder's name."""
    return DEFAULT_NAME if folder == DEFAULT_MODEL else folder.resolve().name


def front_matter(values: Mapping[str, Any]) -> str:
    """Return the YAML block at the top of a card; empty values are left out."""
    tags = list(dict.fromkeys([*TAGS, *values.get("tags", ())]))
    stated = {name: value for name, value in values.items() if value}
    return f"---\n{ModelCardData(**{**stated, 'library_name': 'sentence-transformers', 'tags': tags}).to_yaml()}\n---"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; without rows an empty string."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    head = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*head, *lines]) if lines else ""


def listed(values: Mapping[str, Any]) -> str:
    """Return options and their values in one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def described(model: SentenceTransformer, *more: tuple[str, str]) -> str:
    """Return a description of the model as a Markdown table, with ``more`` rows at its end."""
    module: Any = model[0]
    rows = [("dimension", f"{model.get_embedding_dimension()} ({str(model.dtype).removeprefix('torch.')})")]
    if hasattr(module, "entry_texts"):
        phrases = 0 if module.phrases is None else len(module.phrases)
        of_phrases = f" and {phrases:,} phrases" if phrases else ""
        rows += [
            ("encoder", f"{type(module).__name__}: {listed(module.get_config_dict())}"),
            ("vocabulary", f"{module.entries - phrases:,} entries{of_phrases}"),
        ]
    rows.append(("parameters", f"{sum(parameter.numel() for parameter in model.parameters()):,}"))
    rows.append(("fingerprint", f"`{fingerprint(model)}`"))
    return table(["", ""], [*rows, *more])


def usage(name: str) -> str:
    """Return how to embed texts with the model in the folder ``name``."""
    return (
        f'```python\nimport ctx_embed\n\nmodel = ctx_embed.load("{name}")\n'
        'embeddings = model.encode(["a text", "another text"])\n```\n\n'
        f'`SentenceTransformer("{name}", trust_remote_code=True)` loads the same model where ctx-embed is installed.'
    )


def licence(origin: str | None, stated: Mapping[str, Any]) -> str:
    """Return the sentence about the licence of a model.

    Args:
        origin: the model that it was made from, if any.
        stated: the metadata of that model's card, see :func:`inherited`.
    """
    if "license" in stated:
        return (
            f"`{stated['license']}`, inherited from {origin}, whose card names the data and licences behind it. The "
            "terms of the texts that this model was trained on may bind it too."
        )
    return "None is stated. The terms of the texts that the model was trained on may bind it."


def page(metadata: Mapping[str, Any], title: str, parts: Mapping[str, str]) -> str:
    """Return a card: metadata, title, the part named '', then a section for each other part that is not empty."""
    sections = [f"## {name}\n\n{text}" for name, text in parts.items() if name and text]
    versions_line = f"## Versions\n\n{listed(versions())}"
    return "\n\n".join([front_matter(metadata), f"# {title}", parts[""], *sections, versions_line]) + "\n"


class Card(IdentifiedCard):
    """The card that ``save_pretrained`` writes for a model over a token table.

    A model that has not changed since it was loaded keeps its card. Any other model gets a new card from its records.
    """

    template_path = Path(__file__).with_suffix(".md")

    @property
    def source(self) -> Path | None:
        """The folder that the model was loaded from; None if it was made in this program."""
        return None if self.model is None else getattr(self.model[0], "source", None)

    def to_dict(self) -> dict[str, Any]:
        """Return the values of the template: the whole ``card``."""
        origin = self._fingerprint_of_source()
        came_with = self._came_with(origin)
        return {"card": self._text(super().to_dict(), origin) if came_with is None else came_with}

    def to_yaml(self, line_break: str | None = None, original_order: list[str] | None = None) -> str:
        """Return an empty string: the card already contains its metadata."""
        return ""

    def _came_with(self, origin: str | None) -> str | None:
        """Return the card of the folder that the model came from, if the model still has the fingerprint ``origin``."""
        if self.source is None or "generated_from_trainer" in self.tags or not (self.source / CARD).is_file():
            return None
        if self.model is None or fingerprint(self.model) != origin:
            return None
        return (self.source / CARD).read_text(encoding="utf-8", errors="replace")

    def _fingerprint_of_source(self) -> str | None:
        """Return the fingerprint of the model in the folder that this one was loaded from; None if it is gone."""
        from sentence_transformers import SentenceTransformer

        if self.model is None or self.source is None:
            return None
        try:
            entries = json.loads((self.source / "modules.json").read_text(encoding="utf-8"))
            modules = [
                cast(Any, type(module)).load(str(self.source), subfolder=entry["path"], local_files_only=True)
                for module, entry in zip(self.model, entries, strict=True)
            ]
        # The model can be saved even if its source folder is now damaged.
        except Exception:
            return None
        return fingerprint(SentenceTransformer(modules=modules, device="cpu"))

    def _text(self, known: Mapping[str, Any], fingerprint_of_source: str | None) -> str:
        """Return a card made from what sentence-transformers' trainer and the model itself record."""
        assert self.model is not None
        name = self.model_id or Path(self.save_dir or "").name or "model"
        stated = inherited(self.source)
        origin = None if self.source is None else name_of(self.source)
        how = "made by a program of its own" if origin is None else f"{origin} changed by a program of its own"
        if "generated_from_trainer" in self.tags:
            how = "trained with sentence-transformers"
        made_from = f"{origin}, fingerprint `{fingerprint_of_source or 'unknown'}`"
        said = {field: getattr(self, field) for field in INHERITED if getattr(self, field)}
        return page(
            {**stated, **said, "tags": self.tags, **{field: known.get(field) for field in OF_TRAINER}},
            name,
            {
                "": f"Sentence embeddings: {how}.\n\n"
                + described(self.model, *([("made from", made_from)] if origin else [])),
                "Use": usage(name),
                "Training": _training(known) or "Not recorded.",
                "Scores": "\n\n".join(
                    f"{metrics['description']} ({listed({'data': metrics['dataset_name']}) or 'unnamed data'}):\n\n"
                    f"{metrics['table']}"
                    for metrics in known.get("eval_metrics") or ()
                ),
                "Licence": licence(origin, {**stated, **said}),
            },
        )


def _training(known: Mapping[str, Any]) -> str:
    """Return the data, options and log of sentence-transformers' trainer."""
    rows = [
        [
            dataset.get("name") or "unnamed",
            f"{dataset['size']:,}" if dataset.get("size") else "unknown",
            ", ".join(column.replace("<code>", "").replace("</code>", "") for column in dataset.get("columns") or ()),
            dataset.get("loss", {}).get("fullname", "").rpartition(".")[2],
        ]
        for dataset in known.get("train_datasets") or ()
    ]
    options = listed(known.get("non_default_hyperparameters") or {})
    parts = [
        table(["data", "rows", "columns", "loss"], rows),
        f"Options other than the trainer's defaults: {options}." if options else "",
        (known.get("eval_lines") or "").strip(),
    ]
    return "\n\n".join(part for part in parts if part)
