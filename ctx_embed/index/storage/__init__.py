"""The parts of an index on disk: one database of settings, documents and vectors, and metadata filters."""
