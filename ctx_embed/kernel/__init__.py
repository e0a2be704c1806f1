"""The attention and the words in C: one file, compiled when the package is built, called through ctypes.

Called by :mod:`ctx_embed.numpy_model`, :mod:`ctx_embed.modules` and :mod:`ctx_embed.text`.
A change goes into ``contextualizer.c``; ``library.py`` declares its functions, and ``make kernel`` compiles it.

Without a compiled library, or with ``CTX_EMBED_KERNEL=numpy``, :func:`kernel` returns None and its callers use NumPy:
:mod:`ctx_embed.numpy_model` for c^K, :mod:`ctx_embed.text` for ids. The equations are in :mod:`ctx_embed.second_order`.
"""

# What needs NumPy is in ``library.py``, so that `ctx-embed --version` loads none.
from ctx_embed.kernel.loading import Kernel, kernel, kernel_name

__all__ = ["Kernel", "kernel", "kernel_name"]
