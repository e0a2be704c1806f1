"""Embeddings for other frameworks, one file each: import the one you need.

Called by users of those frameworks only.
Each framework changes in its own file; what they share is in ``shared.py``.

    from ctx_embed.integrations.langchain import CtxEmbeddings
    from ctx_embed.integrations.llama_index import CtxEmbedding
    from ctx_embed.integrations.chroma import CtxEmbeddingFunction
    from ctx_embed.integrations.sklearn import EmbeddingTransformer
    from ctx_embed.integrations.mteb import model_meta

Each takes a model by its name (``default``, ``minilm``, a name on the hub) or a folder, as :func:`ctx_embed.load` does.
They store that string as it was given, never a path that it resolves to, and load the model once per process, at its
first use.
"""
