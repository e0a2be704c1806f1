"""How embeddings are scored: probes, similarity, retrieval and their statistics.

Called by ``eval/evaluation.py``.
A protocol is named in ``protocols.py``; each kind of score has its own file.
"""
