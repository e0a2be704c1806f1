"""How a model identifies itself to other programs: its name, and its fingerprint as its revision."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from sentence_transformers import SentenceTransformerModelCardData

from ctx_embed.fingerprint import fingerprint

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


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
