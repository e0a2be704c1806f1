"""`ctx-embed demo`: the whole way on text that every machine has, the docstrings of Python's standard library."""

from __future__ import annotations

import ast
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from ctx_embed.errors import InputError

QUERIES = (
    "split a string on whitespace",
    "write rows to a comma separated file",
    "wait until a thread has finished",
    "how do I copy a folder with everything in it",
    "pick a random element of a list",
    "compress bytes",
)
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "__pycache__",
}
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if isinstance(child, DOCUMENTED):
            child_name = f"{name}.{child.name}"
            if text := ast.get_docstring(child):
                yield child_name, text
            if isinstance(child, ast.ClassDef):
                yield from _docstrings(child, child_name)


def standard_library_docstrings() -> dict[str, str]:
    """The docstrings of the installed standard library by dotted name, each text once; nothing is imported or run."""
    root = Path(sysconfig.get_paths()["stdlib"])
    named: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if LEFT_OUT & set(parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # a dead link, a template, or a fixture for another version
        module = ".".join(part for part in parts if part != "__init__")
        if text := ast.get_docstring(tree):
            named[module] = text
        named.update(_docstrings(tree, module))
    first_name: dict[str, str] = {}
    for name, text in named.items():
        first_name.setdefault(text, name)
    return {name: text for text, name in first_name.items()}


@click.command()
@click.option("--query", "queries", multiple=True, metavar="TEXT", help="Ask this instead of the sample queries.")
@click.option("-k", default=3, show_default=True, type=click.IntRange(min=1), help="Hits of a query.")
def demo(queries: tuple[str, ...], k: int) -> None:
    """Index the docstrings of the Python standard library and answer a few queries.

    Example: ctx-embed demo --query "parse a date"
    """
    from ctx_embed.index import SearchIndex

    named = standard_library_docstrings()
    if not named:
        raise InputError("this Python comes without the sources of its standard library, there is nothing to index")
    with tempfile.TemporaryDirectory(prefix="ctx-embed-") as folder:
        start = time.perf_counter()
        with SearchIndex.create(Path(folder) / "docstrings.index") as index:
            index.add(list(named.values()), metadata=[{"name": name} for name in named])
            click.echo(f"{index.count()} docstrings indexed in {time.perf_counter() - start:.1f} s")
            asked = list(queries or QUERIES)
            for query, hits in zip(asked, index.search(asked, k), strict=True):
                click.echo(f"\n{query}")
                for hit in hits:
                    summary = " ".join(hit.text.split("\n\n")[0].split())
                    click.echo(f"  {hit.score:.3f}  {hit.metadata['name']}: {summary[:80]}")
