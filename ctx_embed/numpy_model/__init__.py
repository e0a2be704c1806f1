"""The same models and files without torch: NumPy and tokenizers embed texts within a third of a second of the start.

Called by search, ``grep``, ``encode`` and ``predict``; public as :mod:`ctx_embed.runtime`.
``saved.py`` reads a model's folder; ``embedder.py`` encodes.
"""

from ctx_embed.numpy_model.embedder import BATCH_TEXTS, Embedder
from ctx_embed.numpy_model.saved import UnsupportedModelError

__all__ = ["BATCH_TEXTS", "Embedder", "UnsupportedModelError"]
