"""A search: options and queries, rankings by meaning and by words, reranking, hits.

Called by ``SearchIndex``, ``grep``, the server and the stores.
A new option starts in ``options.py``; one search, from query to hits, is ``search.py``.
"""
