"""Training from labels: an encoder and a linear head, end to end.

Called by ``ctx-embed train``, :class:`ctx_embed.TextClassifier` and ``eval run --protocol paper``.
Start with ``job.py``; ``train.py`` is the loop, and ``classifier.py`` has scikit-learn's interface.
"""
