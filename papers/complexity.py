"""Table 1: the growth of a layer's time with tokens n, features m and rank u."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ctx_embed.modules.contextualizer_pooling import SecondOrderSteps
from ctx_embed.systems.attention import groups_of
from ctx_embed.systems.transformer import Layer
from papers.experiment import (
    Cell,
    Claim,
    Column,
    Experiment,
    Figures,
    Found,
    Outcome,
    Settings,
    Verdict,
    lines,
    number,
    of_paper,
    published,
)
from papers.inputs import Workplace

Run = Callable[[], Tensor]
WIDTH = 3
HEADS = 4
FITTED = 3


def _recurrent(x: Tensor, u: int) -> Run:
    network = nn.GRU(x.shape[1], x.shape[1] // 2, bidirectional=True)
    return lambda: network(x)[0]


def _convolution(x: Tensor, u: int) -> Run:
    m = x.shape[1]
    network = nn.Conv1d(m, m, WIDTH, padding=WIDTH // 2)
    return lambda: F.relu(network(x.T[None]))


def _transformer(x: Tensor, u: int) -> Run:
    n, m = x.shape
    layer = Layer(m, HEADS, 4 * m, 0.0, norm_first=False).eval()
    groups = list(groups_of([n], x.device))
    return lambda: layer(x, groups)


def _contextualizer(x: Tensor, u: int) -> Run:
    n, m = x.shape
    # Two steps, since the first one is a special case: its context is the same for all texts.
    steps = SecondOrderSteps(m, steps=2, rank=u, positions="none", scale="mean", initial_context="learned")
    ids, offsets = torch.arange(n), torch.tensor([0, n])
    return lambda: steps(x, ids, offsets)


# Each makes a layer over a text's tokens (n, m) from these and u, which only the Contextualizer uses.
LAYERS: dict[str, Callable[[Tensor, int], Run]] = {
    "recurrent": _recurrent,
    "convolution": _convolution,
    "Transformer": _transformer,
    "Contextualizer": _contextualizer,
}
# The exponents of ORDERS.
EXPONENTS = {
    "recurrent": {"n": 1, "m": 2},
    "convolution": {"n": 1, "m": 2},
    "Transformer": {"n": 2, "m": 1},
    "Contextualizer": {"n": 1, "m": 1, "u": 1},
}
ORDERS = of_paper("Contextualizer", "Table 1")
SIZES = {"n": (512, 1024, 2048, 4096, 8192, 16384), "m": (64, 128, 256, 512, 1024), "u": (32, 64, 128, 256, 512, 1024)}
# While one size grows, the other two have these values. The order n^2 m of the Transformer shows only if n is much
# larger than m.
FIXED = {"n": {"m": 128, "u": 64}, "m": {"n": 1024, "u": 64}, "u": {"n": 1024, "m": 128}}
LONG = 8192


def fitted_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return the least-squares slope of log time over log size through the three largest sizes."""
    return float(np.polyfit(np.log(sizes[-FITTED:]), np.log(times[-FITTED:]), 1)[0])


def _settings(layer: str, variable: str) -> Settings:
    fixed = dict(FIXED[variable])
    if layer == "Transformer" and variable == "m":
        fixed["n"] = LONG
    return {"layer": layer, "variable": variable, "sizes": list(SIZES[variable]), "fixed": fixed, "runs": 5}


def _quick(settings: Settings) -> Settings:
    fixed = {name: min(value, 1024) for name, value in settings["fixed"].items()}
    return {**settings, "sizes": settings["sizes"][:4], "fixed": fixed, "runs": 3}


def measure(settings: Settings, part: str, workplace: Workplace) -> Figures:
    """Return the fewest milliseconds of processor time of a layer's forward pass over one text at each size; other work
    on the machine hardly changes them."""
    milliseconds = []
    for size in settings["sizes"]:
        given = {**settings["fixed"], settings["variable"]: size}
        torch.manual_seed(workplace.seed)
        run = LAYERS[settings["layer"]](torch.randn(given["n"], given["m"]), given["u"])
        with torch.inference_mode():
            milliseconds.append(1e3 * min(_seconds(run) for _ in range(1 + settings["runs"])))
    return {"sizes": list(settings["sizes"]), "ms": milliseconds}


def _seconds(run: Run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _summary(settings: Settings, parts: Mapping[str, Figures]) -> Figures:
    (figures,) = parts.values()
    return {
        "sizes": figures["sizes"],
        "ms": figures["ms"],
        "exponent": fitted_exponent(figures["sizes"], figures["ms"]),
    }


def _times(outcome: Outcome) -> str:
    figures = outcome.figures
    return (
        ", ".join(f"{size}: {ms:.3g}" for size, ms in zip(figures["sizes"], figures["ms"], strict=True))
        if figures
        else ""
    )


def _points(outcome: Outcome) -> tuple[Sequence[float], Sequence[float]]:
    is_n = outcome.cell.settings["variable"] == "n"
    return (outcome.figures["sizes"], outcome.figures["ms"]) if is_n else ((), ())


def _check(found: Found) -> tuple[str, Verdict]:
    ours = [found["Contextualizer", variable]["exponent"] for variable in ("n", "m", "u")]
    theirs = found["Transformer", "n"]["exponent"]
    measured = (
        f"time grows as the power {ours[0]:.2f} of the tokens, {ours[1]:.2f} of the features and {ours[2]:.2f} of the "
        f"rank; the Transformer's as the power {theirs:.2f} of the tokens."
    )
    return measured, Verdict.of(max(ours) < 1.2, theirs > 1.7)


TABLE1 = Experiment(
    "table1",
    "complexity of a layer, measured",
    "Maupome & Meurs 2022, Information 13(6):290, Table 1, which states orders",
    Claim(
        f"a Contextualizer layer costs {ORDERS['Contextualizer']}, linear in tokens, features and rank; a Transformer "
        f"layer of h heads {ORDERS['Transformer']}.",
        _check,
    ),
    (
        "Processor time of one layer on one text, forward pass, float32, the fastest of 6 runs: a bi-directional GRU "
        f"of m / 2 units a direction; a convolution of width l = {WIDTH}; a Transformer layer of {HEADS} heads and 4 m "
        "units; two steps of a Contextualizer.",
        f"Exponents are slopes of log time over log size through the {FITTED} largest sizes. While n grows, m 128 and "
        f"u 64; while m grows, n 1,024 and u 64 (of the Transformer n {LONG:,}); while u grows, n 1,024 and m 128.",
        "The Transformer's projections cost n m² and its attention n² m, so its exponents approach 2 in n and 1 in m "
        "only if n is much larger than m.",
        "The plot shows time by n.",
    ),
    ("layer", "grows"),
    tuple(
        Cell(layer, variable, _settings(layer, variable), exponent)
        for layer, exponents in EXPONENTS.items()
        for variable, exponent in exponents.items()
    ),
    lambda settings, folds: ["times"],
    measure,
    _summary,
    (
        Column("order (paper)", lambda outcome: ORDERS[outcome.cell.row]),
        Column("exponent (paper)", published(0).show),
        Column("exponent, fitted", number("exponent", 2)),
        Column("ms by size", _times),
        Column("seconds", number("seconds", 0)),
    ),
    lines(_points, "tokens n", "ms", logarithmic=True),
    _quick,
)
