"""The HTTP server: embeddings as OpenAI's clients ask for them, search indexes, and a page to search them on.

Called by ``ctx-embed serve`` and ``mcp``.
An answer changes in ``routes.py`` and ``app.py``; limits, in ``settings.py`` and ``gate.py``; the process, in
``running.py``.
"""
