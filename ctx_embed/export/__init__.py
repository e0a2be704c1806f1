"""Models for other programs: an ONNX graph, and static embeddings for model2vec and StaticEmbedding.

Called by ``ctx-embed export``. Each format changes in its own file.
"""
