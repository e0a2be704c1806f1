"""Embedding of large data sets in parallel: by the threads of one machine, or on a Ray cluster.

Called by ``ctx-embed encode --to``; writes into :mod:`ctx_embed.stores`.
What a worker does and how files are cut change in ``work.py``; how Ray runs it, in ``on_ray.py``.
"""

from ctx_embed.bulk_encoding.encoding import Encoded, encode_dataset

__all__ = ["Encoded", "encode_dataset"]
