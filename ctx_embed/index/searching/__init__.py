"""A search: options and queries, rankings by meaning and by words, reranking, hits."""
