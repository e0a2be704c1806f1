"""What an evaluation scores: encoders by name, and their cached embeddings."""
