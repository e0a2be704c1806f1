"""A SentEval-style evaluator: linear probes over frozen embeddings."""
