"""Changes to an index: transactions, chunking and compaction.

Called by ``SearchIndex`` and by builds.
What a change writes is in ``transaction.py``; who may write, and what follows a commit, in ``writer.py``.
"""
