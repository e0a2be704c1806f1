"""A training whose loss is no longer a number has failed, and must not be saved."""

from __future__ import annotations

import math

from ctx_embed.errors import InputError


def require_finite(value: float, step: int) -> None:
    """Raise an error if a loss or a metric is infinite or NaN.

    Raises:
        InputError: the value is not finite. The message names the step.
    """
    if not math.isfinite(value):
        raise InputError(f"the training diverged at step {step} ({value}); lower --learning-rate")
