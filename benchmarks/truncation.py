"""What the first dimensions of an embedding keep of its scores: nDCG@10 of four collections, and STS-B test.

python benchmarks/truncation.py --data DIR   # half a minute
python benchmarks/truncation.py --table      # the model card's table
"""

from pathlib import Path
from typing import Any

import click
import numpy as np
from common import COLLECTIONS, store, stored, table
from numpy.typing import NDArray

from ctx_embed import load
from ctx_embed.eval.scoring.ranking import paired, score_retrieval, spearman
from ctx_embed.eval.tasks import TASKS, DataReader
from ctx_embed.fingerprint import fingerprint

STORED = Path(__file__).with_suffix(".json")
DIMENSIONS = (320, 256, 192, 128, 64)


def measured(data: Path) -> list[dict[str, Any]]:
    """Return the scores of the default model for each number of dimensions. Each text is embedded once."""
    model = load()

    def encode(texts: list[str]) -> NDArray[np.float32]:
        return model.encode(texts, normalize_embeddings=True)

    rows: list[dict[str, Any]] = [{"dimensions": count, "model": fingerprint(model)} for count in DIMENSIONS]
    for name in COLLECTIONS:
        found = DataReader(data).read(TASKS[name])
        queries, documents = found.subsets["queries"], found.subsets["corpus"]
        of_queries, of_documents = encode([text for _, text in queries]), encode([text for _, text in documents])
        for row in rows:
            first = slice(row["dimensions"])
            score = score_retrieval(
                [name for name, _ in queries],
                of_queries[:, first],
                [name for name, _ in documents],
                of_documents[:, first],
                found.subsets["qrels"],
                found.own,
            )
            row[name] = score.mean
    pairs = [pair for subset in DataReader(data).read(TASKS["STSB"]).subsets.values() for pair in subset]
    left, right = encode([left for _, left, _ in pairs]), encode([right for _, _, right in pairs])
    for row in rows:
        cosines = paired(left[:, : row["dimensions"]], right[:, : row["dimensions"]]).tolist()
        row["STS-B test"] = spearman(cosines, [float(score) for score, _, _ in pairs])
    return rows


def shown() -> str:
    """Return the model card's table: scores, and in parentheses the share of the whole embedding's."""
    rows = stored(STORED)
    means = [float(np.mean([row[name] for name in COLLECTIONS])) for row in rows]
    cells = []
    for row, mean in zip(rows, means, strict=True):
        pairs = row["STS-B test"]
        shares = (mean, mean / means[0]), (pairs, pairs / rows[0]["STS-B test"])
        ends = [f"{score:.1f} ({100 * share:.1f} %)" for score, share in shares]
        cells.append([str(row["dimensions"]), *(f"{row[name]:.1f}" for name in COLLECTIONS), *ends])
    return table(["first dimensions", *COLLECTIONS, "mean", "STS-B test"], cells, "--:|---")


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", type=click.Path(path_type=Path))
@click.option("--table", "printed", is_flag=True)
def main(data: Path | None, printed: bool) -> None:
    if not printed:
        if data is None:
            raise click.UsageError("--data must name a folder")
        store(STORED, [], measured(data))
    print(shown())


if __name__ == "__main__":
    main()
