"""A user's own distillation: texts of one domain, a teacher, and two cores.

    python benchmarks/distilled.py --data DIR --work FOLDER                # half an hour
    python benchmarks/distilled.py --table                                 # of benchmarks/distilled.json

50,000 biomedical sentences and all-MiniLM-L6-v2 become a model in three ways: by `ctx-embed distill --from default`, by
`ctx-embed distill` from scratch, and by model2vec.distill. Each is scored beside the default model and the teacher by
nDCG@10 of titles among 5,000 abstracts, and by a probe that tells four kinds of biomedical text
(genetics, trials, questions and answers, reviews) by one sentence. Its sentences are none of the 50,000; the default
model's first stage has read some of them, without their kinds.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import FOLDER, lines_of, store, stored, table
from development import Encoder, pool, retrieval, shuffled
from peers import minilm_folder
from sklearn.linear_model import LogisticRegression

from ctx_embed import load
from ctx_embed.eval.scoring.statistics import mean_interval, paired_means
from ctx_embed.training.distillation.texts import read_pair_rows

STORED = Path(__file__).with_suffix(".json")
KINDS = ("bio_craft", "bio_evidence_inference", "bio_medical_qa", "bio_systematic_reviews")
SENTENCES, TRAIN, TEST = 12_500, 500, 1000
PAIRS = "title_abstract_systematic_reviews"
ABSTRACTS = 5000
DISTILL = "-m ctx_embed distill --corpus {corpus} --teacher minilm --overwrite -o {output} --batch-size 128"
DEFAULT, FROM_DEFAULT, SCRATCH = "default, as it is", "distill --from default", "distill, from scratch"
MODEL2VEC, TEACHER = "model2vec.distill", "all-MiniLM-L6-v2, the teacher"
STATIC = "import sys; from model2vec.distill import distill; distill(sys.argv[1]).save_pretrained(sys.argv[2])"


def texts(data: Path, work: Path) -> tuple[Path, list[tuple[str, str]], list[tuple[str, str]]]:
    """Write the corpus; return it and the kinds and sentences of a probe's training and test part."""
    corpus, train, test = work / "biomedicine.txt", [], []
    lines: list[str] = []
    for kind in KINDS:
        (path,) = (data / "corpus").glob(f"{kind}.*.gz")
        found = shuffled(lines_of(path))
        lines += found[:SENTENCES]
        rest = [(kind, text) for text in found[-TRAIN - TEST :]]
        train, test = train + rest[:TRAIN], test + rest[TRAIN:]
    corpus.write_text("\n".join(shuffled(lines)) + "\n", encoding="utf-8")
    return corpus, train, test


def distilled(command: list[str]) -> float:
    """Run a command, and return the processor minutes of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 60


def static(folder: Path) -> Encoder:
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder, normalize=True)
    return lambda given: model.encode(given, max_length=None)


def transformer(name: str | None) -> Encoder:
    model = load(name, device="cpu")
    return lambda given: model.encode(given, normalize_embeddings=True, show_progress_bar=False)


def made(way: str, work: Path, corpus: Path) -> tuple[Encoder, float | None, float | None]:
    """Return the model of a way, the processor minutes and the wall-clock minutes that it took."""
    if way in (DEFAULT, TEACHER):
        return transformer(None if way == DEFAULT else "minilm"), None, None
    output = work / way.replace(" ", "-").replace(",", "")
    command = DISTILL.format(corpus=corpus, output=output).split()
    if way == FROM_DEFAULT:
        command += ["--from", "default", "--learning-rate", "0.001", "--start-share", "0"]
    if way == MODEL2VEC:
        command = ["-c", STATIC, str(minilm_folder()), str(output)]
    record = output.with_suffix(".json")
    if not record.exists():
        start = time.perf_counter()
        minutes = distilled([sys.executable, *command])
        record.write_text(json.dumps([minutes, (time.perf_counter() - start) / 60]), encoding="utf-8")
    minutes, wall = json.loads(record.read_text(encoding="utf-8"))
    return static(output) if way == MODEL2VEC else transformer(str(output)), minutes, wall


def accuracy(encode: Encoder, train: list[tuple[str, str]], test: list[tuple[str, str]]) -> list[float]:
    """Return 100 for each test sentence whose kind the probe tells, else 0."""
    rows = [np.asarray(encode([text for _, text in part])) for part in (train, test)]
    mean, deviation = rows[0].mean(0), rows[0].std(0) + 1e-9
    probe = LogisticRegression(C=0.01, max_iter=1000).fit((rows[0] - mean) / deviation, [kind for kind, _ in train])
    right = probe.predict((rows[1] - mean) / deviation) == np.array([kind for kind, _ in test])
    return (100.0 * right).tolist()


def shown() -> str:
    rows = []
    for row in stored(STORED):
        cells = [row["way"], "" if row["minutes"] is None else f"{row['minutes']:.1f}"]
        for name in ("ndcg", "accuracy"):
            low, high, p = (row[f"{name}_{part}"] for part in ("low", "high", "p"))
            cells.append(f"{row[name]:.1f} ± {(high - low) / 2:.1f}{'' if p is None or p < 0.05 else ' ='}")
        rows.append(cells)
    return table(["model", "minutes of processor time", "nDCG@10", "accuracy"], rows)


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", type=FOLDER)
@click.option("--work", type=FOLDER, help="Keeps the models; a repeated command goes on.")
@click.option("--table", "printed", is_flag=True)
def main(data: Path | None, work: Path | None, printed: bool) -> None:
    if printed:
        print(shown())
        return
    if data is None or work is None:
        raise click.UsageError("--data and --work must name folders")
    work.mkdir(parents=True, exist_ok=True)
    corpus, train, test = texts(data, work)
    pairs = read_pair_rows(data / "pairs" / f"{PAIRS}.jsonl.gz")
    passages = set(shuffled(pair[1] for pair in pairs)[:ABSTRACTS])
    searched = pool([pair for pair in pairs if pair[1] in passages])
    rows: list[dict[str, Any]] = []
    first: dict[str, list[float]] = {}
    for way in (DEFAULT, FROM_DEFAULT, SCRATCH, MODEL2VEC, TEACHER):
        encode, minutes, wall = made(way, work, corpus)
        row: dict[str, Any] = {"way": way, "minutes": minutes, "wall": wall}
        for name, found in (("ndcg", retrieval(searched, encode)), ("accuracy", accuracy(encode, train, test))):
            low, high = mean_interval(found)
            row |= {name: statistics.mean(found), f"{name}_low": low, f"{name}_high": high}
            row[f"{name}_p"] = paired_means(found, first[name]).p if name in first else None
            first.setdefault(name, found)
        rows.append(row)
        print(row, file=sys.stderr)
    store(STORED, [], rows)
    print(shown())


if __name__ == "__main__":
    main()
