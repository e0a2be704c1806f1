"""The student before its training: its first weights, from the teacher's embeddings."""
