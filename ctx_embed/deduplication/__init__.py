"""Deduplication of files: keep the first text of each group of near-duplicates, in about 200 bytes of memory a row.

Called by ``ctx-embed dedupe``.
What counts as equal and the search change in ``near_duplicates.py``; how rows are copied, in ``rows.py``.
"""

from ctx_embed.deduplication.near_duplicates import Deduplicated, dedupe

__all__ = ["Deduplicated", "dedupe"]
