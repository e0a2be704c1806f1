"""What is fuzzed: for each kind of input, the files of a good one and the program's use of them."""

import csv
import json
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
import torch
from starlette.testclient import TestClient

import ctx_embed
from ctx_embed import SearchIndex, TextClassifier, stores
from ctx_embed.errors import InputError
from ctx_embed.eval.evaluation import evaluate
from ctx_embed.eval.tasks import DataReader, find_tasks
from ctx_embed.index.filters import moment_of, parse_filter
from ctx_embed.model import Model
from ctx_embed.numpy_model.document_state import MAGIC
from ctx_embed.reading.decoding import UnreadableFileError
from ctx_embed.reading.formats import extract, format_of
from ctx_embed.reading.rows import read_documents, read_labelled_rows
from ctx_embed.reading.walking import Rules
from ctx_embed.reading.workers import answer
from ctx_embed.runtime import Embedder
from ctx_embed.serving.app import create_app
from ctx_embed.serving.settings import Settings
from ctx_embed.stores.columns import fields_of
from ctx_embed.training.options import LISTS, read_recipe
from ctx_embed.training.run import Checkpoint
from ctx_embed.training.vocabulary import learn_vocabulary
from tests.conftest import SENTENCES, make_model
from tests.eval.conftest import encoder_of
from tests.helpers.cli import Command
from tests.index.support.hash_model import HashModel, hash_vectors
from tests.reading.samples import WRITERS

ROWS = [{"id": f"s{n}", "text": text, "label": "ab"[n % 2], "n": n} for n, text in enumerate(SENTENCES)]
TEXTS = [SENTENCES[0], ""]
OPTIONS = {*LISTS, "steps", "learning_rate", "system", "encoder_options", "sources"}


@dataclass(frozen=True)
class Target:
    """A kind of input: what writes a good one, and what reads one of which the named file has been damaged."""

    make: Callable[[Path], Any]  # into an empty folder
    use: Callable[[Path, str], Any]
    damages: str = "**/*"  # glob of the files to damage
    allowed: tuple[type[Exception], ...] = (InputError,)  # by use
    writes: bool = False  # whether use may change the folder


def _files(**contents: str) -> Callable[[Path], None]:
    """Return what writes files of these names, in which _ is a dot."""

    def make(folder: Path) -> None:
        for name, content in contents.items():
            (folder / name.replace("_", ".")).write_text(content)

    return make


def _make_rows(folder: Path) -> None:
    table = pandas.DataFrame(ROWS)
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        table.to_json(folder / name, orient="records", lines=True)
    for name, mark in (("rows.csv", ","), ("rows.tsv", "\t")):
        table.to_csv(folder / name, sep=mark, index=False, quoting=csv.QUOTE_NONNUMERIC)
    table.to_parquet(folder / "rows.parquet")
    (folder / "rows.txt").write_text("\n".join(SENTENCES))


def _use_rows(folder: Path, name: str) -> None:
    list(read_documents(folder / name))
    if not name.endswith(".txt"):
        list(read_labelled_rows(folder / name))


def _make_documents(folder: Path) -> None:
    for suffix, write in WRITERS.items():
        write(folder / f"sample.{suffix}")
    (folder / "sample.md").write_text("---\ntitle: Notes\n---\n# One\n\n- a\n\n```py\nx\n```\n\n| a | b |\n|---|---|\n")
    (folder / "sample.py").write_text('"""Doc."""\n\nclass A:\n    def b(self):\n        return "c"\n')
    (folder / "sample.c").write_text("int main(void) { /* say */ return 0; }\n")
    (folder / "sample.csv").write_text("text,n\none,1\ntwo,2\n")


def _use_document(folder: Path, name: str) -> None:
    path = str(folder / name)
    if format_of(path).apart:
        list(answer(path, 4096))  # in a worker any error of a library becomes the reason
    else:
        list(extract(path))


