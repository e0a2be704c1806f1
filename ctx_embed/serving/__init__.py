"""The HTTP server: embeddings as OpenAI's clients ask for them, search indexes, and a page to search them on.

Called by ``ctx-embed serve`` and ``mcp``.
``routes.py`` and ``app.py`` answer requests, ``settings.py`` and ``gate.py`` have the limits, and ``running.py`` runs
the process.
"""
