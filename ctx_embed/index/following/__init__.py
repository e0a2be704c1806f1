"""The folders that an index follows: their files, changes, and the place of a passage in its file.

Called by ``ctx-embed index sync`` and by builds of folders.
What counts as changed, and what is done about it, is in ``sync.py``; what is stored and reported, in ``records.py``.
"""
