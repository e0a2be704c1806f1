"""Whether parameters have changed since something was computed from them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

SAMPLED_VALUES = 256

_steps = 0
_hook: Any = None


def _count_step(*_: Any) -> None:
    global _steps
    _steps += 1


def optimizer_steps() -> int:
    """Return how many steps all optimizers of this process have made since the first call.

    A fused optimizer changes parameters without counting their versions up, so steps are counted instead, by a hook
    that runs after each step of every optimizer; the first call registers it.
    """
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_post_hook(_count_step)
    return _steps


def parameter_mark(parameter: Tensor) -> tuple[int, int, float]:
    """Return a mark that tells a parameter's present values from earlier ones, at a cost independent of its size.

    Its address changes when it is moved or loaded, its version with every recorded change in place, and a sum over 256
    of its values with unrecorded ones (``parameter.data.mul_``, copies under inference mode) that reach all of it.
    """
    stride = max(1, parameter.numel() // SAMPLED_VALUES)
    sampled = parameter.detach().flatten()[::stride].double().sum().item()
    return parameter.data_ptr(), 0 if parameter.is_inference() else parameter._version, sampled
