"""Model cards: what a saved model is, how it was made (as far as recorded), and how to load it."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from huggingface_hub import ModelCardData, metadata_load
from sentence_transformers import SentenceTransformerModelCardData

from ctx_embed.fingerprint import fingerprint, revision
from ctx_embed.numpy_model.saved import DEFAULT_MODEL, DEFAULT_NAME

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CARD = "README.md"
PACKAGES = ("ctx-embed", "sentence-transformers", "tokenizers", "torch")
TAGS = ("sentence-transformers", "feature-extraction", "ctx-embed")
# The metadata that a model passes on to the models made from it.
INHERITED = ("language", "license")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that influence the result of a training."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


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


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; without rows an empty string."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    head = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*head, *lines]) if lines else ""


def listed(values: Mapping[str, Any]) -> str:
    """Return options and their values in one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def facts(model: SentenceTransformer) -> list[tuple[str, str]]:
    """Return what a model is, as rows of a :func:`table` without heads."""
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
        f'`SentenceTransformer("{name}", trust_remote_code=True)` loads the same model where ctx-embed is installed.'
    )


def licence(origin: str | None, stated: Mapping[str, Any]) -> str:
    """Return the sentence about a model's licence, as ``stated`` by the card of the model it was made from, if any."""
    if "license" in stated:
        return (
            f"`{stated['license']}`, inherited from {origin}, whose card names the data and licences behind it. The "
            "terms of the texts that this model was trained on may bind it too."
        )
    return "None is stated. The terms of the texts that the model was trained on may bind it."


def page(metadata: Mapping[str, Any], title: str, parts: Mapping[str, str]) -> str:
    """Return a card: metadata, title, the part named '', then a section for each other part that is not empty."""
    stated = {name: value for name, value in metadata.items() if value}
    stated |= {"library_name": "sentence-transformers", "tags": list(dict.fromkeys([*TAGS, *metadata.get("tags", ())]))}
    sections = [f"## {name}\n\n{text}" for name, text in parts.items() if name and text]
    first = f"---\n{ModelCardData(**stated).to_yaml()}\n---"
    return "\n\n".join([first, f"# {title}", parts[""], *sections, f"## Versions\n\n{listed(versions())}"]) + "\n"


# The metadata that sentence-transformers' trainer sets and the hub reads.
OF_TRAINER = ("base_model", "datasets")


class IdentifiedCard(SentenceTransformerModelCardData):
    """Model card data whose ``base_model_revision`` is the current :func:`revision` of the model.

    MTEB stores scores by name and revision. So different models never share a score, nor does one model before and
    after training. The revision is computed only when it is read, so that loading stays fast.
    """

    @property
    def base_model_revision(self) -> str | None:
        """The revision of the model; None before the card has a model."""
        return None if self.model is None else revision(self.model)

    @base_model_revision.setter
    def base_model_revision(self, value: str | None) -> None:
        """Ignore the value: sentence-transformers would set the revision of the base model."""


class Card(IdentifiedCard):
    """The card that ``save_pretrained`` writes for a model over a token table.

    A model that has not changed since it was loaded keeps its card. Any other model gets a new card from its records.
    """

    template_path = Path(__file__).with_name("model_card.md")

    @property
    def source(self) -> Path | None:
        """The folder that the model was loaded from; None if it was made in this program."""
        return None if self.model is None else getattr(self.model[0], "source", None)

    def to_dict(self) -> dict[str, Any]:
        """Return the values of the template: the whole ``card``."""
        from sentence_transformers import SentenceTransformer

        origin = modules = None
        if self.model is not None and self.source is not None:
            # The model can be saved even if its source folder is now damaged.
            with suppress(Exception):
                entries = json.loads((self.source / "modules.json").read_text(encoding="utf-8"))
                modules = [
                    cast(Any, type(module)).load(str(self.source), subfolder=entry["path"], local_files_only=True)
                    for module, entry in zip(self.model, entries, strict=True)
                ]
            if modules is not None:
                origin = fingerprint(SentenceTransformer(modules=modules, device="cpu"))
            card = self.source / CARD
            if "generated_from_trainer" not in self.tags and card.is_file() and fingerprint(self.model) == origin:
                return {"card": card.read_text(encoding="utf-8", errors="replace")}
        return {"card": self._text(super().to_dict(), origin)}

    def to_yaml(self, line_break: str | None = None, original_order: list[str] | None = None) -> str:
        """Return an empty string: the card already contains its metadata."""
        return ""

    def _text(self, known: Mapping[str, Any], fingerprint_of_source: str | None) -> str:
        """Return a card made from what sentence-transformers' trainer and the model itself record."""
        assert self.model is not None
        name = self.model_id or Path(self.save_dir or "").name or "model"
        stated = inherited(self.source)
        origin = None if self.source is None else name_of(self.source)
        how = "made by a program of its own" if origin is None else f"{origin} changed by a program of its own"
        if "generated_from_trainer" in self.tags:
            how = "trained with sentence-transformers"
        rows = [
            [
                dataset.get("name") or "unnamed",
                f"{dataset['size']:,}" if dataset.get("size") else "unknown",
                ", ".join(re.sub("</?code>", "", column) for column in dataset.get("columns") or ()),
                dataset.get("loss", {}).get("fullname", "").rpartition(".")[2],
            ]
            for dataset in known.get("train_datasets") or ()
        ]
        options = listed(known.get("non_default_hyperparameters") or {})
        training = [
            table(["data", "rows", "columns", "loss"], rows),
            f"Options other than the trainer's defaults: {options}." if options else "",
            (known.get("eval_lines") or "").strip(),
        ]
        made_from = f"{origin}, fingerprint `{fingerprint_of_source or 'unknown'}`"
        said = {field: getattr(self, field) for field in INHERITED if getattr(self, field)}
        return page(
            {**stated, **said, "tags": self.tags, **{field: known.get(field) for field in OF_TRAINER}},
            name,
            {
                "": f"Sentence embeddings: {how}.\n\n"
                + table(["", ""], [*facts(self.model), *([("made from", made_from)] if origin else [])]),
                "Use": usage(name),
                "Training": "\n\n".join(filter(None, training)) or "Not recorded.",
                "Scores": "\n\n".join(
                    f"{metrics['description']} ({listed({'data': metrics['dataset_name']}) or 'unnamed data'}):\n\n"
                    f"{metrics['table']}"
                    for metrics in known.get("eval_metrics") or ()
                ),
                "Licence": licence(origin, {**stated, **said}),
            },
        )
