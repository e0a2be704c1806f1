"""Distillation: an encoder learns the embeddings of any SentenceTransformer.

Called by ``ctx-embed distill``.
``job.py`` tells the whole; an option starts in ``options.py``; what is learned is in ``loop/``.
"""
