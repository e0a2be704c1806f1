"""The Sphinx extension puts a search into a site."""

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the extra docs is not installed")

CONF = """
project = "The House"
extensions = ["ctx_embed.integrations.sphinx"]
html_theme = {theme!r}
ctx_search_exclude = ["secret.html"]
"""
PAGES = {
    "index.rst": "The House\n=========\n\n.. toctree::\n\n   heating/radiators\n   secret\n",
    "heating/radiators.rst": "Radiators\n=========\n\nBleeding\n--------\n\nOpen the valve with the square key.\n",
    "secret.rst": "Secret\n======\n\nThe key lies under the mat.\n",
}


@pytest.mark.parametrize("theme", ["alabaster", pytest.param("furo", marks=pytest.mark.slow)])
def test_a_site_gets_a_box_and_its_files(theme, tmp_path):
    pytest.importorskip(theme)
    for name, text in {**PAGES, "conf.py": CONF.format(theme=theme)}.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(tmp_path / "source"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    page = (out / "heating" / "radiators.html").read_text()
    assert page.count("<ctx-search ") == 1
    for text in ('src="../_search/"', 'src="../_search/ctx-search.js"'):
        assert text in page
    assert 'action="../search.html"' not in page
    found = found_texts(out / "_search")
    for text in ("square key", "heating/radiators.html", '"bleeding"'):
        assert text in found
    for text in ("under the mat", "genindex"):
        assert text not in found


def found_texts(folder: Path) -> str:
    """The texts of a site's pages."""
    manifest = json.loads((folder / "manifest.json").read_text())

    def piece(name: str) -> bytes:
        return zlib.decompress((folder / "pieces" / name[:2] / f"{name[2:]}.bin").read_bytes())

    names = piece(manifest["pieces"]["passages"]).hex()
    return "".join(piece(names[at : at + 24]).decode(errors="replace") for at in range(0, len(names), 24))
