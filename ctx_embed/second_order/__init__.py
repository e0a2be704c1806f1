"""Second-order attention: the Contextualizer's mathematics as pure functions of NumPy's arrays or torch's tensors.

Called by the modules, the systems and the model without torch.
A change of the equations goes into ``paper.py`` first; tests hold the other forms and the kernel to it.

The paper's equations are in :mod:`ctx_embed.second_order.paper`; ``forms`` has those for long texts and for many short
texts over one table, and each token's contribution.

Source: Maupome & Meurs (2022), Contextualizer: Connecting the Dots of Context with Second-Order Attention,
Information 13(6):290.
"""

from __future__ import annotations

from ctx_embed.second_order.arrays import LAYER_NORM_EPS, segment_sum
from ctx_embed.second_order.forms import (
    contributions_of_steps,
    long_document,
    over_vocabulary,
    recurrence,
    shares_of_steps,
)
from ctx_embed.second_order.paper import (
    INITIAL_CONTEXTS,
    POSITIONS,
    SCALES,
    Steps,
    attended,
    corrected,
    direct,
    document_ids,
    first_step_is_linear,
    initial_context,
    position_weights,
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
