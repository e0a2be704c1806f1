"""MTEB's description of a model (the extra ``mteb``)."""

from functools import partial
from typing import Any

from mteb.models import ModelMeta, SentenceTransformerEncoderWrapper
from mteb.models.model_meta import ScoringFunction

from ctx_embed.fingerprint import revision
from ctx_embed.integrations.shared import shared_model
from ctx_embed.numpy_model.saved import DEFAULT_NAME

# Facts for MTEB that the model's own files do not state in its terms; the model card has the sources. MTEB adds the
# training sets of the teacher, which `adapted_from` names.
DEFAULT = {
    "languages": ["eng-Latn"],
    "license": "apache-2.0",
    "open_weights": True,
    "adapted_from": "sentence-transformers/all-MiniLM-L6-v2",
    "training_datasets": {"ImdbClassification"},
    "use_instructions": False,
}


def _encoder(_: str, *, model: str, revision: str | None = None, **options: Any) -> SentenceTransformerEncoderWrapper:
    return SentenceTransformerEncoderWrapper(shared_model(model))


def model_meta(model: str = "default") -> ModelMeta:
    """Return the description of a model for ``mteb.evaluate(model_meta(), tasks)``, which also loads the model.

    ``mteb.evaluate(ctx_embed.load(), tasks)`` gives the same scores under the same name and revision.
    """
    loaded = shared_model(model)
    parameters = sum(parameter.numel() for parameter in loaded.parameters())
    size = sum(tensor.numel() * tensor.element_size() for tensor in loaded.state_dict().values())
    name = loaded.model_card_data.model_name
    meta: ModelMeta = ModelMeta.create_empty(
        overwrites={
            "loader": partial(_encoder, model=model),
            "name": name,
            "revision": revision(loaded),
            "n_parameters": parameters,
            "n_embedding_parameters": sum(
                parameter.numel() for key, parameter in loaded.named_parameters() if key.endswith("embedding.weight")
            ),
            "memory_usage_mb": round(size / 2**20),
            "max_tokens": loaded.max_seq_length,
            "embed_dim": loaded.truncate_dim or loaded.get_embedding_dimension(),
            "similarity_fn_name": ScoringFunction.from_str(loaded.similarity_fn_name),
            "framework": ["Sentence Transformers", "PyTorch"],
            **(DEFAULT if name == DEFAULT_NAME else {}),
        }
    )
    return meta
