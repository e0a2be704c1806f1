"""Nearest neighbours: exact search, and FAISS's index of the vectors.

Called by the view of an index, its writer and its analyses.
How the file is read and searched changes in ``nearest.py``; its kinds, and how it is written, in ``faiss_file.py``.
"""
