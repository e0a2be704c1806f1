"""Text classifiers: a linear head over a sentence encoder, without torch.

Called by ``ctx-embed train`` and ``predict``, the server, and :mod:`ctx_embed.training.supervised`.
``fitting.py`` decides how a head is fitted; ``head.py``, what it saves and predicts.
"""
