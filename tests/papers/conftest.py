"""Small data in the published layout, and a small vocabulary."""

import gzip
from pathlib import Path

import pytest

from papers import Workplace

WORDS = {"0": "a dull film without one good idea", "1": "the film was a joy from the first scene"}


def silent(line: str) -> None:
    """Print no progress."""


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory) -> Path:
    """Return a folder of MR, CR, SUBJ and MPQA (40 rows each), Yelp and Amazon (40 rows each), AG news, R8 and IMDB (24
    training, 12 test rows)."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "senteval").mkdir()
    for task in ("MR", "CR", "SUBJ", "MPQA"):
        rows = [f"{i % 2}\t{WORDS[str(i % 2)]} {task} {i}\n" for i in range(40)]
        (folder / "senteval" / f"{task}.tsv").write_text("".join(rows))
    (folder / "sentiment").mkdir()
    for name in ("yelp_sentences", "amazon_polarity_10k"):
        with gzip.open(folder / "sentiment" / f"{name}.tsv.gz", "wt") as file:
            file.write("".join(f"{i % 2}\t{WORDS[str(i % 2)]} {name} {i}\n" for i in range(40)))
    (folder / "longdocs").mkdir()
    names = {"AGnews": ("train_part", "test_desc"), "R8": ("train", "test"), "IMDB": ("train", "test")}
    for task, parts in names.items():
        for part, count in zip(parts, (24, 12), strict=True):
            with gzip.open(folder / "longdocs" / f"{task}_{part}.tsv.gz", "wt") as file:
                for i in range(count):
                    label = str(i % 2 + (task == "AGnews"))
                    stars = f"{1 + 9 * (i % 2)}\t" if task == "IMDB" else ""
                    file.write(f"{label}\t{stars}{WORDS[str(i % 2)]} {part} {i}\n")
    return folder


@pytest.fixture(scope="session")
def vocabulary(tokenizer, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def workplace(data_folder, vocabulary) -> Workplace:
    return Workplace(data_folder, 0, vocabulary)
