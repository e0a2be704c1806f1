"""Distillation: an encoder learns the embeddings of any SentenceTransformer.

Called by ``ctx-embed distill``.
``job.py`` tells the whole; an option starts in ``options.py``; ``texts.py`` reads; ``trainer.py`` is the loop.
A new term of the loss goes into ``objectives.py``, ``labels.py`` or ``pairs.py``.
"""
