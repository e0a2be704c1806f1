"""The attention and the words in C: one file, compiled when the package is built, called through ctypes.

Without a compiled library, or with ``CTX_EMBED_KERNEL=numpy``, :func:`kernel` returns None and its callers use NumPy:
:mod:`ctx_embed.numpy_model` for c^K, :mod:`ctx_embed.text` for ids. The equations are in :mod:`ctx_embed.second_order`.
"""

from ctx_embed.kernel.library import Attention, Kernel, PhrasesInC, Words, kernel, kernel_name

__all__ = ["Attention", "Kernel", "PhrasesInC", "Words", "kernel", "kernel_name"]
