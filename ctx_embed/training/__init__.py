"""Training a Contextualizer: from labels, by distillation, and the vocabulary before either."""
