"""Deduplication of files: keep the first text of each group of near-duplicates, in about 200 bytes of memory a row."""

from ctx_embed.deduplication.near_duplicates import Deduplicated, dedupe

__all__ = ["Deduplicated", "dedupe"]
