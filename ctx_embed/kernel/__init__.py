"""The attention and the words in C: one file, compiled when the package is built, called through ctypes.

Called by :mod:`ctx_embed.numpy_model`, :mod:`ctx_embed.modules` and :mod:`ctx_embed.text`.
A change goes into ``contextualizer.c``; ``library.py`` declares its functions, and ``make kernel`` compiles it.

Without a compiled library, or with ``CTX_EMBED_KERNEL=numpy``, :func:`kernel` returns None and its callers use NumPy:
:mod:`ctx_embed.numpy_model` for c^K, :mod:`ctx_embed.text` for ids. The equations are in :mod:`ctx_embed.second_order`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.kernel.loading import Kernel, kernel, kernel_name
from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.kernel.library import Attention, Found, PhrasesInC, Words

__all__ = ["Attention", "Found", "Kernel", "PhrasesInC", "Words", "kernel", "kernel_name"]

# What needs NumPy is imported at first use, so that `ctx-embed --version` loads none.
__getattr__, __dir__ = lazy_names(
    __name__, dict.fromkeys(("Attention", "Found", "PhrasesInC", "Words"), "ctx_embed.kernel.library")
)
