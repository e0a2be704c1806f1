"""The public module of the embedder without torch, see :mod:`ctx_embed.numpy_model`."""

from ctx_embed.numpy_model import BATCH_TEXTS, DocumentState, Embedder, UnsupportedModelError

__all__ = ["BATCH_TEXTS", "DocumentState", "Embedder", "UnsupportedModelError"]
