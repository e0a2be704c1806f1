"""The times of the paper's Table 2, in turn: Contextualizer, our Transformer and torch's, on 32 texts of MR.

    OMP_NUM_THREADS=1 python -m papers.batch_times --data DIR [--store]    # a minute; other work hardly matters
    python -m papers.page                                                    # puts what is stored into papers/README.md

The first two are those of `python -m papers table2`; no linear map of theirs sees padding. torch's TransformerEncoder
has the same sizes and reads padded texts, as it must. Times are medians of processor time.
"""

import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import alternate, markdown, store
from papers import Workplace, find_experiment
from papers.classifier_cells import initial_encoder

STORED = Path(__file__).with_suffix(".json")
TEXTS, HEADS = 32, 4
PADDED = "torch's Transformer, padded"


class TransformerMean(nn.Module):
    """A token table, torch's encoder layers and a masked mean."""

    def __init__(self, vocabulary: int, dimension: int, layers: int, feedforward: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dimension)
        layer = nn.TransformerEncoderLayer(
            dimension, HEADS, feedforward, batch_first=True, dropout=0.1, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the means of padded texts."""
        mask = features["attention_mask"].bool()
        hidden = self.layers(self.embedding(features["input_ids"]), src_key_padding_mask=~mask)
        return {"sentence_embedding": (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)}


def encoders_of(size: str, workplace: Workplace) -> dict[str, Any]:
    """Return the three encoders of a size by name."""
    found: dict[str, Any] = {}
    for cell in find_experiment("table2").cells:
        if cell.column == size:
            found[cell.row] = initial_encoder(cell.settings, workplace, workplace.seed)[0]
            sizes = cell.settings["architecture"]
    # The last cell's, the Transformer's.
    shape = sizes["dimension"], sizes["layers"], sizes["feedforward"]
    found[PADDED] = TransformerMean(len(found["Transformer"].embedding.weight), *shape)
    return found


def medians(encoders: dict[str, Any], features: dict[str, Tensor], runs: int, backward: bool) -> dict[str, float]:
    """Return the median milliseconds of processor time of a batch, by encoder."""

    def run(encoder: Any) -> None:
        embeddings = encoder(dict(features))["sentence_embedding"]
        if backward:
            embeddings.sum().backward()

    for encoder in encoders.values():
        encoder.train(backward)
    with torch.inference_mode(not backward):
        tasks = {name: partial(run, encoder) for name, encoder in encoders.items()}
        seconds = alternate(tasks, runs, warmups=3, clock=time.process_time)
    return {name: 1e3 * statistics.median(each) for name, each in seconds.items()}


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", required=True, type=click.Path(path_type=Path))
@click.option("--runs", default=31, show_default=True)
@click.option("--store", "kept", is_flag=True, help="Keep the times in papers/batch_times.json.")
def main(data: Path, runs: int, kept: bool) -> None:
    """Print the times."""
    workplace = Workplace(data)
    texts = workplace.labelled("MR", "MR").texts
    places = np.random.default_rng(workplace.seed).permutation(len(texts))[:TEXTS]
    rows = []
    for size in dict.fromkeys(cell.column for cell in find_experiment("table2").cells):
        encoders = encoders_of(size, workplace)
        features = encoders["Contextualizer"].preprocess([texts[place] for place in places])
        forward = medians(encoders, features, runs, backward=False)
        training = medians(encoders, features, runs, backward=True)
        for name in encoders:
            row = {"encoder": name, "size": size, "ms": forward[name], "training_ms": training[name]}
            row["times as slow"] = forward[name] / forward["Contextualizer"]
            row["times as slow, training"] = training[name] / training["Contextualizer"]
            at = {"threads": torch.get_num_threads(), "load": os.getloadavg()[0], "seed": workplace.seed}
            rows.append(row | {"runs": runs} | at)
    print(markdown(rows))
    if kept:
        store(STORED, [], rows)


if __name__ == "__main__":
    main()
