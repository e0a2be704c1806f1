"""Nearest neighbours: exact search, FAISS indexes and their cache, and how their effort is tuned."""
