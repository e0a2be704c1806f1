"""The card that sentence-transformers writes when it saves a model over a token table."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from sentence_transformers import SentenceTransformer, SentenceTransformerModelCardData

from ctx_embed.files import final_name
from ctx_embed.fingerprint import fingerprint, revision
from ctx_embed.model_card import CARD, INHERITED, facts, listed, name_of, page, usage

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

    def to_dict(self) -> dict[str, Any]:
        """Return the values of the template: the whole ``card``."""
        assert self.model is not None
        source, trained, unchanged = getattr(self.model[0], "source", None), "generated_from_trainer" in self.tags, None
        if source is not None:
            # The model can be saved even if its source folder is now damaged.
            with suppress(Exception):
                entries = json.loads((source / "modules.json").read_text(encoding="utf-8"))
                modules = [
                    cast(Any, type(module)).load(str(source), subfolder=entry["path"], local_files_only=True)
                    for module, entry in zip(self.model, entries, strict=True)
                ]
                unchanged = fingerprint(SentenceTransformer(modules=modules, device="cpu"))
            if (source / CARD).is_file() and not trained and fingerprint(self.model) == unchanged:
                return {"card": (source / CARD).read_text(encoding="utf-8", errors="replace")}
        how, described = "made by a program of its own", facts(self.model)
        if source is not None:
            how = f"{name_of(source)} changed by a program of its own"
            described.append(("made from", f"{name_of(source)}, fingerprint `{unchanged or 'unknown'}`"))
        known = super().to_dict()
        data = [
            f"{dataset.get('size') or 'unknown'} rows of {dataset.get('name') or 'unnamed data'}, "
            f"loss {dataset.get('loss', {}).get('fullname', '').rpartition('.')[2]}"
            for dataset in known.get("train_datasets") or ()
        ]
        options = listed(known.get("non_default_hyperparameters") or {})
        course = [*data, f"options other than the trainer's defaults: {options}"] if trained else ["Not recorded."]
        name = self.model_id or final_name(Path(self.save_dir or "")) or "model"
        card = page(
            name,
            f"Sentence embeddings: {'trained with sentence-transformers' if trained else how}.",
            described,
            {"Use": usage(name), "Training": "\n\n".join([*course, (known.get("eval_lines") or "").strip()]).strip()},
            source,
            tags=self.tags,
            **{field: getattr(self, field) for field in INHERITED},
            **{field: known.get(field) for field in OF_TRAINER},
        )
        return {"card": card}

    def to_yaml(self, line_break: str | None = None, original_order: list[str] | None = None) -> str:
        """Return an empty string: the card already contains its metadata."""
        return ""
