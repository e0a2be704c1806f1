"""Embedding of large data sets in parallel: by the threads of one machine, or on a Ray cluster.

Called by ``ctx-embed encode --to``; writes into :mod:`ctx_embed.stores`.
What a worker does and how files are cut change in ``work.py``; how Ray runs it, in ``on_ray.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctx_embed.lazy import lazy_names

if TYPE_CHECKING:
    from ctx_embed.bulk_encoding.encoding import Encoded, encode_dataset

__all__ = ["Encoded", "encode_dataset"]

_HOMES = dict.fromkeys(__all__, "ctx_embed.bulk_encoding.encoding")
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
