"""Commands that embed and search import no torch: it alone takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ctx_embed.errors import installation

HEAVY = {"torch", "transformers", "sentence_transformers", "datasets"}
SCIENTIFIC = {"sklearn", "scipy", "pyarrow", "pandas"}
SCRIPT = """
import sys
from ctx_embed.cli.main import main
sys.argv[0] = "ctx-embed"
try:
    main()
finally:
    print("modules:", *sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("no torch")
    (folder / "notes").mkdir()
    (folder / "notes" / "a.md").write_text("# A cat\n\nIt sat on the mat.\n")
    (folder / "notes" / "b.txt").write_text("Wages\n\nThey rise.\n")
    (folder / "texts.txt").write_text("the cat sat on the mat\nprices rise\nwages do not rise\nthe dog sat\n" * 2)

    def run(*arguments: str) -> tuple[str, set[str]]:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
        errors, _, modules = done.stderr.rpartition("modules:")
        assert done.returncode == 0, errors
        return done.stdout, set(modules.split())

    run("index", "build", "texts.txt", "texts.index")
    return run


@pytest.mark.parametrize(
    "command",
    [
        "encode texts.txt -o texts.npy",
        "explain cat",
        "index build texts.txt other.index --chunk tokens:4",
        "index build texts.txt texts.index --append",
        "index build notes notes.index",
        "index sync notes texts.index",
        "index query texts.index cat",
        "index query texts.index cat --mode hybrid",
        "index similar texts.index 1 --mmr 0.5 --group id --not cat",
        "index facets texts.index source",
        "index get texts.index 1",
        "index delete texts.index 99",
        "index export texts.index exported",
        "index info texts.index",
        "index verify texts.index",
        "index compact texts.index",
        "index duplicates texts.index",
        "index topics texts.index -k 2",
        "demo -k 1 --query copy",
    ],
)
def test_no_torch(run, command):
    _, modules = run(*command.split())
    # Topics take the stop words of scikit-learn.
    assert modules & (HEAVY if "topics" in command else HEAVY | SCIENTIFIC) == set()


def test_what_the_light_installation_lacks_is_one_line(tmp_path):
    script = "import sys; sys.modules['torch'] = None; from ctx_embed.cli.main import main; main()"
    command = [sys.executable, "-c", script, "explain", "a cat", "--model", "san"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    # transformers, which the light installation leaves out too, prints a line of its own.
    line = done.stderr.splitlines()[-1]
    assert line == f"Error: this needs torch, which the light installation leaves out: {installation()}"


def test_both_backends_open_one_index(run):
    answers = [
        run("index", "query", "texts.index", "wages", "-k", "2", *more)[0] for more in ((), ("--backend", "torch"))
    ]
    assert "wages" in answers[0]
    assert answers[0] == answers[1]
