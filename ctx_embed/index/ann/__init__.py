"""Nearest neighbours: exact search, FAISS indexes and their cache, and the tuning of their search effort.

Called by the view of an index, its writer and its analyses.
Kinds of FAISS index change in ``factories.py``; the file, in ``faiss_file.py``; scores, in ``nearest.py``.
"""
