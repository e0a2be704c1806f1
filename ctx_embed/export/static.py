"""Models of the system ``mean`` as static embeddings, for model2vec and sentence-transformers' StaticEmbedding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ctx_embed.errors import InputError, missing_extra
from ctx_embed.files import replaced_folder, require_replaceable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MARK = "config.json"


def export(model: SentenceTransformer, output: str | Path) -> None:
    """Write a model of the system ``mean`` as a StaticEmbedding; model2vec leaves unknown tokens out of the mean."""
    try:
        from model2vec import StaticModel
    except ModuleNotFoundError as error:
        raise missing_extra(f"export static: {error.name}", "peers") from None
    from sentence_transformers.sentence_transformer.modules import Normalize

    from ctx_embed.systems.pooling import MeanEmbedding

    output = Path(output)
    require_replaceable(output, MARK)
    module, *others = model.children()
    if not isinstance(module, MeanEmbedding) or not all(isinstance(other, Normalize) for other in others):
        raise InputError(
            f"{type(module).__name__} is no static embedding: only models of the system mean are; for a Contextualizer "
            "there is `ctx-embed export onnx`"
        )
    if module.phrases is not None:
        raise InputError("the model has phrases, which model2vec and StaticEmbedding cannot read; train it without")
    if module.get_config_dict()["max_seq_length"] is not None:
        raise InputError("the model has a max_seq_length, which a static embedding cannot have; set it to None")
    table = module.embedding.weight.detach().float().cpu().numpy()
    static = StaticModel(
        np.ascontiguousarray(table), module.text_tokenizer.tokenizer, normalize=bool(others), max_length=None
    )
    with replaced_folder(output) as folder:
        static.save_pretrained(folder, model_name=output.name)
