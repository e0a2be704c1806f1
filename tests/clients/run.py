"""Run every program of docs/clients.md in an environment of its own: python tests/clients/run.py [NAME ...]

Environments lie in ``.clients/`` and are kept; delete the folder to resolve anew. With uv on the path it takes minutes,
with pip an hour. UV_CONSTRAINT or PIP_CONSTRAINT names a file of constraints, e.g. to keep a torch without CUDA.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".clients"

# Starts the server that the blocks over HTTP call, and stops it when the program ends.
SERVER = """
import atexit, subprocess, sys
process = subprocess.Popen(
    [sys.executable, "-m", "ctx_embed", "serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
)
atexit.register(process.wait)
atexit.register(process.kill)
assert "http://127.0.0.1:8080" in process.stdout.readline()
expected = ctx_embed.load().encode(texts)
"""
SAME = "import numpy as np\nnp.testing.assert_allclose(found, expected, atol=2e-5)\n"

HTTP = {
    "Plain HTTP": 'answer = server.post("/embeddings", json={"model": "default", "input": texts}).json()\n'
    'found = [row["embedding"] for row in answer["data"]]\n',
    "OpenAI's API": 'found = [row.embedding for row in client.embeddings.create(model="default", input=texts).data]\n',
    "LangChain over HTTP": "found = embeddings.embed_documents(texts)\n",
    "LlamaIndex over HTTP": "found = embed_model.get_text_embedding_batch(texts)\n",
}
NEAREST = {
    "LangChain": """
from langchain_core.vectorstores import InMemoryVectorStore
store = InMemoryVectorStore.from_texts(texts, embeddings)
found = store.similarity_search("inflation", k=1)[0].page_content
""",
    "LlamaIndex": """
from llama_index.core import Document, VectorStoreIndex
index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=embed_model)
found = index.as_retriever(similarity_top_k=1).retrieve("inflation")[0].text
""",
    "txtai": 'embeddings.index(texts)\nfound = embeddings.search("inflation", 1)[0]["text"]\n',
    "Chroma": """
import chromadb
client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
collection = client.create_collection("page", embedding_function=function)
collection.add(ids=["a", "b", "c"], documents=texts)
found = collection.query(query_texts=["inflation"], n_results=1)["documents"][0][0]
""",
    "LanceDB": """
import tempfile
import lancedb
from lancedb.pydantic import LanceModel, Vector

class Note(LanceModel):
    text: str = function.SourceField()
    vector: Vector(function.ndims()) = function.VectorField()

table = lancedb.connect(tempfile.mkdtemp()).create_table("notes", schema=Note)
table.add([dict(text=text) for text in texts])
found = table.search("inflation").limit(1).to_list()[0]["text"]
""",
    "Qdrant": """
model = ctx_embed.load()
client.upload_collection("notes", vectors=model.encode(texts), payload=[{"text": text} for text in texts])
found = client.query_points("notes", query=model.encode("inflation")).points[0].payload["text"]
""",
}
USES = {
    **{name: SERVER + use + SAME for name, use in HTTP.items()},
    **{name: use + "assert found == texts[1], found\n" for name, use in NEAREST.items()},
    "Haystack": """
import numpy as np
embedder.warm_up()
found = embedder.run("inflation")["embedding"]
np.testing.assert_allclose(found, ctx_embed.load().encode("inflation"), atol=1e-5)
""",
    "BERTopic": """
import itertools
words = "cat dog film price wage garden train book rain city house food song river road stone".split()
documents = [f"the {a} and the {b} near the {c}" for a, b, c in itertools.permutations(words, 3)][::8]
found, _ = topics.fit_transform(documents)
assert len(found) == len(documents) and len(set(found)) > 1
""",
    "KeyBERT": "found = keywords.extract_keywords(texts[1], top_n=3)\n"
    'assert {word for word, _ in found} <= {"prices", "rise", "faster", "wages"} and found\n',
    "SetFit": """
import numpy as np
from datasets import Dataset
from setfit import Trainer
before = ctx_embed.load().encode(texts)
reviews = ["a joy", "a great film", "I loved it", "dull", "a bad film", "I hated it"]
rows = Dataset.from_dict({"text": reviews, "label": [1, 1, 1, 0, 0, 0]})
trainer = Trainer(classifier, arguments, train_dataset=rows, metric=lambda y, t: float(np.mean(y == t)))
trainer.train()
assert np.abs(classifier.model_body.encode(texts) - before).max() > 1e-3
assert np.array(classifier.predict(["a great joy", "a dull, bad film"])).tolist() == [1, 0]
""",
    "scikit-learn": 'pipeline.fit(pd.Series([*texts, "A dull film."]), [0, 0, 1, 1])\n'
    'assert pipeline.predict(["A film without one good idea."]) == [1]\n',
    "MTEB": """
from mteb.models import ModelMeta
from ctx_embed.fingerprint import fingerprint
assert (meta.name, meta.revision) == ("ctx-embed/default", fingerprint(ctx_embed.load()))
assert meta.load_model().encode is not None
""",
    "Ray": """
import ray.data
rows = ray.data.from_items(texts).map_batches(Embed, compute=ray.data.ActorPoolStrategy(size=2)).take_all()
assert len(rows) == len(texts) and len(rows[0]["embedding"]) == 320
""",
    "Dask": """
import dask.dataframe as dd
series = dd.from_pandas(pd.DataFrame({"text": texts}), npartitions=2)["text"]
found = series.map_partitions(embed, meta=embed(pd.Series(texts[:1]))).compute(scheduler="threads")
assert found.shape == (3, 320)
""",
}


class Client(NamedTuple):
    """A program of the page."""

    packages: list[str]  # of its line of pip; extras of ctx-embed as .[extra]
    code: str
    program: str  # the first block of the page, this one, and a use of it whose outcome is known


def clients() -> dict[str, Client]:
    """Return the programs of the page by their headings."""
    page, found = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8"), {}
    blocks = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
    first, *sections = re.split(r"^### ", page, flags=re.MULTILINE)
    for section in sections:
        name = section.split("\n", 1)[0]
        line = re.search(r"^    pip install (.*)$", section, flags=re.MULTILINE)
        (code,) = blocks.findall(section)
        packages = shlex.split(line[1]) if line else ["."]
        found[name] = Client(packages, code, blocks.search(first)[1] + code + USES[name])
    return found


def install(name: str, packages: list[str]) -> Path:
    """Make the client's environment, with this working tree as ctx-embed, and return its Python."""
    python = ENVIRONMENTS / name.lower().replace(" ", "-") / "bin" / "python"
    uv = shutil.which("uv")
    if not python.exists():
        venv = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        subprocess.run([*venv, str(python.parents[1])], check=True)
    installer = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    named = [str(ROOT) + each.removeprefix(".") if each.startswith(".") else each for each in packages]
    subprocess.run([*installer, "--quiet", *named], check=True)
    return python


def main() -> int:
    """Install and run the clients named, or all; the exit status counts those that failed."""
    known = clients()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *known], help="all without one")
    names = parser.parse_args().names
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("PYTHONPATH", None)
    folder = ENVIRONMENTS / "run"
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names or known:
        begin = time.monotonic()
        try:
            python = install(name, known[name].packages)
            subprocess.run([str(python), "-c", known[name].program], check=True, cwd=folder, env=environment)
            outcome = "works"
        except subprocess.CalledProcessError as error:
            failed, outcome = failed + 1, f"FAILED ({error.returncode})"
        print(f"{name}: {outcome}, {time.monotonic() - begin:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
