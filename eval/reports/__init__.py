"""The reports of an evaluation: tables and comparisons.

Called by ``ctx-embed eval run`` and ``compare``.
A table changes in ``tables.py``; a comparison, in ``comparison.py``.
"""
