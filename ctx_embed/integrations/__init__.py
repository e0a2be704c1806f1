"""Embeddings for other frameworks, one file each: import the one you need, e.g. ``ctx_embed.integrations.langchain``.

Called by users of those frameworks only. Each takes a model by its name (``default``, ``minilm``, a name on the hub) or
a folder, as :func:`ctx_embed.load` does. They store that string as it was given, never a path that it resolves to, and
load the model once per process, at its first use.
"""
