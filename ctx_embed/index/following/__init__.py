"""The folders that an index follows: their files, changes, and the place of a passage in its file.

Called by ``ctx-embed index sync`` and by builds of folders.
What counts as changed is in ``changes.py``; what is done about it, in ``sync.py``.
"""
