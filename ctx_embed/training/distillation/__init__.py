"""Distillation: an encoder learns the embeddings of any SentenceTransformer.

Called by ``ctx-embed distill``.
``job.py`` tells the whole; ``texts.py`` reads; ``trainer.py`` is the loop, ``objectives.py`` has the terms of its loss.
"""
