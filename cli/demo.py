"""`ctx-embed demo`: index and search the docstrings of Python's standard library, which every machine has."""

import ast
import re
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ctx_embed.cli.main import command
from ctx_embed.errors import InputError

QUERIES = (
    "write rows to a csv file",
    "wait until a thread terminates",
    "copy a whole directory tree",
    "pick a random element of a list",
    "open a web page in the browser",
    "measure how long code takes",
)
RANKED = "hits are ranked by meaning and words together, and shown with the cosine of their meaning"
# Folders and private modules of the standard library that are left out.
LEFT_OUT = re.compile(
    r"site-packages|dist-packages|tests?|idle_test|idlelib|lib2to3|turtledemo|distutils|_(?!_init__$).*"
)
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings(node: Any, name: str) -> Iterator[tuple[str, str]]:
    if text := ast.get_docstring(node):
        yield text, name
    for child in node.body if isinstance(node, ast.Module | ast.ClassDef) else ():
        if isinstance(child, DOCUMENTED) and not child.name.startswith("_"):
            yield from _docstrings(child, f"{name}.{child.name}")


def standard_library_docstrings() -> dict[str, str]:
    """Return the docstrings of the standard library by public name, each text once, without importing anything."""
    root = Path(sysconfig.get_paths()["stdlib"])
    first_name: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if any(map(LEFT_OUT.fullmatch, parts)):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # A dead link, a template, or a test file for another version of Python.
        for text, name in _docstrings(tree, ".".join(part for part in parts if part != "__init__")):
            first_name.setdefault(text, name)
    return {name: text for text, name in first_name.items()}


@command()
@click.option("--query", "queries", multiple=True, metavar="TEXT", help="Ask this instead of the sample queries.")
@click.option("-k", default=3, type=click.IntRange(min=1), help="Number of hits for each query.")
def demo(queries: tuple[str, ...], k: int) -> None:
    """Index the docstrings of the Python standard library and answer a few queries.

    Hits are ranked by meaning and words together, as by `ctx-embed index query --mode hybrid`.

    Example: ctx-embed demo --query "parse a date"
    """
    from ctx_embed.index import SearchIndex

    named = standard_library_docstrings()
    if not named:
        raise InputError("this Python has no source files of its standard library; install them to run the demo")
    with tempfile.TemporaryDirectory(prefix="ctx-embed-") as folder:
        start = time.perf_counter()
        with SearchIndex.create(Path(folder) / "docstrings.index") as index:
            # The words of a name are searched too.
            texts = [f"{name.replace('.', ' ').replace('_', ' ')}: {text}" for name, text in named.items()]
            index.add(texts, list(named))
            click.echo(f"{index.count()} docstrings indexed in {time.perf_counter() - start:.1f} s; {RANKED}")
            asked = list(queries or QUERIES)
            for query, hits in zip(asked, index.search(asked, k, mode="hybrid"), strict=True):
                click.echo(f"\n{query}")
                for hit in hits:
                    summary = " ".join(named[str(hit.id)].split("\n\n")[0].split())
                    click.echo(f"  {hit.score:.3f}  {hit.id}: {summary[:80]}")
