"""Analysis of an index: verification, near-duplicates, topics and export.

Called by ``SearchIndex``.
Each analysis has a file of its own.
"""
