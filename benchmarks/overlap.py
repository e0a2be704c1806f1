"""Near-duplicates between training texts and test sets, found by `ctx-embed dedupe`.

    python benchmarks/overlap.py --data DIR --work FOLDER [--part corpus]   # minutes for each part
    python benchmarks/overlap.py --table                                    # the model card's table

Each part of what the models that ship were trained on (labelled reviews, pairs, every tenth sentence of the corpus) is
deduplicated together with the test texts behind it: a test text that resembles an earlier text of the training part is
counted. Texts of fewer than four words ("very good") are counted apart from the longer ones, since they are like many
others.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from common import FOLDER, lines_of, store, stored, table
from tqdm import tqdm

from ctx_embed.deduplication import dedupe
from ctx_embed.eval.tasks import TASKS, DataReader
from ctx_embed.training.distillation.texts import read_excluded, read_pair_rows
from ctx_embed.training.labelled_texts import words_of

STORED, ROOT = Path(__file__).with_suffix(".json"), Path(__file__).parent.parent
MODELS = [ROOT / "ctx_embed/pretrained/default", ROOT / "models/permissive/ctx_embed_permissive/permissive"]
TESTS = ("MR", "CR", "SUBJ", "MPQA", "STS12", "STS13", "STS14", "STS15", "STSB", "MTEB-Banking77", "IMDB")
PARTS = {"labelled reviews": "sentiment", "pairs": "pairs", "corpus, every tenth sentence": "corpus"}
SHARE, SHORT = 10, 4


def trained_files() -> set[str]:
    """Return the names of the files that the models' records of training list."""
    names: set[str] = set()
    for folder in MODELS:
        for path in (*folder.glob("*-stage.json"), folder / "training.json"):
            record = json.loads(path.read_text(encoding="utf-8"))
            names.update(record["labelled"], *(source["files"] for source in record["sources"]))
    return names


def training(data: Path, part: str) -> Iterator[str]:
    """Yield the training texts of a part, without those that training leaves out."""
    known = trained_files()
    excluded = read_excluded([*data.glob("senteval/*.tsv"), *data.glob("longdocs/*_test*.tsv.gz")])
    for path in sorted([*(data / part).iterdir(), data / "longdocs" / "IMDB_train.tsv.gz"]):
        if path.name not in known or (part != "sentiment" and path.parent.name == "longdocs"):
            continue
        if part == "pairs":
            texts: Iterable[str] = (text for pair in read_pair_rows(path) for text in pair[:2])
        elif part == "sentiment":
            texts = (line.rpartition("\t")[2] for line in lines_of(path))
        else:
            texts = lines_of(path)[::SHARE]
        yield from (text for text in texts if words_of(text) not in excluded)


def tested(data: Path, name: str) -> list[str]:
    """Return the distinct test texts of a task."""
    subsets = DataReader(data).read(TASKS[name]).subsets
    parts = [subsets["test"]] if "test" in subsets else list(subsets.values())
    return list(dict.fromkeys(text for rows in parts for row in rows for text in row[1:] if text.strip()))


def shared(part: str, data: Path, work: Path) -> list[dict[str, object]]:
    """Return for each test set how many of its texts resemble one of the training texts."""
    sources, outputs = work / "texts.jsonl", (work / "kept.jsonl", work / "groups.jsonl")
    known = dict.fromkeys(training(data, part))
    tests = {name: tested(data, name) for name in TESTS}
    texts = [*known, *dict.fromkeys(text for each in tests.values() for text in each if text not in known)]
    with sources.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    dedupe(sources, outputs[0], groups=outputs[1], progress=True)
    found: set[str] = set()
    with outputs[1].open(encoding="utf-8") as lines:
        for line in lines:
            group = json.loads(line)
            if group["kept"]["row"] <= len(known):
                found |= {row["text"] for row in group["dropped"] if row["row"] > len(known)}
    rows: list[dict[str, object]] = []
    for name, each in tests.items():
        same = [text for text in each if text in found or text in known]
        short = sum(len(text.split()) < SHORT for text in same)
        rows.append(
            {"part": part, "training": len(known), "test": name, "texts": len(each), "alike": len(same), "short": short}
        )
    return rows


def shown() -> str:
    """Return the model card's table: the percentage of test texts with a near-duplicate in each part."""
    stored_rows, rows = stored(STORED), []
    for name in TESTS:
        of = {row["part"]: row for row in stored_rows if row["test"] == name}
        cells = []
        for part in PARTS.values():
            alike, short = of[part]["alike"], of[part]["short"]
            percent = 100 / of[part]["texts"]
            cells.append(f"{percent * alike:.1f} %" + (f" ({percent * (alike - short):.1f} %)" if short else ""))
        rows.append([name.removeprefix("MTEB-"), f"{of['pairs']['texts']:,}", *cells])
    return table(["test set", "texts", *PARTS], rows)


@click.command()
@click.option("--data", envvar="CTX_EMBED_DATA", type=FOLDER)
@click.option("--work", type=FOLDER, help="A folder for the texts.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS.values())), default=list(PARTS.values()))
@click.option("--table", "printed", is_flag=True)
def main(data: Path | None, work: Path | None, parts: tuple[str, ...], printed: bool) -> None:
    if printed:
        print(shown())
        return
    if data is None or work is None:
        raise click.UsageError("--data and --work must name folders")
    work.mkdir(parents=True, exist_ok=True)
    for part in tqdm(parts):
        found = shared(part, data, work)
        store(STORED, [row for row in stored(STORED) if row["part"] != part], found)


if __name__ == "__main__":
    main()
