"""Distillation: an encoder learns the embeddings of any SentenceTransformer.

Called by ``ctx-embed distill``.
``job.py`` tells the whole; an option starts in ``options.py``; texts are read in ``texts.py``; the loop is ``trainer.py``,
and a new term of its loss goes into ``objectives.py``, ``labels.py`` or ``pairs.py``.
"""
