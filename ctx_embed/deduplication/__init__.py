"""Deduplication of files: the first of each group of near-duplicate texts is kept. Memory is bounded."""

from ctx_embed.deduplication.near_duplicates import Deduplicated, dedupe

__all__ = ["Deduplicated", "dedupe"]
