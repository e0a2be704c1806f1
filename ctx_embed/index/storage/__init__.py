"""The parts of an index on disk: manifest, shards of vectors, documents and metadata filters."""
