"""The systems a Contextualizer is compared with, and their names.

Called by training, evaluation and explanations.
A new system is a class in ``heads.py`` (attention), ``pooling.py`` or ``transformer.py``, and two lines in
``registry.py``.
"""

from ctx_embed.systems.attention import AttentionWeights, attention_weights
from ctx_embed.systems.registry import (
    SYSTEMS,
    option_defaults,
    parameter_count,
    require_options,
    system,
    untrained,
    without_vocabulary,
)

__all__ = [
    "SYSTEMS",
    "AttentionWeights",
    "attention_weights",
    "option_defaults",
    "parameter_count",
    "require_options",
    "system",
    "untrained",
    "without_vocabulary",
]
