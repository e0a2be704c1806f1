"""Public names of a package that are imported at first use, so that importing the package stays quick."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ctx_embed.errors import left_out


def lazy_names(
    package: str, names_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` (PEP 562) and ``__all__`` of a package, given the names of each module."""
    homes = {name: module for module, names in names_of.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            said = left_out(f"{package}.{name}", error)
            if said is None:
                raise
            raise ModuleNotFoundError(said, name=error.name) from None
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*homes, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return get, names, sorted(homes)
