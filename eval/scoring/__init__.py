"""How embeddings are scored: probes, similarity, retrieval and their statistics.

Called by ``eval/evaluation.py``.
A protocol is named in ``probes.py``; how a task is scored changes in ``score.py``.
"""
