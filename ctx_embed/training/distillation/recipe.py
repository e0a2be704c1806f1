"""Recipes: TOML files that hold the options of a distillation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctx_embed.errors import InputError, unknown_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LISTS = ("corpus", "exclude", "labelled")
SOURCE_OPTIONS = ("files", "texts", "passage_lines", "span_words", "weight", "fair", "most_words", "second_texts")


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_recipe(path: Path, names: set[str]) -> dict[str, Any]:
    """Return the options of a recipe.

    Args:
        path: a TOML file of ``name = value`` lines, and of ``[[sources]]`` tables with ``files`` and optionally
            the other options of a source, see
            :class:`.Source`; those of the table ``[encoder_options]`` are the system's own.
        names: the options there are.

    Raises:
        InputError: no such file, not TOML, an unknown option, or a value of another kind than the option's.
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
            _check_sources(path, value)
        elif name in LISTS:
            if not _is_list_of_strings(value):
                raise InputError(f"{path}: {name} is {value!r}, a list of strings is needed")
        elif name == "encoder_options":
            if not isinstance(value, Mapping):
                raise InputError(f"{path}: {name} is {value!r}, a table is needed: [encoder_options]")
        elif not isinstance(value, str) and not _is_number(value):
            raise InputError(f"{path}: {name} is {value!r}, a string or a number is needed")
    return recipe


def _check_sources(path: Path, sources: Any) -> None:
    if not isinstance(sources, list) or not all(isinstance(source, Mapping) for source in sources):
        raise InputError(f"{path}: sources is {sources!r}, tables are needed: [[sources]]")
    for source in sources:
        for name, value in source.items():
            if name not in SOURCE_OPTIONS:
                raise unknown_name(f"option of a source in {path}", name, SOURCE_OPTIONS)
            if name == "files" and not _is_list_of_strings(value):
                raise InputError(f"{path}: files of a source is {value!r}, a list of strings is needed")
            whole = name in ("texts", "passage_lines", "span_words", "most_words", "second_texts")
            if name == "fair" and not isinstance(value, bool):
                raise InputError(f"{path}: fair of a source is {value!r}, true or false is needed")
            if name not in ("files", "fair") and (not _is_number(value) or (whole and not isinstance(value, int))):
                kind = "a whole number" if whole else "a number"
                raise InputError(f"{path}: {name} of a source is {value!r}, {kind} is needed")
        if "files" not in source:
            raise InputError(f"{path}: a source has no files, name them: files = [...]")
