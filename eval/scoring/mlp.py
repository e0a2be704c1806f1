"""SentEval's networks: a linear layer, or one hidden layer of sigmoids, trained with Adam and early stopping on a
held-out part.

The networks of all penalties start from the same weights and see the same batches, so they are trained together, as
slices of one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ctx_embed.eval.scoring.probes import Fit, Indices, Matrix

BATCH_SIZE = 64
# PASSES: epochs between two checks on the held-out part. TENACITY: checks without improvement before training stops.
# MAX_PASSES: maximum number of epochs.
PASSES = 4
TENACITY = 5
MAX_PASSES = 200
HELD_OUT = 0.05


def mlp(hidden: int, max_passes: int = MAX_PASSES) -> Fit:
    """Return the classifier with ``hidden`` units, 0 for a linear layer; its penalties are Adam's weight decays.

    The rows that choose the penalty also stop the training; without them 5 % of the training rows do.
    """

    def fit(
        X: Matrix,
        y: Indices,
        n_classes: int,
        decays: Sequence[float],
        X_test: Matrix,
        y_test: Indices | None,
        seed: int,
    ) -> list[Indices]:
        generator = torch.Generator().manual_seed(seed)
        inputs, targets, unseen = _tensor(X), torch.from_numpy(y), _tensor(X_test)
        if y_test is None:
            order = torch.randperm(len(inputs), generator=generator)
            count = int(HELD_OUT * len(inputs))
            held_out, rest = order[:count], order[count:]
            valid, valid_targets = inputs[held_out], targets[held_out]
            inputs, targets = inputs[rest], targets[rest]
        else:
            valid, valid_targets = unseen[: len(y_test)], torch.from_numpy(y_test)
        layers = _layers(inputs.shape[1], hidden, n_classes, len(decays), generator)
        _train(layers, inputs, targets, valid, valid_targets, torch.tensor(decays), generator, max_passes)
        with torch.inference_mode():
            return list(_logits(layers, unseen).argmax(-1).numpy())

    return fit


def _tensor(X: Matrix) -> Tensor:
    return torch.from_numpy(np.asarray(X.todense() if hasattr(X, "todense") else X, np.float32))


def _layers(d: int, hidden: int, k: int, networks: int, generator: torch.Generator) -> list[Tensor]:
    """Return weights (networks, inputs, outputs) and biases (networks, 1, outputs), uniform as in torch's Linear."""
    layers = []
    for inputs, outputs in [(d, hidden), (hidden, k)] if hidden else [(d, k)]:
        bound = inputs**-0.5
        for shape in ((inputs, outputs), (1, outputs)):
            values = torch.empty(shape).uniform_(-bound, bound, generator=generator)
            layers.append(values.expand(networks, *shape).clone().requires_grad_())
    return layers


def _logits(layers: Sequence[Tensor], X: Tensor) -> Tensor:
    """Return the logits (networks, n, k)."""
    W, b, *rest = layers
    output = torch.matmul(X, W) + b
    return torch.baddbmm(rest[1], output.sigmoid(), rest[0]) if rest else output


def _train(
    layers: list[Tensor],
    X: Tensor,
    y: Tensor,
    valid: Tensor,
    valid_y: Tensor,
    decays: Tensor,
    generator: torch.Generator,
    max_passes: int,
) -> None:
    """Train in place; each network ends with the weights of its best check."""
    optimizer = torch.optim.Adam(layers)
    networks = len(decays)
    best = [layer.detach().clone() for layer in layers]
    best_right = torch.full((networks,), -1)
    in_vain = torch.zeros(networks, dtype=torch.long)
    stopped = torch.zeros(networks, dtype=torch.bool)
    passes = 0
    while not stopped.all() and passes <= max_passes:
        for _ in range(PASSES):
            for rows in torch.randperm(len(X), generator=generator).split(BATCH_SIZE):
                logits = _logits(layers, X[rows])
                # The sum over the batch, not the mean, as in SentEval.
                loss = F.cross_entropy(logits.flatten(0, 1), y[rows].repeat(networks), reduction="sum")
                gradients = torch.autograd.grad(loss, layers)
                for layer, gradient in zip(layers, gradients, strict=True):
                    layer.grad = gradient + decays[:, None, None] * layer.detach()
                optimizer.step()
        passes += PASSES
        with torch.no_grad():
            right = (_logits(layers, valid).argmax(-1) == valid_y).sum(-1)
            better = (right > best_right) & ~stopped
            for layer, stored in zip(layers, best, strict=True):
                stored[better] = layer[better]
            best_right = torch.where(better, right, best_right)
            stopped |= ~better & (in_vain >= TENACITY)
            in_vain += ~better
    with torch.no_grad():
        for layer, stored in zip(layers, best, strict=True):
            layer.copy_(stored)
