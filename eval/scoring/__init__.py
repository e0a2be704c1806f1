"""How embeddings are scored: probes, similarity, retrieval and their statistics.

Called by ``eval/evaluation.py``.
``probes.py`` defines the protocols; ``score.py`` decides how a task is scored.
"""
