"""What the second-order attention does: more steps than it was trained with, long texts, single heads, positions.

    python benchmarks/attention.py QUESTION --data DIR --work FOLDER     # steps, length, heads or positions
    python benchmarks/attention.py --table NAME | --plot                 # of benchmarks/attention.json

The models of ``length`` and ``positions`` are distilled here from all-MiniLM-L6-v2 on 30,000 sentences, as those of
``python -m papers.rivals --rates``, whose folder ``--work`` may be; minutes each. Needs the extra `peers`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import FOLDER, corpus_sentences, drawn, store, stored, table

from ctx_embed import load
from ctx_embed.second_order import Steps, direct, take

STORED = Path(__file__).with_suffix(".json")
PICTURES = Path(__file__).parents[1] / "docs"
QUESTIONS, CONTRASTS = ("steps", "length", "heads", "positions"), "contrasts"
# Steps of the default model, whose third step is applied again after the three that it was trained with.
COUNTS = (1, 2, 3, 4, 5, 8, 12, 20)
# Texts of some number of words, and of sentences that are joined.
WORDS, SENTENCES = ((1, 2), (3, 5), (6, 10), (11, 20), (21, 40)), (2, 4, 8)
OF_A_LENGTH, READ = 500, 20_000
CONTEXTUALIZER, AVG = "Contextualizer", "AVG"
POSITIONS = ("none", "relative", "absolute")
KINDS = ("negation", "word order", "small words")
# A head's words: how many are listed, and in how many of the texts read each must be.
LISTED, FEWEST = 8, 20
FIRST_HEADS = 4

Rows = list[dict[str, Any]]


def module_of(model: Any) -> Any:
    """Return the Contextualizer of a model."""
    return model[0].eval()


def contexts(module: Any, texts: Sequence[str], count: int) -> Any:
    """Return c^0 to c^count (count + 1, texts, m); steps beyond the model's own repeat its last one."""
    import torch

    numbers, lengths = module.text_tokenizer(list(texts))
    ids, offsets = torch.from_numpy(numbers).long(), torch.tensor([0, *lengths]).cumsum(0)
    own = module.attention
    order = [min(k, own.U.shape[0] - 1) for k in range(count)]
    steps = Steps(*(getattr(own, name)[order] for name in ("U", "V", "W", "b", "gain", "bias")))
    first = torch.ones(len(texts), own.U.shape[2])
    return direct(module.embedding(ids), offsets, first, steps)


def steps_asked(data: Path, work: Path) -> Iterable[dict[str, Any]]:
    """Yield STS-B dev and the cosine to c^3 after each number of steps of the default model."""
    from torch.nn import functional as F

    from ctx_embed.eval.scoring.ranking import spearman
    from ctx_embed.training.distillation.texts import read_pairs

    pairs = read_pairs(data / "senteval" / "STSB_dev.tsv")
    module = module_of(load())
    first, second = (contexts(module, texts, COUNTS[-1]) for texts in (pairs.first, pairs.second))
    own = len(module.attention.U)
    for count in COUNTS:
        cosines = F.cosine_similarity(first[count], second[count], dim=1)
        yield {
            "steps": count,
            "STS-B dev": spearman(cosines.tolist(), list(pairs.scores)),
            "cosine": float(F.cosine_similarity(first[count], first[own], dim=1).mean()),
        }


def texts_by_length(data: Path) -> dict[str, list[str]]:
    """Return texts by length: cut from sentences, and sentences of any source joined."""
    sentences = corpus_sentences(data, READ)
    found: dict[str, list[str]] = {}
    for least, most in WORDS:
        whole = [text for text in sentences if least <= len(text.split()) <= most]
        cut = [" ".join(text.split()[:most]) for text in sentences if len(text.split()) > most]
        found[f"{least} to {most} words"] = [*whole, *cut][:OF_A_LENGTH]
    for count in SENTENCES:
        joined = [" ".join(sentences[at : at + count]) for at in range(0, OF_A_LENGTH * count, count)]
        found[f"{count} sentences"] = joined
    return found


