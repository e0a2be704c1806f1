"""Building an index from files, with resume.

Called by ``ctx-embed index build``, ``merge``, ``backup`` and ``reembed``.
Builds change in ``build.py``; an index of several, in ``merging.py``.
"""
