"""Encoders that need no model, and small data in the published layout."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ctx_embed.eval.encoders import Encoder
from ctx_embed.eval.evaluation import EvaluationOptions, evaluate
from ctx_embed.model import Model


def encoder_of(name: str, encode, *facts, **roles) -> Encoder:
    """Return an encoder of an evaluation, given the function that embeds."""
    return Encoder(name, Model(SimpleNamespace(encode=encode), name), *facts, **roles)


def draw(text: str) -> np.ndarray:
    """Return eight numbers that depend on the text alone; the first is larger if it holds the word 'good'."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    row = np.random.default_rng(seed).normal(size=8)
    row[0] += 6.0 * ("good" in text)
    return row


def encode(texts):
    return np.stack([draw(text) for text in texts])


@pytest.fixture
def drawn() -> Encoder:
    return encoder_of("drawn", encode, "f" * 64, "key of drawn")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a data folder with 40 rows of MR, 10 pairs of STSB, two subsets of a small STS13, R8 and a collection."""
    senteval = tmp_path / "data" / "senteval"
    senteval.mkdir(parents=True)
    (senteval / "MR.tsv").write_text("".join(f"{i % 2}\t{('bad', 'good')[i % 2]} film {i}\n" for i in range(40)))
    pairs = "".join(f"{i % 5}.0\tgood day {i}\tgood night {i}\n" for i in range(10))
    others = "".join(f"{i % 4}.5\tleft {i}\tright {i}\n" for i in range(8))
    files = {"STSB_test": pairs, "STSB_dev": "2.0\tright 0\tleft 0\n" + pairs, "STS13_OnWN": pairs}
    for name, rows in (files | {"STS13_FNWN": others, "STS13_headlines": others}).items():
        (senteval / f"{name}.tsv").write_text(rows)
    (tmp_path / "data" / "longdocs").mkdir()
    for part, count in (("train", 30), ("test", 9)):
        rows = "".join(f"{('earn', 'grain')[i % 2]}\t{('bad', 'good')[i % 2]} {part} {i}\n" for i in range(count))
        (tmp_path / "data" / "longdocs" / f"R8_{part}.tsv.gz").write_text(rows)
    write_collection(tmp_path / "data" / "retrieval" / "adi")
    return tmp_path / "data"


def write_collection(folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": str(i), "title": "good" if i < 3 else "", "text": f"paper {i}"} for i in range(8)]
    queries = [{"_id": "1", "text": "good paper"}, {"_id": "2", "text": "paper 5"}, {"_id": "3", "text": "nothing"}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t0\t2\n1\t1\t1\n2\t5\t1\n3\t2\t0\n")


@pytest.fixture
def report(folder, drawn) -> dict:
    """Return the results of two encoders on four tasks of every kind."""
    other = encoder_of("a|b [v2]", lambda texts: encode(texts)[:, 1:])
    options = EvaluationOptions("quick", cost=True)
    result = evaluate([drawn, other], ["MR", "R8", "STS13", "adi"], folder, options)
    return json.loads(json.dumps(result.report))
