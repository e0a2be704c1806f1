"""How embeddings are scored: probes, similarity, retrieval and their statistics."""
