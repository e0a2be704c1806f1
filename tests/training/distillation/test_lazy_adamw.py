import numpy as np
import pytest
import torch

from ctx_embed.training.distillation.lazy_adamw import LazyAdamW

ROWS, WIDTH, STEPS = 40, 3, 300


def batches():
    """For each step the rows read, their gradient, and a learning rate that rises and falls; row 39 is never read."""
    generator = np.random.default_rng(0)
    for step in range(STEPS):
        # Some rows are read in every step, some once in a hundred.
        read = np.flatnonzero(generator.random(ROWS - 1) < np.linspace(0.005, 1, ROWS - 1))
        gradient = torch.from_numpy(generator.normal(size=(len(read), WIDTH))).float() * 10.0 ** generator.uniform(
            -4, 0
        )
        yield torch.from_numpy(read), gradient, 0.02 * float(np.sin(np.pi * (step + 1) / (STEPS + 1)))


def dense(weight_decay: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The table after all steps of torch's AdamW, and the rows that each step read."""
    table = torch.nn.Parameter(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)))
    optimizer = torch.optim.AdamW([table], betas=(0.9, 0.99), weight_decay=weight_decay)
    reads = []
    for read, gradient, rate in batches():
        reads.append(table.detach()[read].clone())
        optimizer.param_groups[0]["lr"] = rate
        table.grad = torch.zeros(ROWS, WIDTH).index_copy(0, read, gradient)
        optimizer.step()
    return table.detach(), reads


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_it_takes_the_steps_of_torchs_adamw_over_the_whole_table(weight_decay):
    expected, reads = dense(weight_decay)
    table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    drawn = table.clone()
    optimizer = LazyAdamW(table, weight_decay=weight_decay)
    for (read, gradient, rate), known in zip(batches(), reads, strict=True):
        # What a step reads is what it would read of the whole table, after however long.
        torch.testing.assert_close(optimizer.rows(read).detach(), known, rtol=0, atol=2e-5)
        optimizer.step(read, gradient, rate)
    # Rows lag behind until they are brought up to date.
    assert (table - expected).abs().max() > 1e-3
    optimizer.catch_up()
    torch.testing.assert_close(table, expected, rtol=0, atol=2e-5)
    # The row that was never read decays, no more.
    assert torch.equal(table[-1], drawn[-1]) == (weight_decay == 0)


def test_a_run_resumes_where_it_was():
    whole = torch.ones(ROWS, WIDTH)
    optimizer = LazyAdamW(whole)
    resumed = torch.ones(ROWS, WIDTH)
    first = LazyAdamW(resumed)
    for number, (read, gradient, rate) in enumerate(batches()):
        if number == STEPS // 2:
            # Both save; one goes on with what was saved.
            optimizer.state_dict()
            state = {name: torch.clone(torch.as_tensor(value)) for name, value in first.state_dict().items()}
            first = LazyAdamW(resumed)
            first.load_state_dict({**state, "steps": int(state["steps"])})
        for one in (optimizer, first):
            one.rows(read)
            one.step(read, gradient, rate)
    optimizer.catch_up()
    first.catch_up()
    assert torch.equal(whole, resumed)
