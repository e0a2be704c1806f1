"""Models for other programs: an ONNX graph, and static embeddings for model2vec and StaticEmbedding."""
