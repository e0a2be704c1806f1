"""Encoders taught alike: each learns from one teacher, on the same sentences, with the same table and the same steps.

    python -m papers.rivals --data DIR --work FOLDER [--encoder NAME] [--seed N] [--device cuda]
    python -m papers.rivals --data DIR --work FOLDER --rates      # learning rates on a tenth of the sentences
    python -m papers.rivals --data DIR --work FOLDER --speed      # minutes; nothing else running
    python -m papers.rivals --table                               # of papers/rivals.json

The papers compare encoders that are trained on small labelled sets. Here each is distilled from all-MiniLM-L6-v2 on
300,000 sentences of the corpus: a vocabulary of 32,000 entries, 256 dimensions, three epochs of batches of 256 at one
learning rate, which ``--rates`` compares with a third and three times as much. Probes, STS and retrieval are scored by
``evaluate``. Speed is ``SentenceTransformer.encode``'s on one thread, all encoders in
turn, with random weights over a vocabulary that the first training learned.

FOLDER keeps the teacher's embeddings, models, scores and, in rivals.json, the rows and speeds: a repeated command goes
on, and several may run at once.
"""

import gzip
import json
import statistics
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import click
import torch
from tokenizers import Tokenizer

from benchmarks.common import alternate, commit, processor
from ctx_embed.cli.main import errors_in_one_line
from ctx_embed.cli.options import SEED, data_option
from ctx_embed.errors import InputError
from ctx_embed.files import locked, replaced_file

STORED = Path(__file__).with_suffix(".json")
# The paper's names, and ours with the options that differ from the defaults.
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "Contextualizer": ("contextualizer", {}),
    "AVG": ("mean", {}),
    "DAN of USE": ("dan", {}),
    "Transformer of USE": ("use-transformer", {}),
    "LAMA": ("lama", {"output_dimension": 256}),
    "SAN": ("san", {"output_dimension": 256}),
    "BiGRU": ("bigru", {"output_dimension": 256}),
    "CNN": ("cnn", {"output_dimension": 256}),
}
SENTENCES, DIMENSION, ENTRIES, RATE = 300_000, 256, 32_000, 0.003
# Tried with other rates, on a tenth of the sentences.
WITH_RATES, RATES = ("Contextualizer", "LAMA", "Transformer of USE"), (RATE / 3, RATE, 3 * RATE)
PROBES, STS = ("MR", "CR", "SUBJ", "MPQA"), ("STSB", "STS12", "STS13", "STS14", "STS15")
COLLECTIONS = ("cranfield", "cisi", "cacm", "npl")
TASKS = [*PROBES, *STS, *COLLECTIONS]
TIMED = 2000


def taught(
    name: str, seed: int, data: Path, work: Path, device: str | None, sentences: int = SENTENCES, rate: float = RATE
) -> Path:
    """Distil an encoder, if the folder does not have it."""
    from ctx_embed.training import Source, distill

    encoder, options = RIVALS[name]
    output = work / (f"{encoder}-{seed}" if (sentences, rate) == (SENTENCES, RATE) else f"{encoder}-{seed}-{rate:g}")
    distill(
        [Source(sorted((data / "corpus").glob("*.txt.gz")), texts=sentences, fair=True)],
        output,
        teacher="minilm",
        cache=work / "teacher",
        encoder=encoder,
        encoder_options=options,
        dimension=DIMENSION,
        vocabulary_size=ENTRIES,
        exclude=sorted((data / "senteval").glob("*.tsv")),
        validation=data / "senteval" / "STSB_dev.tsv",
        batch_size=256,
        learning_rate=rate,
        seed=seed,
        device=device,
    )
    return output


def scored(name: str, seed: int, model: Path, data: Path, work: Path, device: str | None) -> dict[str, Any]:
    """Return the row of a model that was trained on the device."""
    from ctx_embed import load
    from ctx_embed.eval import EvaluationOptions, evaluate
    from ctx_embed.systems import parameter_count

    result = evaluate(str(model), TASKS, data, EvaluationOptions(), cache=work / "scores", tell=click.echo)
    if result.failures:
        raise InputError(result.failures[0])
    found = {task: result.scores[str(model), task].mean for task in TASKS}
    record = json.loads((model / "training.json").read_text(encoding="utf-8"))
    return {
        "encoder": name,
        "seed": seed,
        "sentences": record["texts"],
        "parameters": parameter_count(cast(Any, load(str(model), device="cpu")[0])),
        "distance": record["held_out_distance"],
        **found,
        "commit": commit(),
        "processor": processor() if device in (None, "cpu") else torch.cuda.get_device_name(device),
    }


