"""The attention and the words in C: one file, compiled when the package is built, called through ctypes.

Called by :mod:`ctx_embed.numpy_model`, :mod:`ctx_embed.modules` and :mod:`ctx_embed.text`.
A change goes into ``contextualizer.c``; ``library.py`` calls its functions, and ``make kernel`` compiles it.

Without a compiled library, or with ``CTX_EMBED_KERNEL=numpy``, :func:`kernel` returns None and its callers use NumPy:
:mod:`ctx_embed.numpy_model` for c^K, :mod:`ctx_embed.text` for ids. The equations are in :mod:`ctx_embed.second_order`.

What needs NumPy is in ``library.py``, so that ``ctx-embed --version`` loads none.
"""

import ctypes
import os
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError, quoted

__all__ = ["Kernel", "kernel", "kernel_name"]

SOURCE = Path(__file__).with_name("contextualizer.c")
LIBRARY = SOURCE.with_suffix({"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so"))
# Compiled paths from the slowest to the fastest; their numbers are those of the C file.
PATHS = {"plain": 0, "avx2": 1}
VARIABLE = "CTX_EMBED_KERNEL"

# The result and the number of arguments of each call. Integers and addresses have eight bytes alike.
_CALLS: dict[str, tuple[Any, int]] = {
    "ctx_free": (None, 1),
    "ctx_model_new": (ctypes.c_void_p, 1),
    "ctx_embed": (ctypes.c_int64, 6),
    "ctx_added": (ctypes.c_int64, 5),
    "ctx_nearest": (ctypes.c_int64, 14),
    "ctx_words_new": (ctypes.c_void_p, 3),
    "ctx_words_add": (ctypes.c_int64, 6),
    "ctx_words_entries": (ctypes.c_int64, 5),
    "ctx_words_find": (ctypes.c_int64, 9),
    "ctx_words_ids": (ctypes.c_int64, 9),
}


class Kernel(ctypes.CDLL):
    """The loaded library; ``name`` is the path that it takes, one of PATHS."""

    name = "plain"


def _chosen(wanted: str) -> tuple[Kernel | None, str]:
    """Return the kernel for a value of VARIABLE, or None, and what embeds texts then."""
    if wanted == "numpy":
        return None, f"numpy ({VARIABLE} asks for it)"
    if wanted not in ("", *PATHS):
        raise InputError(f"{VARIABLE} must be numpy, {' or '.join(PATHS)}, got {quoted(wanted)}")
    library, reason, built_from = None, "", ""
    try:
        content = LIBRARY.read_bytes()
        # Loading a file that was cut short would end the process.
        if content[-8:] != f"{zlib.crc32(content[:-8]):08x}".encode():
            raise OSError("it is not as it was built; `make kernel` or another installation replaces it")
        library = Kernel(str(LIBRARY))
        library.ctx_source.restype = ctypes.c_char_p
        built_from = library.ctx_source().decode()
    except FileNotFoundError:
        reason = f"{LIBRARY.name} was not built; a C compiler and `pip install` make it"
    except (OSError, AttributeError) as error:
        reason = f"{LIBRARY.name} cannot be loaded ({error!s:.200})"
    if not reason and SOURCE.exists() and built_from != f"{zlib.crc32(SOURCE.read_bytes()):08x}":
        reason = f"{LIBRARY.name} is older than {SOURCE.name}; build it again with `make kernel`"
    if library is None or reason:
        if wanted:
            raise InputError(f"{VARIABLE} asks for {wanted}, but {reason}; unset it to use NumPy")
        return None, f"numpy ({reason})"
    here = [name for name, number in PATHS.items() if library.ctx_paths() >> number & 1]
    if wanted and wanted not in here:
        raise InputError(f"{VARIABLE} must be numpy or {' or '.join(here)} on this processor, got {quoted(wanted)}")
    for call, (result, count) in _CALLS.items():
        function = getattr(library, call)
        function.restype, function.argtypes = result, [ctypes.c_void_p] * count
    library.name = wanted or here[-1]
    return library, library.name


@cache
def _here() -> tuple[Kernel | None, str]:
    """Return the kernel and what embeds texts, as VARIABLE says at the first use in a process; the log says it, too."""
    library, name = _chosen(os.environ.get(VARIABLE, "").lower())
    # A program with a log has already imported logging, which takes a twentieth of the time to a first vector.
    if logging := sys.modules.get("logging"):
        logging.getLogger(__name__).info("kernel: %s", name)
    return library, name


def kernel() -> Kernel | None:
    """Return the compiled kernel of this processor; None if NumPy has to do the work."""
    return _here()[0]


def kernel_name() -> str:
    """Return what embeds texts here: ``avx2``, ``plain``, or ``numpy`` and why."""
    return _here()[1]
