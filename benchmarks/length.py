"""Seconds per token and peak memory for one document of 4 k to 256 k tokens, compared with a Transformer.

    python benchmarks/length.py [--json FILE] [--plot FILE.png]

The documents are the docstrings of Python's standard library one after the other. The second table times the steps
alone, at the paper's sizes, against the direct form.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from common import alternate, paired_ratio, report, summary

import ctx_embed
from ctx_embed import second_order
from ctx_embed.cli.demo import standard_library_docstrings
from ctx_embed.second_order import Steps

LENGTHS = (4096, 16_384, 65_536, 262_144)
TRANSFORMER_LENGTHS = (512, 1024, 2048, 4096)

# A program for a separate process: prints the peak memory in bytes, minus that of the model and the ids.
PEAK = """
import re, sys, torch, ctx_embed
model = ctx_embed.load(device="cpu")
def status(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
with torch.inference_mode():
    model.encode(["a first text"])
    ids = torch.randint(2, len(model[0].embedding.weight), (1, int(sys.argv[1])))
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    model(features)
    print(status("VmHWM") - before)
"""


def document(model: Any, tokens: int) -> str:
    """Return one text of docstrings with about this many tokens."""
    words = " ".join(standard_library_docstrings().values()).split()
    per_word = model.preprocess([" ".join(words[:20_000])])["input_ids"].shape[1] / 20_000
    needed = round(tokens / per_word)
    return " ".join((words * (needed // len(words) + 1))[:needed])


@click.command()
@click.option("--model", default="default", show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path))
def main(model: str, runs: int, json_path: Path | None, plot: Path | None) -> None:
    ours = ctx_embed.load(model, device="cpu")
    texts = {n: document(ours, n) for n in LENGTHS}
    counts = {n: ours.preprocess([text])["input_ids"].shape[1] for n, text in texts.items()}
    low = ctx_embed.load(model, device="cpu", dtype="bfloat16")
    seconds = alternate({str(n): lambda text=text: ours.encode([text]) for n, text in texts.items()}, runs)
    seconds_low = alternate({str(n): lambda text=text: low.encode([text]) for n, text in texts.items()}, runs)
    per_token = {n: summary(seconds[str(n)])["median"] / counts[n] for n in LENGTHS}
    rows = [
        {
            "tokens": counts[n],
            "microseconds a token": 1e6 * per_token[n],
            "against 4 k": per_token[n] / per_token[LENGTHS[0]],
            "bfloat16, microseconds a token": 1e6 * summary(seconds_low[str(n)])["median"] / counts[n],
            "peak MB beyond ids": int(
                subprocess.run(
                    [sys.executable, "-c", PEAK, str(counts[n])], check=True, capture_output=True, text=True
                ).stdout
            )
            / 1e6,
        }
        for n in LENGTHS
    ]
    report(rows, None)

    m, K = 128, 5
    forms = []
    for u in (260, 1041):
        torch.manual_seed(0)
        shapes = [(K, u, m), (K, u, m), (K, m, u), (K, m), (K, m), (K, m)]
        steps = Steps(*(torch.randn(*shape) / shape[-1] ** 0.5 for shape in shapes))
        for n in LENGTHS[:3]:
            x, offsets, context = torch.randn(n, m), torch.tensor([0, n]), torch.ones(1, m)
            chosen = second_order.cheapest_sums(n, m, u, K)
            with torch.inference_mode():
                times = alternate(
                    {
                        name: partial(second_order.FORMS[name], x, offsets, context, steps)
                        for name in ("direct", chosen)
                    },
                    runs,
                )
            forms.append(
                {
                    "u": u,
                    "tokens": n,
                    "form": chosen,
                    "direct ms": 1e3 * summary(times["direct"])["median"],
                    "ms": 1e3 * summary(times[chosen])["median"],
                    "times as quick": paired_ratio(times["direct"], times[chosen]),
                }
            )
    report(forms, None)

    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0)
    transformer = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    with torch.inference_mode():
        inputs = {n: torch.randn(1, n, 256) for n in TRANSFORMER_LENGTHS}
        curve = alternate({str(n): lambda x=x: transformer(x) for n, x in inputs.items()}, 3)
    reference = [
        {"tokens": n, "Transformer, microseconds a token": 1e6 * summary(curve[str(n)])["median"] / n}
        for n in TRANSFORMER_LENGTHS
    ]
    report(reference, None)
    report(rows, json_path, forms=forms, transformer=reference, seconds=seconds)
    if plot is not None:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 3.5))
        axes.plot([row["tokens"] for row in rows], [row["microseconds a token"] for row in rows], "o-", label="ours")
        name = "Transformer, microseconds a token"
        axes.plot([row["tokens"] for row in reference], [row[name] for row in reference], "s--", label="Transformer")
        axes.set(xscale="log", yscale="log", xlabel="tokens of the document", ylabel="microseconds a token")
        axes.legend()
        figure.tight_layout()
        figure.savefig(plot, dpi=150)


if __name__ == "__main__":
    main()
