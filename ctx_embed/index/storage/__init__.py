"""The parts of an index on disk: one database of settings, documents and vectors, and metadata filters.

Called by every other part of the index.
Tables change in ``database.py``, ``documents.py`` and ``vectors.py``, and with them the format's number; FAISS's file
in ``faiss_file.py``, and the search by vectors in ``folder.py``, where a View is one generation.
"""