def compared(seed: int, data: Path, work: Path, device: str | None) -> list[dict[str, Any]]:
    """Return the distance to the teacher and STS-B dev by encoder and learning rate, on a tenth of the sentences."""
    rows = []
    for name in WITH_RATES:
        for rate in RATES:
            model = taught(name, seed, data, work, device, SENTENCES // 10, rate)
            record = json.loads((model / "training.json").read_text(encoding="utf-8"))
            kept = record["history"][record["kept_epoch"]]
            of_model = {"distance": record["held_out_distance"], "STS-B dev": 100 * kept["pairs_spearman"]}
            rows.append({"encoder": name, "seed": seed, "rate": rate, **of_model, "commit": commit()})
    return rows


def rates_table(content: dict[str, Any]) -> str:
    """Return the table of the stored comparison of learning rates."""
    heads = [f"{rate:g}" for rate in RATES]
    lines = [f"| encoder, 1 - cos by learning rate | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    found = {(row["encoder"], row["rate"]): row["distance"] for row in content["rates"]}
    lines += [f"| {name} | {' | '.join(f'{found[name, rate]:.3f}' for rate in RATES)} |" for name in WITH_RATES]
    return "\n".join(lines)


def speeds(data: Path, work: Path) -> dict[str, float]:
    """Return texts a second of each encoder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    from ctx_embed.systems import system

    torch.set_num_threads(1)
    with gzip.open(data / "corpus" / "wikipedia_en.01.txt.gz", "rt", encoding="utf-8", newline="\n") as file:
        texts = [line.rstrip("\n") for line in islice(file, TIMED)]
    vocabulary = next(iter(sorted(work.glob("*/tokenizer.json"))), None)
    if vocabulary is None:
        raise InputError(f"{work}: has no model whose vocabulary could be used; train an encoder there first")
    encoders: dict[str, SentenceTransformer] = {}
    for name, (encoder, options) in RIVALS.items():
        module: Any = system(encoder)(Tokenizer.from_file(str(vocabulary)), DIMENSION, **options)
        encoders[name] = SentenceTransformer(modules=[module, Normalize()], device="cpu")
    seconds = alternate({name: partial(each.encode, texts) for name, each in encoders.items()}, runs=5)
    return {name: len(texts) / statistics.median(each) for name, each in seconds.items()}


def table(path: Path = STORED) -> str:
    """Return the table of stored rows: means over seeds."""
    content = json.loads(path.read_text(encoding="utf-8"))
    names = [*PROBES, "STS-B", "STS12-15", "nDCG@10"]
    lines = [f"| encoder | seeds | distance | {' | '.join(names)} | texts/s |", "|---|" + "--:|" * (len(names) + 3)]
    for name in RIVALS:
        rows = [row for row in content["rows"] if row["encoder"] == name]
        if rows:
            mean = {key: statistics.mean(row[key] for row in rows) for key in ("distance", *PROBES, *STS, *COLLECTIONS)}
            groups = [(task,) for task in (*PROBES, STS[0])] + [STS[1:], COLLECTIONS]
            cells = [f"{statistics.mean(mean[task] for task in group):.1f}" for group in groups]
            speed = f"{content['speeds'][name]:,.0f}" if name in content.get("speeds", {}) else "—"
            lines.append("| " + " | ".join([name, str(len(rows)), f"{mean['distance']:.3f}", *cells, speed]) + " |")
    return "\n".join(lines)


@click.command()
@data_option
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Keeps embeddings, models and scores.")
@click.option("--encoder", "names", multiple=True, type=click.Choice(list(RIVALS)), help="Only these.")
@click.option("--seed", "seeds", multiple=True, type=SEED, default=(0, 1), show_default=True)
@click.option("--device", help="Where to train, e.g. cuda.")
@click.option("--rates", is_flag=True, help="Compare learning rates alone.")
@click.option("--speed", "timed", is_flag=True, help="Measure the speed alone.")
@click.option("--table", "printed", is_flag=True, help="Print the published rows.")
@errors_in_one_line(lambda: "repeat the command to continue")
def main(
    data: Path | None,
    work: Path | None,
    names: tuple[str, ...],
    seeds: tuple[int, ...],
    device: str | None,
    rates: bool,
    timed: bool,
    printed: bool,
) -> None:
    """Train and score the rivals, or print what is published."""
    if printed:
        click.echo(table())
        return
    if data is None or work is None:
        raise click.UsageError("--data and --work must name folders")
    from ctx_embed.eval.tasks import DataReader, find_tasks

    for task in find_tasks(TASKS):
        DataReader(data).read(task)
    work.mkdir(parents=True, exist_ok=True)
    stored = work / STORED.name
    if rates:
        keep(stored, {"rates": compared(seeds[0], data, work, device)})
        click.echo(rates_table(json.loads(stored.read_text(encoding="utf-8"))))
        return
    for seed, name in [(seed, name) for seed in seeds for name in names or RIVALS if not timed]:
        model = taught(name, seed, data, work, device)
        keep(stored, {"rows": [scored(name, seed, model, data, work, device)]})
    if timed:
        keep(stored, {"speeds": speeds(data, work)})
    click.echo(table(stored))


def keep(stored: Path, new: dict[str, Any]) -> None:
    """Put rows in the place of the stored ones of the same encoder and seed, and speeds in that of the stored ones."""
    with locked(stored.with_name(".rivals.lock")), replaced_file(stored) as beside:
        content: dict[str, Any] = {"command": "python -m papers.rivals", "rows": [], "speeds": {}}
        if stored.exists():
            content = json.loads(stored.read_text(encoding="utf-8"))
        rows = {(row["encoder"], row["seed"]): row for row in [*content["rows"], *new.pop("rows", ())]}
        content |= {**new, "rows": list(rows.values())}
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
