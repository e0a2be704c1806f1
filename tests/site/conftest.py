"""Runs the tests of js/ on files that Python writes."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctx_embed.numpy_model import Embedder
from ctx_embed.site.model import add_model
from ctx_embed.site.pieces import Pieces
from ctx_embed.text.normalisation import normalised
from tests.site.texts import texts

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")


def written(folder: Path, embedder: Embedder, some: list[str]) -> Path:
    """Write the pieces of a model, and what Python makes of some texts."""
    model = add_model(Pieces(folder), embedder)
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "model": model}))
    packed, lengths = embedder.tokens(some)
    ids = [part.tolist() for part in np.split(packed, lengths.cumsum()[:-1])]
    vectors = embedder.encode(some, normalize=True)[:, : embedder.dimension].round(7).tolist()
    found = {"texts": some, "ids": ids, "vectors": vectors, "normalised": list(map(normalised, some))}
    (folder / "texts.json").write_text(json.dumps(found))
    return folder


@pytest.fixture(scope="session")
def of_default(tmp_path_factory, request) -> Path:
    """The default model's pieces, with texts."""
    count = 6000 if request.config.getoption("--slow") else 1500
    return written(tmp_path_factory.mktemp("default"), Embedder.load(), texts(count))


@pytest.fixture(scope="session")
def node() -> Callable[..., Any]:
    """Run a file of js/tests on a folder; it must pass, and skip nothing."""
    if NODE is None or int(subprocess.check_output([NODE, "--version"], text=True)[1:].split(".")[0]) < 20:
        pytest.skip("Node 20 is not installed")

    def run(name: str, folder: Path | None = None) -> None:
        command = [NODE, "--test", "--test-reporter=tap", f"js/tests/{name}"]
        environment = {**os.environ, **({} if folder is None else {"SITE": str(folder)})}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "# skipped 0\n" in done.stdout
        assert "# pass 0\n" not in done.stdout

    return run
