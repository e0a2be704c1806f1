"""The card that sentence-transformers writes when it saves a model over a token table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from sentence_transformers import SentenceTransformerModelCardData

from ctx_embed.fingerprint import fingerprint, revision
from ctx_embed.model_card import CARD, INHERITED, facts, inherited, licence, listed, name_of, page, table, usage

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
