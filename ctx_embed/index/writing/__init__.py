"""Changes to an index: transactions, chunking and compaction.

Called by ``SearchIndex`` and by builds.
What a change writes, who may write, and what follows a commit is in ``writer.py``; passages, in ``chunking.py``.
"""
