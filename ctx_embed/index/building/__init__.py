"""Building an index from files, with resume.

Called by ``ctx-embed index build``, ``merge``, ``backup`` and ``reembed``.
All of it changes in ``build.py``.
"""
