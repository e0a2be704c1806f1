"""The public module of the embedder without torch, see :mod:`ctx_embed.numpy_model`."""

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names
from ctx_embed.numpy_model import BATCH_TEXTS, Embedder, UnsupportedModelError

if TYPE_CHECKING:
    from ctx_embed.numpy_model.document_state import DocumentState

__all__ = ["BATCH_TEXTS", "DocumentState", "Embedder", "UnsupportedModelError"]

# States need zipfile and more, which takes longer to load than a text to embed.
__getattr__, *_ = lazy_names(__name__, {"ctx_embed.numpy_model.document_state": "DocumentState"})


def __dir__() -> list[str]:
    return list(__all__)
