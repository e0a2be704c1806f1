"""Distillation: an encoder learns the embeddings of any SentenceTransformer."""
