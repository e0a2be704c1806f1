"""Building an index from files, with resume.

Called by ``ctx-embed index build``, ``merge``, ``backup`` and ``reembed``.
``build.py`` does it all.
"""