def distances(model: Any, teacher: np.ndarray, rotation: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return 1 - cos of a student's embeddings and its teacher's, whose rotation into the student's space is fitted."""
    ours = np.asarray(model.encode(list(texts), normalize_embeddings=True))
    target = teacher @ rotation
    return 1 - (ours * target).sum(1) / np.linalg.norm(target, axis=1)


def aligned(model: Any, teacher: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return the orthogonal map of the teacher's embeddings nearest to a student's of the same texts (Procrustes)."""
    ours = np.asarray(model.encode(list(texts), normalize_embeddings=True))
    left, _, right = np.linalg.svd(teacher.T @ ours, full_matrices=False)
    return np.asarray(left @ right)


def taught(work: Path, data: Path, encoder: str, **options: Any) -> Any:
    """Return a model that is distilled as the rivals of the papers are, on a tenth of their sentences."""
    from papers import rivals

    name = f"{encoder} {options}"
    rivals.RIVALS[name] = (rivals.RIVALS[encoder][0], options) if options else rivals.RIVALS[encoder]
    folder = work / "-".join([encoder, *map(str, options.values())]) if options else work
    folder.mkdir(parents=True, exist_ok=True)
    if options and not (folder / "teacher").exists():
        (folder / "teacher").symlink_to((work / "teacher").resolve())
    return load(str(rivals.taught(name, 0, data, folder, None, rivals.SENTENCES // 10)), device="cpu")


def compared(data: Path, models: dict[str, Any]) -> Rows:
    """Return each model's mean distance to the teacher by length, with 95 % intervals of what it gains on the first."""
    from ctx_embed.eval.scoring.statistics import mean_interval

    teacher = load("minilm", device="cpu")
    texts = texts_by_length(data)
    fitted = corpus_sentences(data, 2 * READ)[READ : READ + 4000]
    of_teacher = {name: teacher.encode(each, normalize_embeddings=True) for name, each in {"": fitted, **texts}.items()}
    rotations = {name: aligned(model, of_teacher[""], fitted) for name, model in models.items()}
    rows: Rows = []
    for length, each in texts.items():
        found = {name: distances(model, of_teacher[length], rotations[name], each) for name, model in models.items()}
        first, *others = found
        for name in found:
            low, high = mean_interval((found[name] - found[first]).tolist()) if name in others else (None, None)
            mean = float(found[name].mean())
            rows.append({"model": name, "length": length, "distance": mean, "low": low, "high": high})
    return rows


def length_asked(data: Path, work: Path) -> Iterable[dict[str, Any]]:
    """Yield the distances to the teacher by length of the mean of a table, and of the Contextualizer."""
    yield from compared(data, {name: taught(work, data, name) for name in (AVG, CONTEXTUALIZER)})


def positions_asked(data: Path, work: Path) -> Iterable[dict[str, Any]]:
    """Yield the same of Contextualizers with each kind of positions, and how they tell contrasts."""
    from development import contrasts

    from ctx_embed.eval.scoring.statistics import mean_interval

    models = {kind: taught(work, data, CONTEXTUALIZER, positions=kind) for kind in POSITIONS}
    yield from compared(data, models)
    for kind, model in models.items():
        for contrast in KINDS:
            told = contrasts(contrast, "development", lambda texts, model=model: model.encode(texts))
            low, high = mean_interval(told)
            yield {"model": kind, "contrast": contrast, "told": float(np.mean(told)), "low": low, "high": high}


def heads_asked(data: Path, work: Path) -> Iterable[dict[str, Any]]:
    """Yield the words that the heads of largest norm in each step of the default model attend to most.

    A head's attention to a token is |(U_r x_i) (V_r c^(k-1))| over its mean in the text: 1 is the average token.
    """
    import torch

    module = module_of(load())
    own, entries = module.attention, module.text_tokenizer.entry_texts()
    texts = corpus_sentences(data, READ)
    numbers, lengths = module.text_tokenizer(texts)
    ids = torch.from_numpy(numbers).long()
    documents = torch.repeat_interleave(torch.tensor(lengths))
    before = contexts(module, texts, len(own.U))
    x = module.embedding(ids)
    norms = own.U.norm(dim=2) * own.V.norm(dim=2) * own.W.norm(dim=1)
    counts = np.bincount(numbers, minlength=len(entries))
    for step in range(len(own.U)):
        scores = ((x @ own.U[step].T) * take(before[step] @ own.V[step].T, documents)).abs()
        sums = torch.zeros(len(texts), scores.shape[1]).index_add(0, documents, scores)
        share = scores * torch.tensor(lengths)[documents, None] / sums[documents].clamp_min(1e-12)
        order = norms[step].argsort(descending=True).tolist()
        for place, head in enumerate(order):
            by_word = np.bincount(numbers, share[:, head].numpy(), len(entries)) / np.maximum(counts, 1)
            by_word[counts < FEWEST] = 0
            most = np.argsort(-by_word, kind="stable")[:LISTED]
            row: dict[str, Any] = {"step": step + 1, "head": head + 1, "rank": place + 1}
            row["of the norm"] = float(norms[step][head] / norms[step].sum())
            row["greatest"] = float(torch.zeros(len(texts)).scatter_reduce(0, documents, share[:, head], "amax").mean())
            yield {**row, "words": [[entries[at], float(by_word[at])] for at in most] if place < FIRST_HEADS else []}


ASKED: dict[str, Callable[[Path, Path], Iterable[dict[str, Any]]]] = {
    "steps": steps_asked,
    "length": length_asked,
    "heads": heads_asked,
    "positions": positions_asked,
}


def rows_of(question: str) -> Rows:
    """Return the stored rows of a question."""
    return [row for row in stored(STORED) if row["question"] == question]


def shown(name: str) -> str:
    """Return the table of a question's stored rows, or of the contrasts that go with positions."""
    rows = rows_of("positions" if name == CONTRASTS else name)
    if name == "steps":
        cells = [[str(row["steps"]), f"{row['STS-B dev']:.1f}", f"{row['cosine']:.3f}"] for row in rows]
        return table(["steps", "STS-B dev", "cos(c^k, c^3)"], cells)
    if name == "heads":
        cells = [
            [
                str(row["step"]),
                f"{100 * row['of the norm']:.0f} %",
                f"{row['greatest']:.1f}",
                ", ".join(word for word, _ in row["words"]),
            ]
            for row in rows
            if row["words"]
        ]
        return table(["step", "of the step's norm", "greatest", "words"], cells, "--:|--:|--:|---")
    if name == CONTRASTS:
        told = {(row["model"], row["contrast"]): row["told"] for row in rows if "contrast" in row}
        return table(
            ["contrasts told, %", *KINDS],
            [[kind, *(f"{told[kind, each]:.1f}" for each in KINDS)] for kind in POSITIONS],
        )
    rows = [row for row in rows if "length" in row]
    models = list(dict.fromkeys(row["model"] for row in rows))
    by_length: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        gain = "" if row["low"] is None else f" ({-row['high']:+.3f} to {-row['low']:+.3f})"
        by_length[row["length"]].append(f"{row['distance']:.3f}{gain}")
    heads = [models[0], *(f"{model} (gain)" for model in models[1:])]
    return table([f"1 - cos by {name}", *heads], [[length, *cells] for length, cells in by_length.items()])


def draw() -> None:
    """Draw the gain by length, and the steps."""
    rows = rows_of("length")
    with drawn(PICTURES / "attention-length.svg") as axes:
        for name in (AVG, CONTEXTUALIZER):
            own = [row for row in rows if row["model"] == name]
            axes.plot([row["length"] for row in own], [row["distance"] for row in own], marker="o", label=name)
        axes.set_ylabel("1 - cos to the teacher")
        axes.tick_params(axis="x", rotation=30)
        axes.legend()
    with drawn(PICTURES / "attention-steps.svg") as axes:
        own = rows_of("steps")
        axes.plot([row["steps"] for row in own], [row["STS-B dev"] for row in own], marker="o")
        axes.axvline(3, color="gray", linestyle=":", label="steps in training")
        axes.set_xlabel("steps at use")
        axes.set_ylabel("STS-B dev")
        axes.legend()


@click.command()
@click.argument("question", type=click.Choice(QUESTIONS), required=False)
@click.option("--data", type=FOLDER, envvar="CTX_EMBED_DATA")
@click.option("--work", type=FOLDER, help="A folder for embeddings and models; they are kept.")
@click.option("--table", "name", type=click.Choice([*QUESTIONS, CONTRASTS]), help="Print a table of stored results.")
@click.option("--plot", is_flag=True, help="Draw the pictures of stored results.")
def main(question: str | None, data: Path | None, work: Path | None, name: str | None, plot: bool) -> None:
    """Answer a question about the attention, and store the answer."""
    if name:
        print(shown(name))
    if plot:
        draw()
    if question:
        if data is None or work is None:
            raise click.UsageError("--data and --work must name folders")
        import torch

        torch.set_num_threads(1)
        with torch.set_grad_enabled(question in ("length", "positions")):
            measured = [{"question": question, **row} for row in ASKED[question](data, work)]
        store(STORED, [row for row in stored(STORED) if row["question"] != question], measured)


if __name__ == "__main__":
    main()
