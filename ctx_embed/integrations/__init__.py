"""Embeddings for other frameworks, one file each: import the one you need, e.g. ``ctx_embed.integrations.langchain``.

Called by users of those frameworks only. Each takes a model by its name (``default``, ``minilm``, a name on the hub) or
a folder, as :func:`ctx_embed.load` does. It stores that string as given, never the path that it resolves to, and loads
the model once per process, at its first use.
"""
