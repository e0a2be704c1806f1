"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

from ctx_embed import __version__

project = "ctx-embed"
author = "the ctx-embed contributors"
copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "ctx_embed.integrations.sphinx",
]
# Tutorials write models and indexes beside themselves. The page of names is for readers of the repository.
exclude_patterns = ["_build", "samples", "tutorials/*/**", "reference/names.md"]
html_theme = "furo"
html_title = f"ctx-embed {release}"

# Links to a heading of another page, and formulas between dollars.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

# Tutorials run when their text changes; an error in one stops the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parent / "_build" / "notebooks")
# Remarks of other packages and progress bars are no output of a tutorial. One thread: beside other work, threads that
# wait for each other take twice the processor time.
os.environ.update(PYTHONWARNINGS="ignore", TQDM_DISABLE="1", COLUMNS="110", OMP_NUM_THREADS="1")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_remove_prompts = True


def _to_pages(app: object, page: str, source: list[str]) -> None:
    """Turn links that lead out of this folder, as readers of the repository need them, into links to pages."""
    for target, name in (
        ("ctx_embed/pretrained/default/README.md", "/model-card.md"),
        ("models/permissive/ctx_embed_permissive/permissive/README.md", "/permissive-model.md"),
        ("CHANGELOG.md", "/changelog.md"),
    ):
        source[0] = re.sub(rf"\]\((\.\./)+{re.escape(target)}", f"]({name}", source[0])


def _formulas(app: object, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Show the indented lines of a docstring, its formulas, as they are written."""
    for at in range(len(lines) - 1, 1, -1):
        above = lines[at - 2]
        if lines[at].startswith("    ") and not lines[at - 1] and above and not above.startswith((" ", "- ", "::")):
            lines[at:at] = ["::", ""]


def _stars(app: object, context: object, lines: list[str]) -> None:
    """Show the stars of a command's help, as in '*.md', as they are: they begin no emphasis."""
    lines[:] = [re.sub(r"(?<![\w*\\`])\*(?=[^\s*])", r"\\*", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Let Sphinx call the functions above."""
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", _stars)
    app.connect("source-read", _to_pages)
    app.connect("autodoc-process-docstring", _formulas, priority=400)  # before the sections are parsed
