"""Training from labels: an encoder and a linear head, end to end.

Called by ``ctx-embed train``, :class:`ctx_embed.TextClassifier` and ``eval run --protocol paper``.
``job.py`` tells the whole; the loop is ``train.py``; scikit-learn's interface, ``classifier.py``.
"""
