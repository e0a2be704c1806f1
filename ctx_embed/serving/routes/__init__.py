"""The routes of the server, by subject.

Called by ``serving/app.py``.
A route changes in its subject's file; the searches themselves are in ``serving/indexes.py``.
"""