FILTER = (
    """not (year >= 2020.5 or lang in ("en", "de")) and a.b contains 'x' and day < "2024-01-31" and `c d` is not null"""
)
RULES = "# all\n*.py[co]\n!keep/\n/build/**/x\n**/a?[!b-d]*\\ \ndoc/*.{md,txt}\n"
RECIPE = (
    'corpus = ["a.txt"]\nsteps = 10\nlearning_rate = 1e-3\nsystem = "contextualizer"\n\n'
    '[encoder_options]\nrank = 4\n\n[[sources]]\nfiles = ["b.txt"]\ntexts = 50\n'
)


def _use_filter(folder: Path, name: str) -> None:
    text = (folder / name).read_bytes().decode("utf-8", "replace")
    condition = parse_filter(text)
    with sqlite3.connect(":memory:") as database:
        database.create_function("moment_of", 1, moment_of, deterministic=True)
        database.execute("CREATE TABLE documents (id, metadata TEXT)")
        database.execute('INSERT INTO documents VALUES (1, \'{"year": 2021, "lang": "en"}\')')
        database.execute(f"SELECT id FROM documents WHERE {condition.sql}", condition.values).fetchall()
    database.close()


def _use_rules(folder: Path, name: str) -> None:
    rules = Rules((folder / name).read_bytes().decode("utf-8", "replace").split("\n"))
    for path in ("a.pyc", "build/1/2/x", "doc/a.md", "a" * 200, "a/" * 40 + "b"):
        rules.check(path)


def _make_model(folder: Path) -> None:
    make_model(learn_vocabulary(SENTENCES * 3, size=90, progress=False)).save_pretrained(str(folder))


def _make_classifier(folder: Path) -> None:
    _make_model(folder / "encoder")
    TextClassifier(folder / "encoder").fit(SENTENCES, ["a", "b"] * 4).save(folder / "classifier")


def _make_index(folder: Path) -> None:
    with SearchIndex.create(folder / "index", HashModel(), "HNSW8") as index:
        index.add([row["text"] for row in ROWS], [row["id"] for row in ROWS], [{"n": row["n"]} for row in ROWS])
        index.search("a cat", mode="dense")
        index.delete(["s3"])


def _use_index(folder: Path, _: str) -> None:
    with SearchIndex.open(folder / "index", HashModel()) as index:
        for mode in ("words", "dense", "hybrid"):
            index.search("a cat in the garden", mode=mode, where="n >= 1", context=1)
        index.count("n < 3")
        list(index.documents())
        index.facets("n")
        index.verify()
        index.add(["another text"])


def _make_state(folder: Path) -> None:
    _make_model(folder / "model")
    state = Embedder.load(folder / "model").state()
    state.add(" ".join(SENTENCES))
    stored = state.to_bytes()
    (folder / "state").write_bytes(stored)
    # Uncompressed, so that edits reach what is inside.
    (folder / "plain").write_bytes(zlib.decompress(stored[len(MAGIC) :]))


def _use_state(folder: Path, name: str) -> None:
    stored = (folder / name).read_bytes()
    state = Embedder.load(folder / "model").state()
    state.restore(stored if name == "state" else MAGIC + zlib.compress(stored, 1))
    state.add("and one more")
    assert np.isfinite(state.embedding()).all()


def _make_parquet(folder: Path) -> None:
    embedder, metadata = Model(HashModel()), [{"n": row["n"]} for row in ROWS]
    with stores.open(str(folder / "set"), HashModel()) as store:
        store.ensure(stores.Collection.of(embedder, fields_of(metadata)))
        for part in (slice(0, 5), slice(3, 8)):
            ids = [row["id"] for row in ROWS[part]]
            store.upsert(stores.Batch(ids, SENTENCES[part], metadata[part], embedder.documents(SENTENCES[part])))
        store.finish()


def _use_parquet(folder: Path, _: str) -> None:
    with stores.open(str(folder / "set"), HashModel()) as store:
        store.count()
        list(store.documents())


def _make_results(folder: Path) -> None:
    data = folder / "data" / "senteval"
    data.mkdir(parents=True)
    (data / "MR.tsv").write_text("".join(f"{i % 2}\t{('bad', 'good')[i % 2]} film {i}\n" for i in range(40)))
    (data / "STSB_test.tsv").write_text("".join(f"{i % 5}.0\tgood day {i}\tgood night {i}\n" for i in range(10)))
    encoders = [encoder_of(name, hash_vectors, name * 64, name) for name in "ab"]
    report = evaluate(encoders, find_tasks(("MR", "STSB")), DataReader(folder / "data")).report
    (folder / "results.json").write_text(json.dumps(report))


