"""Analysis of an index: verification, near-duplicates, topics and export.

Called by ``SearchIndex``.
Each analysis changes in its own file.
"""
