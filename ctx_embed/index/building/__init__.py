"""Building an index from files, with resume.

Called by ``ctx-embed index build``, ``merge``, ``backup`` and ``reembed``.
Each of these changes in its own file; sources are read in ``readers.py``.
"""
