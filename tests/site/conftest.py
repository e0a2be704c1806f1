"""An exported site, and Node for the tests of js/ on what Python writes."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ctx_embed import SearchIndex
from ctx_embed.files import locked
from ctx_embed.site import export_site, model
from ctx_embed.site.tables import tables as model_tables
from tests.site.pages import ROOT, make_site

NODE = shutil.which("node")


@pytest.fixture(scope="session", autouse=True)
def _tables_once():
    """Make the tables of each kind of tokenizer once, for they take seconds."""
    made: dict[tuple[bytes, bytes], dict[str, Any]] = {}

    def tables(tokenizer: Tokenizer) -> dict[str, Any]:
        kind = tokenizer.normalizer.__getstate__(), tokenizer.pre_tokenizer.__getstate__()
        return made.get(kind) or made.setdefault(kind, model_tables(tokenizer))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "tables", tables)
        yield


@pytest.fixture(scope="session")
def index_path(tmp_path_factory) -> Path:
    """The index of a small site, beside the site's folder, which has what is exported of it in ``search``."""
    own = tmp_path_factory.mktemp("house")
    # Exporting takes seconds: of the processes that share the tests one does, and each has a copy.
    shared = own.parents["PYTEST_XDIST_WORKER" in os.environ] / "shared house"
    with locked(shared.with_suffix(".lock")):
        if not shared.exists():
            with SearchIndex.open(make_site(own)) as index:
                export_site(index, own / "site" / "search")
            shutil.copytree(own, shared)
    return Path(shutil.copytree(shared, own, dirs_exist_ok=True)) / "site.index"


@pytest.fixture(scope="session")
def exported(index_path) -> Path:
    """The folder ``search`` of that site."""
    return index_path.parent / "site" / "search"


@pytest.fixture(scope="session")
def node() -> Callable[..., Any]:
    """Run a file of js/tests on a folder; it must pass, and skip nothing."""
    if NODE is None or int(subprocess.check_output([NODE, "--version"], text=True)[1:].split(".")[0]) < 20:
        pytest.skip("Node 20 is not installed")

    def run(name: str, folder: Path | None = None) -> None:
        command = [NODE, "--test", "--test-reporter=tap", f"js/tests/{name}"]
        environment = {**os.environ, "SITE": str(folder or "")}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "# skipped 0\n" in done.stdout
        assert "# pass 0\n" not in done.stdout

    return run
