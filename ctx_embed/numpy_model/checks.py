"""Checks of a model folder before a model is built from it. Both loaders, on torch and in NumPy, use them.

A folder may come from a stranger. Each file has a maximum size and each number a range, and no memory is allocated for
a size that a file declares but does not have.
"""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from ctx_embed.errors import InputError, described, nearest_name
from ctx_embed.files import POINTER, POINTER_BYTES, is_pointer, open_regular
from ctx_embed.text.tokenizer import parts_of

LARGEST_JSON = 1 << 20
LARGEST_TOKENIZER = 1 << 26
MOST_MODULES = 100
# Maximum length of a word that WordPiece may look up, in time quadratic in its length; 100 in transformers.
LONGEST_WORD = 1000
# Maximum number of characters with which normalisers may replace a single one, or put before a text.
MOST_REPLACED = 100
# Maximum number of normalisers and pre-tokenizers, each of which reads every text.
MOST_PARTS = 100
LONGEST_PATTERN = 1000
# Turns digits into zeros and the rest into spaces, so that large numbers are found ten times faster than by a pattern.
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
SIMILARITIES = (None, "cosine", "dot", "euclidean", "manhattan")


class Entry(NamedTuple):
    """A module of a model folder: its name, its own folder, its class, and the names of its forward arguments."""

    name: str
    home: Path
    kind: str
    arguments: list[str]


def require_file(path: Path, largest: int) -> None:
    """Refuse anything but a regular file of at most ``largest`` bytes."""
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: must be a regular file")
    if found.st_size > largest:
        raise InputError(f"{path}: must have at most {largest:,} bytes, got {found.st_size:,}")


def require_contents(folder: Path) -> None:
    """Refuse a folder with a pointer of git-lfs in place of a file."""
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        with suppress(OSError), open_regular(path) as file:
            if is_pointer(file.peek(POINTER_BYTES)):
                raise InputError(f"{path}: {POINTER}")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    require_file(path, LARGEST_JSON)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object; see :func:`read_json`."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a JSON object, got {described(content)}")
    return content


def is_size(value: Any) -> bool:
    """Return whether a value is an integer from 1 to 2^31 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def _names(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def modules_of(folder: Path) -> list[Entry]:
    """Return the modules that ``modules.json`` lists, each inside the folder."""
    if not folder.exists():
        near = nearest_name(folder, ("default",))
        raise InputError(f"{folder}: no such model folder{'; ' if near else ''}{near}")
    path = folder / "modules.json"
    if not path.exists():
        raise InputError(f"{folder}: not a SentenceTransformer model folder (no modules.json)")
    require_contents(folder)
    listed = read_json(path)
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_MODULES:
        raise InputError(f"{path}: must be a list of 1 to {MOST_MODULES} modules")
    entries = []
    for entry in listed:
        fields = entry if isinstance(entry, dict) else {}
        name, home, kind = (fields.get(key) for key in ("name", "path", "type"))
        arguments = fields.get("kwargs") or []
        if not (isinstance(name, str) and isinstance(home, str) and isinstance(kind, str) and _names(arguments)):
            raise InputError(f"{path}: each module must have a name, a path and a type, got {entry!s:.80}")
        inside = PurePosixPath(home.replace("\\", "/"))
        is_text = home.encode("utf-8", "ignore").decode() == home
        if inside.is_absolute() or ".." in inside.parts or ":" in home or "\0" in home or not is_text:
            raise InputError(f"{path}: modules must lie inside the folder, got the path {home!r:.80}")
        entries.append(Entry(name, folder / home, kind, arguments))
    if len({entry.name for entry in entries}) < len(entries):
        raise InputError(f"{path}: two modules have the same name")
    for entry in entries:
        if entry.home != folder:
            require_contents(entry.home)
    return entries


def settings_of(folder: Path) -> dict[str, Any]:
    """Return ``config_sentence_transformers.json``, empty if there is none."""
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return {}
    settings = read_object(path)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not (isinstance(prompts, dict) and all(isinstance(text, str | None) for text in prompts.values())):
        raise InputError(f"{path}: prompts must be texts by name, got {prompts!s:.80}")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise InputError(f"{path}: default_prompt_name must name one of the prompts, got {default!r:.80}")
    if settings.get("truncate_dim") is not None and not is_size(settings["truncate_dim"]):
        raise InputError(f"{path}: truncate_dim must be a positive integer, got {settings['truncate_dim']!r:.80}")
    if settings.get("similarity_fn_name") not in SIMILARITIES:
        raise InputError(
            f"{path}: similarity_fn_name must be one of {', '.join(filter(None, SIMILARITIES))}, "
            f"got {settings['similarity_fn_name']!r:.80}"
        )
    return settings


def read_tokenizer(path: Path) -> Tokenizer:
    """Return a saved tokenizer, padding and truncation off."""
    require_file(path, LARGEST_TOKENIZER)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # tokenizers raises a bare Exception, but a panic in its Rust code is not an Exception.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InputError(f"{path}: no tokenizer ({error!s:.200})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    longest = getattr(tokenizer.model, "max_input_chars_per_word", 0)
    if longest > LONGEST_WORD:
        raise InputError(f"{path}: max_input_chars_per_word must be at most {LONGEST_WORD}, got {longest}")
    parts = parts_of(tokenizer.normalizer) + parts_of(tokenizer.pre_tokenizer)
    if len(parts) > MOST_PARTS:
        raise InputError(f"{path}: must have at most {MOST_PARTS} normalizers and pre-tokenizers, got {len(parts):,}")
    if (prepended := sum(len(part.get("prepend", "")) for part in parts)) > MOST_REPLACED:
        raise InputError(f"{path}: at most {MOST_REPLACED} characters may be put before a text, got {prepended:,}")
    growth = 1.0
    for part in parts:
        pattern = next(iter(part["pattern"].values())) if isinstance(part.get("pattern"), dict) else ""
        if len(pattern) > LONGEST_PATTERN:
            raise InputError(f"{path}: a pattern must have at most {LONGEST_PATTERN} characters, got {len(pattern)}")
        if part["type"] == "Replace":
            is_text = "String" in part["pattern"]
            growth *= max(1, len(part["content"]) / (max(1, len(pattern)) if is_text else 1))
    if growth > MOST_REPLACED:
        raise InputError(f"{path}: replacements must make at most {MOST_REPLACED} characters of one, got {growth:.0f}")
    entries = tokenizer.get_vocab_size()
    # The vocabulary is slow to list, so list it only if an id may be so large that saving it would take minutes.
    has_large = b"0" * 8 in path.read_bytes().translate(_DIGITS)
    highest = max(tokenizer.get_vocab().values()) if has_large else entries - 1
    if highest != entries - 1 or tokenizer.id_to_token(highest) is None:
        raise InputError(f"{path}: the tokenizer's ids must have no gaps, got {entries} up to {highest}")
    return tokenizer
