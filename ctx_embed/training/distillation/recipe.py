"""Recipes: TOML files that hold the options of a distillation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.options import declared
from ctx_embed.training.distillation.options import Source

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LISTS = ("corpus", "exclude", "labelled")


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def read_recipe(path: Path, names: set[str]) -> dict[str, Any]:
    """Return the options of a recipe.

    Args:
        path: a TOML file with lines ``name = value``, tables ``[[sources]]`` with ``files`` and other options of
            :class:`.Source`, and a table ``[encoder_options]`` with options of the system.
        names: all known options.

    Raises:
        InputError: no such file, not TOML, an unknown option, or a value of the wrong type.
    """
    try:
        recipe: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not TOML ({error})") from None
    for name, value in recipe.items():
        if name not in names:
            raise unknown_name(f"option of {path}", name, names)
        if name == "sources":
            if not isinstance(value, list) or not all(isinstance(source, Mapping) for source in value):
                raise InputError(f"{path}: sources must be tables [[sources]], got {value!r}")
            for source in value:
                known = [field.name for field in declared(Source)]
                for option in source:
                    if option not in known:
                        raise unknown_name(f"option of a source in {path}", option, known)
                if "files" not in source:
                    raise InputError(f"{path}: each source must have files; add files = [...]")
                if not _is_list_of_strings(source["files"]):
                    raise InputError(f"{path}: files of a source must be a list of strings, got {source['files']!r}")
                try:
                    Source(**source)
                except InputError as error:
                    raise InputError(f"{path}: {error}") from None
        elif name in LISTS:
            if not _is_list_of_strings(value):
                raise InputError(f"{path}: {name} must be a list of strings, got {value!r}")
        elif name == "encoder_options":
            if not isinstance(value, Mapping):
                raise InputError(f"{path}: {name} must be a table [encoder_options], got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InputError(f"{path}: {name} must be a string or a number, got {value!r}")
    return recipe
