"""The Contextualizer as sentence-transformers modules.

Called by :func:`ctx_embed.load`, training and :mod:`ctx_embed.systems`.
``token_encoder.py`` saves, loads and tokenizes; ``contextualizer_pooling.py`` holds the options of the steps.
"""

from sentence_transformers.sentence_transformer import modules

from ctx_embed.modules.contextualizer import Contextualizer
from ctx_embed.modules.contextualizer_pooling import ContextualizerPooling

__all__ = ["Contextualizer", "ContextualizerPooling"]

# sentence-transformers saves a class under its ``__module__``. Its versions define Normalize in different files and all
# export it here: under this name a model saved with one opens with the others.
modules.Normalize.__module__ = modules.__name__
