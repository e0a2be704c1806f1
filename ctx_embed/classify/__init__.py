"""Text classifiers: a linear head over a sentence encoder, without torch.

Called by ``ctx-embed train`` and ``predict``, the server, and :mod:`ctx_embed.training.supervised`.
How a head is fitted changes in ``fitting.py``; what it saves and predicts, in ``head.py``.
"""
