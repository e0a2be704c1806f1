"""The parts of an index on disk: one database of settings, documents and vectors, and metadata filters.

Called by every other part of the index.
Tables change in ``database.py`` and ``vectors.py``, and with them the format's number; what a document may hold, in
``documents.py``; FAISS's file in ``faiss_file.py``, and the search by vectors in ``folder.py``.
"""
