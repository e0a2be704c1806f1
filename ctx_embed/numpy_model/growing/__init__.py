"""Embeddings of growing texts: only the new part of a text is read."""
