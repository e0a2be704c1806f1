"""The parts of an index on disk: one database of settings, documents and vectors, and metadata filters.

Called by every other part of the index.
``database.py`` and ``vectors.py`` define the tables (change the format's number with them), ``documents.py`` what a
document may hold, ``faiss_file.py`` FAISS's file; ``folder.py`` searches by vectors.
"""