def _use_results(folder: Path, name: str) -> None:
    file = folder / name
    result = Command("eval").run("compare", file, file, "--encoder", "a", "--encoder", "b")
    if isinstance(result.exception, Exception):
        raise result.exception
    if result.exit_code:
        raise InputError(result.stderr.rstrip("\n"))


BODIES: dict[str, dict[str, Any]] = {
    "v1/embeddings": {"model": "default", "input": ["a cat", "a dog"], "encoding_format": "base64", "dimensions": 8},
    "v1/rerank": {"query": "a cat", "documents": ["a dog", "the cat"], "top_n": 1},
    "search": {"query": "a cat", "k": 3, "mode": "hybrid", "where": "n >= 1", "context": 1, "threshold": 0.1},
    "get": {"ids": ["s1", 5]},
    "ids": {"where": "n < 3"},
    "count": {"where": 'label = "a"'},
    "documents": {"where": "n < 5", "offset": 1, "limit": 2},
    "facets": {"field": "label"},
    "add": {"texts": ["new"], "ids": ["x"], "metadata": [{"n": 1}]},
    "upsert": {"texts": ["new"], "ids": ["x"], "metadata": [{"n": 1}]},
    "update_metadata": {"ids": ["s1"], "changes": {"n": 2}},
    "delete": {"ids": ["x"]},
    "explain": {"query": "a cat", "text": "the dog"},
}


@cache
def _client() -> Any:
    """Return a client of the server's application over a small index; both last as long as the process."""
    folder = TemporaryDirectory()
    path = Path(folder.name) / "notes"
    with SearchIndex.create(path) as index:
        index.add(SENTENCES, [row["id"] for row in ROWS], [{"n": row["n"], "label": row["label"]} for row in ROWS])
    client = TestClient(create_app(Settings([path])), base_url="http://127.0.0.1", raise_server_exceptions=True)
    client.folder = folder
    return client


def _use_body(folder: Path, name: str) -> None:
    route = list(BODIES)[int(name)]
    url = f"/{route}" if "/" in route else f"/v1/indexes/notes/{route}"
    headers = {"Content-Type": "application/json"}
    answer = _client().post(url, content=(folder / name).read_bytes(), headers=headers)
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, (route, answer.status_code, answer.text)
        raise InputError(answer.json()["error"]["message"])


TARGETS = {
    "rows": Target(_make_rows, _use_rows),
    "documents": Target(_make_documents, _use_document, allowed=(InputError, UnreadableFileError)),
    "filter": Target(_files(filter=FILTER), _use_filter),
    "ignore rules": Target(_files(rules=RULES), _use_rules),
    "model in NumPy": Target(_make_model, lambda folder, _: Embedder.load(folder).encode(TEXTS)),
    "model in torch": Target(_make_model, lambda folder, _: ctx_embed.load(folder, device="cpu").encode(TEXTS)),
    "classifier": Target(
        _make_classifier,
        lambda folder, _: TextClassifier.load(folder / "classifier").predict_proba(TEXTS),
        "classifier/**/*",
    ),
    "recipe": Target(_files(recipe_toml=RECIPE), lambda folder, name: read_recipe(folder / name, OPTIONS)),
    "checkpoint": Target(
        lambda folder: Checkpoint(folder / "model", "run").save(
            {"step": 3, "weights": {"a": torch.ones(9)}, "losses": [0.1]}
        ),
        lambda folder, _: Checkpoint(folder / "model", "run").load(),
    ),
    "index": Target(_make_index, _use_index, writes=True),
    "state": Target(_make_state, _use_state, "*[!l]"),
    "Parquet set": Target(_make_parquet, _use_parquet),
    "results": Target(_make_results, _use_results, "results.json"),
    "HTTP": Target(_files(**{f"{number}": json.dumps(body) for number, body in enumerate(BODIES.values())}), _use_body),
}
