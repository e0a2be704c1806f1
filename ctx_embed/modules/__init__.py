"""The Contextualizer as sentence-transformers modules."""

from ctx_embed.modules.contextualizer import Contextualizer
from ctx_embed.modules.contextualizer_pooling import ContextualizerPooling

__all__ = ["Contextualizer", "ContextualizerPooling"]
