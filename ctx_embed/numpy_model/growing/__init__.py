"""Embeddings of growing texts: only the new part of a text is read.

Called by users of :meth:`ctx_embed.runtime.Embedder.state`.
The sums change in ``sums.py``; a state and its file, in ``document_state.py``.
"""
