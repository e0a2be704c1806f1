"""Small data in the published layout, and a small vocabulary."""

import gzip
from pathlib import Path

import pytest

from papers import Workplace

WORDS = ["a dull film without one good idea", "the film was a joy from the first scene"]


def silent(line: str) -> None:
    """Print no progress."""


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory) -> Path:
    """Return a folder of MR, CR, SUBJ and MPQA (40 rows each), Yelp and Amazon (40 rows each), AG news, R8 and IMDB (24
    training, 12 test rows)."""
    folder = tmp_path_factory.mktemp("data")
    files = {f"senteval/{task}.tsv": (task, 40) for task in ("MR", "CR", "SUBJ", "MPQA")}
    files |= {f"sentiment/{name}.tsv.gz": (name, 40) for name in ("yelp_sentences", "amazon_polarity_10k")}
    files |= {f"longdocs/{task}_train.tsv.gz": ("train", 24) for task in ("R8", "IMDB")}
    files |= {f"longdocs/{task}_test.tsv.gz": ("test", 12) for task in ("R8", "IMDB")}
    files |= {"longdocs/AGnews_train_part.tsv.gz": ("train", 24), "longdocs/AGnews_test_desc.tsv.gz": ("test", 12)}
    for name, (part, count) in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with (gzip.open if name.endswith(".gz") else open)(folder / name, "wt") as file:
            for i in range(count):
                stars = f"{1 + 9 * (i % 2)}\t" if "IMDB" in name else ""
                file.write(f"{i % 2 + ('AGnews' in name)}\t{stars}{WORDS[i % 2]} {part} {i}\n")
    return folder


@pytest.fixture(scope="session")
def vocabulary(tokenizer, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def workplace(data_folder, vocabulary) -> Workplace:
    return Workplace(data_folder, 0, vocabulary)
