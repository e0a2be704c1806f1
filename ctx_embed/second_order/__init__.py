"""Second-order attention: the Contextualizer's mathematics as pure functions of NumPy's arrays or torch's tensors.

Called by the modules, the systems and the model without torch.
A change of the equations goes into ``paper.py`` first; tests compare all other forms and the kernel with it.
"""

from __future__ import annotations

from ctx_embed.second_order.arrays import LAYER_NORM_EPS, segment_sum
from ctx_embed.second_order.paper import (
    INITIAL_CONTEXTS,
    POSITIONS,
    SCALES,
    Steps,
    attended,
    contributions_of_steps,
    corrected,
    direct,
    document_ids,
    first_step_is_linear,
    initial_context,
    long_document,
    over_vocabulary,
    position_weights,
    recurrence,
    shares_of_steps,
    token_positions,
)

__all__ = [
    "INITIAL_CONTEXTS",
    "LAYER_NORM_EPS",
    "POSITIONS",
    "SCALES",
    "Steps",
    "attended",
    "contributions_of_steps",
    "corrected",
    "direct",
    "document_ids",
    "first_step_is_linear",
    "initial_context",
    "long_document",
    "over_vocabulary",
    "position_weights",
    "recurrence",
    "segment_sum",
    "shares_of_steps",
    "token_positions",
]
