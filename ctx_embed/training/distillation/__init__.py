"""Distillation: an encoder learns the embeddings of any SentenceTransformer.

Called by ``ctx-embed distill``.
Start with ``job.py``; ``texts.py`` reads texts, ``trainer.py`` is the loop, and ``objectives.py`` has the loss terms.
"""
