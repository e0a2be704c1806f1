"""Training from labels: an encoder and a linear head, end to end."""
