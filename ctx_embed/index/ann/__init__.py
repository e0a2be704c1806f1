"""Nearest neighbours: exact search, FAISS indexes and their cache, and the tuning of their search effort.

Called by the view of an index, its writer and its analyses.
Kinds of FAISS index change in ``factories.py``; how the file is written, in ``faiss_file.py``; how it is read and
searched, in ``nearest.py``.
"""
