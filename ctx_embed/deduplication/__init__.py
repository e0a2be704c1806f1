"""Deduplication of files: keep the first text of each group of near-duplicates, in about 200 bytes of memory a row.

Called by ``ctx-embed dedupe``.
What counts as equal changes in ``signatures.py``; the search for candidates, in ``near_duplicates.py``.
"""

from ctx_embed.deduplication.near_duplicates import Deduplicated, dedupe

__all__ = ["Deduplicated", "dedupe"]
