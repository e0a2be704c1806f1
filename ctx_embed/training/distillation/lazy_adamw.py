"""AdamW for a table of which each step reads few rows: it updates only these rows, with the same result."""

from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-8


class LazyAdamW:
    r"""AdamW (Loshchilov and Hutter 2019) over the rows of a table. Each row is brought up to date when it is read.

    AdamW also moves rows without a gradient: they decay, and their fading moments still move them. A row with
    moments m and v that is read again after k steps makes these moves at once. With the steps' rates
    :math:`\eta_j`, weight decay w and :math:`r = \beta_1 / \sqrt{\beta_2}`, they are

    .. math:: p \leftarrow D p - C \frac{m}{\sqrt v + \epsilon}, \quad m \leftarrow \beta_1^k m, \quad
              v \leftarrow \beta_2^k v

    where for each step j in turn :math:`D \leftarrow (1 - \eta_j w) D` and :math:`C \leftarrow (1 - \eta_j w) C +
    \eta_j r^j \sqrt{1 - \beta_2^t} / (1 - \beta_1^t)`, t being the number of the step. The result is that of AdamW over
    the whole table (rows, m) in float32, but for rounding and for :math:`\epsilon` (1e-8), which does not fade with v.
    """

    def __init__(self, table: Tensor, *, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.01) -> None:
        self.table = table.detach()
        self.betas = betas
        self.weight_decay = weight_decay
        self.first = torch.zeros_like(self.table)
        self.second = torch.zeros_like(self.table)
        self.steps = 0
        # ``_decay`` and ``_carry`` hold D and C above for each step since all rows were up to date; ``_place`` holds
        # the place of each row in them.
        self._place = torch.zeros(len(self.table), dtype=torch.int64, device=self.table.device)
        self._decay = torch.ones(1, dtype=torch.float64)
        self._carry = torch.zeros(1, dtype=torch.float64)

    def _up_to_date(self, table: Tensor, first: Tensor, second: Tensor, place: Tensor) -> None:
        """Make the moves that rows have missed since their ``place``; this changes the rows themselves."""
        missed = (len(self._decay) - 1 - torch.arange(len(self._decay))).double()
        factors = [self._decay, self._carry, self.betas[0] ** missed, self.betas[1] ** missed]
        decay, carry, fade_first, fade_second = (
            factor.to(table)[place][:, None] for factor in (f.to(table.device) for f in factors)
        )
        table.mul_(decay).sub_(carry * first / (second.sqrt() + EPSILON))
        first.mul_(fade_first)
        second.mul_(fade_second)

    @torch.no_grad()
    def rows(self, indices: Tensor) -> Tensor:
        """Return the rows (k, m) of distinct ``indices``, up to date, as a leaf that takes a gradient."""
        table, first, second = (whole.index_select(0, indices) for whole in (self.table, self.first, self.second))
        self._up_to_date(table, first, second, self._place[indices])
        self._read = table, first, second
        return table.clone().requires_grad_()

    @torch.no_grad()
    def step(self, indices: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Take a step with the gradient (k, m) of the rows that :meth:`rows` last returned; others have gradient 0."""
        self.steps += 1
        table, first, second = self._read
        beta, beta_second = self.betas
        correction = (1 - beta_second**self.steps) ** 0.5
        rate = learning_rate / (1 - beta**self.steps)
        first.lerp_(gradient, 1 - beta)
        second.mul_(beta_second).addcmul_(gradient, gradient, value=1 - beta_second)
        kept = 1 - learning_rate * self.weight_decay
        table.mul_(kept).addcdiv_(first, (second.sqrt() / correction).add_(EPSILON), value=-rate)
        for tensor, read in zip((self.table, self.first, self.second), self._read, strict=True):
            tensor.index_copy_(0, indices, read)
        # Rows absent from this batch fall one step further behind.
        missed = torch.arange(len(self._decay), 0, -1).double()
        fade = (beta / beta_second**0.5) ** missed
        self._carry = torch.cat([self._carry * kept + rate * correction * fade, torch.zeros(1, dtype=torch.float64)])
        self._decay = torch.cat([self._decay * kept, torch.ones(1, dtype=torch.float64)])
        self._place[indices] = len(self._decay) - 1

    @torch.no_grad()
    def catch_up(self) -> None:
        """Bring all rows up to date."""
        for start in range(0, len(self.table), 4096):
            part = slice(start, start + 4096)
            self._up_to_date(self.table[part], self.first[part], self.second[part], self._place[part])
        self._place.zero_()
        self._decay, self._carry = self._decay[-1:], self._carry[-1:]

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs to resume, apart from the table, which is brought up to date."""
        self.catch_up()
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The table must be the one it was saved with."""
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.steps = state["steps"]
        self._place.zero_()
        self._decay, self._carry = self._decay[-1:], self._carry[-1:]
