"""docs/reference/names.md: each public name with its signature, a sentence and its place; ``make pages`` writes it.

The site shows whole docstrings; this page is for readers of the repository.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "names.md"
# Modules whose names are public, those of ``__all__`` if there is one.
MODULES = [
    "ctx_embed",
    "ctx_embed.runtime",
    "ctx_embed.index",
    "ctx_embed.grep",
    "ctx_embed.deduplication",
    "ctx_embed.bulk_encoding",
    "ctx_embed.stores",
    "ctx_embed.stores.indexing",
    "ctx_embed.explanations",
    "ctx_embed.site",
    "ctx_embed.training",
    "ctx_embed.eval",
    "ctx_embed.integrations.chroma",
    "ctx_embed.integrations.langchain",
    "ctx_embed.integrations.llama_index",
    "ctx_embed.integrations.mteb",
    "ctx_embed.integrations.sklearn",
    "ctx_embed.second_order",
]
HEAD = """# All public names

`make pages` writes this page from the code: signatures, sentences of docstrings, and links to the source. The site has
[the whole docstrings](python.md).
"""


def is_ours(thing: Any) -> bool:
    """Return whether a class or function is defined in this repository, and not made by a dataclass."""
    try:
        return ROOT in Path(inspect.getsourcefile(inspect.unwrap(thing)) or "/").resolve().parents
    except TypeError:
        return False


def entry(name: str, thing: Any, of: Any) -> str:
    """Return the line of a name: ``thing`` as it is called, and ``of`` as it is defined."""
    code = inspect.unwrap(of)
    path = Path(inspect.getsourcefile(code) or "").resolve().relative_to(ROOT)
    line = inspect.getsourcelines(code)[1]
    signature = ""
    if callable(thing):
        try:
            known = inspect.signature(thing)
        except ValueError:
            known = inspect.Signature()
        plain = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in known.parameters.values()
            if parameter.name not in ("self", "cls")
        ]
        signature = re.sub(r"<.*? at 0x\w+>", "...", str(inspect.Signature(plain)))
    said = inspect.getdoc(of) or ""
    said = re.sub(r":\w+:`[~.]?([^`]*)`", r"`\1`", " ".join(said.partition("\n\n")[0].split())).replace("``", "`")
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z])", said, maxsplit=1)[0]
    return f"- [`{name}{signature}`](../../{path.as_posix()}#L{line}): {sentence}"


def entries(module: str) -> Iterator[str]:
    """Yield the lines of the public names of a module, each class with its public methods."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [name for name, value in vars(found).items() if is_own(value, found)]
    for name in sorted(names, key=lambda name: (name[0].islower(), name)):
        value = getattr(found, name)
        if not is_ours(value):
            continue
        yield entry(name, value, value)
        for attribute, member in vars(value).items() if inspect.isclass(value) else ():
            of = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
            if attribute[0] != "_" and inspect.isfunction(of) and is_ours(of) and inspect.getdoc(of):
                yield "  " + entry(f".{attribute}", getattr(value, attribute), of)


def is_own(value: Any, module: Any) -> bool:
    """Return whether a module defines a public class or function."""
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    return is_code and value.__module__ == module.__name__ and value.__name__[0] != "_"


def documented() -> list[str]:
    """Return the names, with their modules, that the site's page describes."""
    site = PAGE.with_name("python.md").read_text(encoding="utf-8")
    return re.findall(r"auto(?:class|function|exception):: (ctx_embed\.[\w.]+)", site)


def page() -> str:
    """Return the page."""
    shown = "\n".join([HEAD, *("\n".join([f"## {module}", "", *entries(module), ""]) for module in MODULES)])
    rest = ["## Others", ""]
    for path in documented():
        module, _, name = path.rpartition(".")
        if f"[`{name}" not in shown:
            value = getattr(importlib.import_module(module), name)
            rest.append(entry(name, value, value))
    return "\n".join([shown, *rest, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
