"""Nearest neighbours: exact search, FAISS indexes and their cache, and the tuning of their search effort."""
