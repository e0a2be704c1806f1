"""Where word order and small words decide: is a text nearer to its paraphrase than to a text of similar words?

    python benchmarks/contrasts.py default minilm [MODEL ...] [--part development]

Prints, for each kind of contrast, the percentage of triples in which the paraphrase is nearer (50 by chance), and the
mean difference between the two cosines. A bag of words prefers the contrast, which by design shares more words with the
text.

contrasts.tsv next to this file has 300 triples of each kind, all written for this benchmark. The part ``test`` serves
only to measure: no model is trained, tuned or chosen on it, and no rule that generates training texts may use its words
or patterns. The part ``development`` may be used to choose between models.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from ctx_embed.loading import load

TRIPLES = Path(__file__).with_suffix(".tsv")


def read_triples(part: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return text, paraphrase and contrast of each triple of a part, by kind of contrast."""
    with TRIPLES.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row["part"] == part]
    triples: dict[str, list[tuple[str, str, str]]] = {}
    for row in rows:
        triples.setdefault(row["kind"], []).append((row["text"], row["paraphrase"], row["contrast"]))
    return triples


def contrasts(name: str, part: str = "test") -> dict[str, tuple[float, float]]:
    """Return the percentage of correct triples and the mean margin, by kind of contrast."""
    model = load(None if name == "default" else name)
    results = {}
    for kind, triples in read_triples(part).items():
        text, paraphrase, contrast = (
            model.encode(list(column), normalize_embeddings=True) for column in zip(*triples, strict=True)
        )
        margins = (text * paraphrase).sum(1) - (text * contrast).sum(1)
        results[kind] = 100 * float(np.mean(margins > 0)), float(margins.mean())
    return results


def main(names: list[str], part: str) -> None:
    triples = read_triples(part)
    print("| encoder | " + " | ".join(f"{kind} ({len(of_kind)})" for kind, of_kind in triples.items()) + " |")
    print("|---|" + "---|" * len(triples))
    for name in names:
        scores = contrasts(name, part).values()
        print(
            f"| {name} | " + " | ".join(f"{share:.0f} ({margin:+.3f})" for share, margin in scores) + " |", flush=True
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["default"])
    parser.add_argument("--part", choices=["test", "development"], default="test")
    arguments = parser.parse_args()
    main(arguments.models, arguments.part)
