"""docs/reference/names.md: each public name with its signature, a sentence and its place; ``make pages`` writes it.

The site shows whole docstrings; this page is for readers of the repository.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "names.md"
# Modules whose names are public, those of ``__all__`` if there is one.
FOLDERS = ("", ".runtime", ".index", ".grep", ".deduplication", ".bulk_encoding", ".stores", ".stores.indexing")
FOLDERS += (".explanations", ".site", ".training", ".eval")
INTEGRATIONS = ("chroma", "langchain", "llama_index", "mteb", "sklearn")
MODULES = [*FOLDERS, *(f".integrations.{name}" for name in INTEGRATIONS), ".second_order"]
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
        known = inspect.Signature()
        with suppress(ValueError):
            known = inspect.signature(thing)
        named = [each for name, each in known.parameters.items() if name not in ("self", "cls")]
        plain = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in named])
        signature = re.sub(r"<.*? at 0x\w+>", "...", str(plain))
    said = " ".join((inspect.getdoc(of) or "").partition("\n\n")[0].split())
    said = re.sub(r":\w+:`[~.]?([^`]*)`", r"`\1`", said).replace("``", "`")
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z])", said, maxsplit=1)[0]
    return f"- [`{name}{signature}`](../../{path.as_posix()}#L{line}): {sentence}"


def entries(module: str) -> Iterator[str]:
    """Yield the lines of the public names of a module, each class with its public methods."""
    found = vars(importlib.import_module(module))
    own = [name for name, value in found.items() if name[0] != "_" and getattr(value, "__module__", "") == module]
    for name in sorted(found.get("__all__", own), key=lambda name: (name[0].islower(), name)):
        value = found.get(name) or getattr(importlib.import_module(module), name)
        if not is_ours(value):
            continue
        yield entry(name, value, value)
        for attribute, member in vars(value).items() if inspect.isclass(value) else ():
            of = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
            if attribute[0] != "_" and inspect.isfunction(of) and is_ours(of) and inspect.getdoc(of):
                yield "  " + entry(f".{attribute}", getattr(value, attribute), of)


def page() -> str:
    """Return the page."""
    lines = [HEAD]
    for module in (f"ctx_embed{each}" for each in MODULES):
        lines += [f"## {module}", "", *entries(module), ""]
    lines += ["## Others", ""]
    shown, site = "\n".join(lines), PAGE.with_name("python.md").read_text(encoding="utf-8")
    for path in re.findall(r"auto(?:class|function|exception):: (ctx_embed\.[\w.]+)", site):
        module, _, name = path.rpartition(".")
        if f"[`{name}" not in shown:
            value = getattr(importlib.import_module(module), name)
            lines.append(entry(name, value, value))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
