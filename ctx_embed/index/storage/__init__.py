"""What an index keeps on disk: manifest, shards of vectors, documents and their filters."""
