"""What is evaluated on them: encoders by name, and their cached embeddings."""
